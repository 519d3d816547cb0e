"""ebl evaluate"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from rich.table import Table

from ebl.cli.flags import console, parse, read_omega
from ebl.data import load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data
from ebl.engine import evaluate_as
from ebl.train import load_run, test_schedule


@dataclass(frozen=True)
class Arguments:
    """Test a trained network."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    iterations: int | None = None
    """Iterations of the relaxation, if not those of the run's own tests."""
    omega: str | None = None
    """Over-relaxation, if not the config's."""
    device: str = "cpu"
    """cpu or cuda"""
    dataset: str | None = None
    """Where data of your own are now, if they moved since."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    json: bool = False
    """Print JSON."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl evaluate", argv)
    config, net = load_run(args.run, args.device, args.dataset)
    schedule = test_schedule(args.run, config)
    if args.iterations is not None:
        schedule = replace(schedule, iterations=args.iterations)
    if args.omega is not None:
        schedule = replace(schedule, omega=read_omega(args.omega))
    data = load(config.dataset, args.data_dir)
    check_data(args.run, data)
    batches = Batches(data.test.to(args.device), config.entry, config.test_batch_size)
    found = evaluate_as(config.precision, net, batches, schedule)
    if args.json:
        print(json.dumps({"run": str(args.run), "dataset": config.dataset, "split": "test", **found}))
        return
    table = Table("test set of", "error %", "top-5 error %", "cost", "residual", "iterations")
    errors = (f"{100 * found[name]:.2f}" for name in ("error", "top5_error"))
    table.add_row(config.dataset, *errors, f"{found['cost']:.4g}", f"{found['residual']:.1e}", f"{found['iterations']:.4g}")
    console.print(table)
