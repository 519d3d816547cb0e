"""One file a family of energies."""
