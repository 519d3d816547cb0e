"""ebl presets"""

from __future__ import annotations

from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ebl.cli.flags import console, parse
from ebl.presets import PRESETS


@dataclass(frozen=True)
class Arguments:
    """List the presets and their main settings."""


def run(argv: list[str]) -> None:
    parse(Arguments, "ebl presets", argv)
    table = Table(
        *("preset", "dataset", "beta", "T", "settle", "K", "omega", "gains", "rates", "decay", "epochs"), box=SIMPLE_HEAD
    )
    for name, (_, c) in PRESETS.items():
        free = (f"≤ {c.free.iterations}", f"{c.settle:g}") if c.settle else (str(c.free.iterations), "")
        omega = ", ".join(dict.fromkeys(f"{phase.omega}".removesuffix(".0") for phase in (c.free, c.nudged)))
        trained = (_few(c.model.gains), _few(c.optimiser.rates), str(c.optimiser.weight_decay), str(c.epochs))
        table.add_row(name, c.dataset, str(c.beta or "rule's"), *free, str(c.nudged.iterations), omega, *trained)
    wide = console if console.is_terminal else Console(width=165)
    wide.print(table)
    for name, (what, _) in PRESETS.items():
        wide.print(f"{name:18s} {what}", highlight=False)


def _few(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:g}" for v in (values[:1] if len(set(values)) == 1 else values))
