"""ebl bench"""

from __future__ import annotations

import json
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ebl.bench import bench
from ebl.cli.flags import console, parse, pick_device
from ebl.errors import InputError


@dataclass(frozen=True)
class Arguments:
    """Measure this machine: matmul ceiling, the presets' training steps and tests, and the naive definition beside them."""

    device: str | None = None
    """cpu or cuda; cuda unless given, where there is a GPU."""
    repeats: int = 10
    """Steps to take the median of."""
    json: bool = False
    """Print JSON."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl bench", argv)
    if args.repeats < 1:
        raise InputError(f"--repeats {args.repeats}: use at least 1")
    found = bench(pick_device(args.device), args.repeats)
    if args.json:
        print(json.dumps(found))
        return
    title = f"{found['hardware']}: matmul ceiling {found['ceiling_tflops_per_second']:.3g} TFLOP/s"
    table = Table(
        *("preset", "path", "batch", "T", "K", "ms a step", "TFLOP/s", "of ceiling", "naive ms", "ratio", "T of a test"),
        *("s a test",),
        box=SIMPLE_HEAD,
    )
    for row in found["steps"]:
        counts = (row["batch"], row["free_iterations"], row["nudged_iterations"])
        speed = (f"{row['milliseconds']:.4g}", f"{row['tflops_per_second']:.3g}", f"{100 * row['share_of_ceiling']:.0f} %")
        beside = (f"{row['naive_milliseconds']:.4g}", f"{row['ratio']:.1f}")
        test = (
            str(row["test_iterations"]),
            f"{row['test_seconds']:.3f}" if row["test_seconds"] < 10 else f"{row['test_seconds']:.0f}",
        )
        table.add_row(row["preset"], row["engine"], *map(str, counts), *speed, *beside, *test)
    console.print(title, highlight=False, soft_wrap=True)
    (console if console.is_terminal else Console(width=150)).print(table)
    console.print(
        "random images (on a CPU two of them for the paper's network); naive: the definition in ebl/naive.py at the paper's "
        "T and K (quick: its own); a test is of 10,000 images (on a CPU reckoned from a batch)",
        highlight=False,
        soft_wrap=True,
    )
