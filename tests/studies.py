"""A study that takes no time, and an executor without processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ebl.study.cell import run_cell
from ebl.study.executor import Ended
from ebl.study.grid import Cell, parse_study

TINY = {
    "model": "{kind: dense, hidden: [4], gains: 0.8}",
    "free.iterations": 5,
    "nudged.iterations": 3,
    "batch_size": 10,
    "epochs": 2,
    "optimiser.rates": 0.05,
    "augment": "false",
    "residual_warning": 1.0,
}


def tiny_data(folder: Path) -> Path:
    """50 images of 6×6: the bright half says the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(50) % 2
    images = rng.integers(0, 100, (50, 6, 6), dtype=np.uint8)
    images[labels == 0, :3] += 100
    images[labels == 1, 3:] += 100
    np.savez(folder / "tiny.npz", images=images, labels=labels)
    return folder / "tiny.npz"


def tiny_yaml(folder: Path, more: str = "grid: {seed: [0, 1], rule: [cl, c-ep]}", **settings: object) -> str:
    lines = "".join(f"  {key}: {value}\n" for key, value in {**TINY, "dataset": tiny_data(folder), **settings}.items())
    return f"set:\n{lines}{more}\n"


def tiny_cells(folder: Path, more: str = "grid: {seed: [0, 1], rule: [cl, c-ep]}", **settings: object) -> tuple[Cell, ...]:
    return parse_study(tiny_yaml(folder, more, **settings), "tiny", "tiny.yaml").cells


class Inline:
    """Works off each cell at once, in this process."""

    def __init__(self, slots: int | None = 1, work=run_cell):
        self.slots, self.work = slots, work
        self.over: list[Ended] = []
        self.begun: list[str] = []
        self.stopped = False

    def adopt(self, store, keys):
        return []

    def start(self, store, keys):
        for key in keys:
            self.begun.append(key)
            try:
                self.work(store, key)
                self.over.append(Ended(key))
            except Exception as error:
                self.over.append(Ended(key, str(error)))

    def ended(self):
        over, self.over = self.over, []
        return over

    def stop(self):
        self.stopped = True
