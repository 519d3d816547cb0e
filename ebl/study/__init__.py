"""Studies: a grid of runs, a store that keeps them, executors that work on it."""
