"""What studies cost beside their runs: starting one of 135 cells, and showing a store of 10,000 finished runs (synthetic).

python benchmarks/study.py [--runs 10000] [--epochs 100]
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch

from ebl.cli.matrix import matrix, news
from ebl.provenance import provenance
from ebl.study.executor import Ended
from ebl.study.grid import Cell, read_study, with_settings
from ebl.study.runner import run_study
from ebl.study.store import make_store, records


class BegunError(Exception):
    """The first run would begin now."""


class Nowhere:
    slots: int | None = 2

    def adopt(self, store: Path, keys: Sequence[str]) -> list[str]:
        return []

    def start(self, store: Path, keys: Sequence[str]) -> None:
        raise BegunError

    def ended(self) -> list[Ended]:
        return []

    def stop(self) -> None:
        pass


def start_seconds(folder: Path) -> float:
    """From the study's name to its first run."""
    begin = time.perf_counter()
    study = read_study("table1")
    store = make_store(folder, study.name)
    try:
        run_study(store, study.cells, Nowhere())
    except BegunError:
        return time.perf_counter() - begin
    raise AssertionError


def fill(folder: Path, runs: int, epochs: int) -> None:
    """A store of finished runs, with numbers drawn at random."""
    cells: list[Cell] = list(read_study("table1").cells)
    while len(cells) < runs:
        seed = cells[-1].config.seed + 1
        cells += with_settings(cells[:45], {"seed": seed})
    store = make_store(folder, "synthetic")
    store.add(cells[:runs])
    names = ("train_error", "train_top5_error", "train_cost", "test_error", "test_top5_error", "test_cost")
    about = {"engine": "synthetic", **provenance(torch.device("cpu"))}
    for cell in cells[:runs]:
        run = store.run_folder(cell.key)
        run.mkdir()
        lines = [
            {"epoch": e + 1, **{name: random.randrange(50000) / 50000 for name in names}}
            | {"free_residual": random.random() * 1e-3, "free_iterations": 60.0, "test_residual": random.random() * 1e-3}
            | {"saturation": [random.random() for _ in range(4)], "rates": [random.random() for _ in range(5)]}
            for e in range(epochs)
        ]
        config = dataclasses.asdict(cell.config)
        result = {"final": lines[-1], "best": lines[0], "collapsed": False, "seconds": 300.0, "config": config, **about}
        times = [{"epoch": e + 1, "seconds": 3.123, "training_seconds": 2.9} for e in range(epochs)]
        (run / "config.json").write_text(json.dumps(config))
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
        (run / "result.json").write_text(json.dumps(result))


def show_seconds(folder: Path) -> float:
    """Reading all records and drawing the matrix."""
    from rich.console import Console

    begin = time.perf_counter()
    found = records(folder)
    with redirect_stdout(io.StringIO()) as out:
        Console(file=out, width=140).print(matrix(found), news(found, None))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"starting table1, 135 cells: {start_seconds(folder / 'start'):.2f} s until the first run is given away")
        fill(folder / "synthetic", args.runs, args.epochs)
        print(f"{args.runs} finished runs of {args.epochs} epochs")
        print(f"  shown, records.jsonl made anew: {show_seconds(folder / 'synthetic'):.1f} s")
        size = (folder / "synthetic" / "records.jsonl").stat().st_size
        print(f"  shown again: {show_seconds(folder / 'synthetic'):.1f} s (records.jsonl: {size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
