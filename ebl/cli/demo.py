"""ebl demo"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ebl.cli.flags import console, parse


@dataclass(frozen=True)
class Arguments:
    """Train all nine rules on the embedded data and compare them: a table, two pictures. Killed, it goes on where it was."""

    out: Path = Path("runs/demo")
    """Where runs and pictures go."""
    epochs: int = 3
    """Epochs of each rule."""
    processes: int = 2
    """Rules trained at a time, with one thread each."""


def run(argv: list[str]) -> None:
    from ebl.demo import demo

    args = parse(Arguments, "ebl demo", argv)
    demo(args.out, args.epochs, args.processes, console)
