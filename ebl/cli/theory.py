"""ebl theory"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ebl.atomic import write_atomically
from ebl.cli.flags import console, errors, parse
from ebl.config import build_network
from ebl.data import load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data
from ebl.errors import InputError
from ebl.presets import preset
from ebl.provenance import provenance
from ebl.theory import report
from ebl.theory.phases import ITERATIONS, TOLERANCE
from ebl.theory.subjects import blamed, find_subject
from ebl.train import load_run, train

Topic = Literal["statements", "counter-examples", "rules", "settling", "all"]


@dataclass(frozen=True)
class Arguments:
    """Check the paper's theorems on an energy. Exit code 1 if a statement fails.

    statements: a table of theorems with measured figure, tolerance and verdict

    counter-examples: a step of all nine rules on the appendix's two energies

    rules: the seven rules on an energy of two outputs

    settling: iterations to reach a residual, for orders and factors; trains the quick preset unless --net names a run

    A class for --net is made without arguments and gives a torch.nn.Module with init_state(x) and energy(x, state). A method
    example() may return (x, y): input and target, or labels. Otherwise both are random, of shapes that fit.
    """

    topic: tyro.conf.Positional[Topic] = "statements"
    """What to check."""
    net: str | None = None
    """Your energy, FILE.py:Class (the file is executed), or the folder of a run."""
    images: int = 4
    """Test images, where --net is a run (32 for settling)."""
    seed: int = 0
    """Of random parameters, inputs and targets of --net FILE.py:Class."""
    tolerance: float = TOLERANCE
    """The residual at which a phase counts as settled."""
    iterations: int = ITERATIONS
    """The most a phase may take."""
    out: Path | None = None
    """A folder for theory.md (the tables), theory.json and the pictures (PNG and PDF)."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    json: bool = False
    """Print JSON."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl theory", argv)
    if not 0 < args.tolerance <= 1e-9:
        raise InputError(f"--tolerance {args.tolerance:g}: use 1e-9 or less: what is measured is a few millionths")
    if args.iterations < 1:
        raise InputError(f"--iterations {args.iterations}: use a positive number such as {ITERATIONS}")
    if args.net is not None and args.topic not in ("statements", "settling"):
        raise InputError(f"--net {args.net} with {args.topic}: it goes with statements and settling")
    if args.out is not None:
        if args.out.exists() and not args.out.is_dir():
            raise InputError(f"{args.out} is a file: give --out a folder")
        args.out.mkdir(parents=True, exist_ok=True)
    topics = ("statements", "counter-examples", "rules", "settling") if args.topic == "all" else (args.topic,)
    parts = {topic: _part(topic, args) for topic in topics}
    if args.json:
        print(json.dumps({topic: part.data for topic, part in parts.items()}))
    else:
        for part in parts.values():
            _show(part)
    if args.out is not None:
        _write(args.out, parts)
    if any(part.failed for part in parts.values()):
        sys.exit(1)


def _part(topic: str, args: Arguments) -> report.Part:
    with _Bar(topic) as bar:
        if topic == "counter-examples":
            return report.counterexamples_part()
        if topic == "rules":
            return report.rules_part()
        if topic == "settling":
            return report.settling_part(_networks(args, bar), told=bar.told)
        subject = None if args.net is None else find_subject(args.net, args.images, args.seed, args.data_dir)
        with blamed(args.net):
            return report.statements_part(subject, args.tolerance, args.iterations, bar.told)


def _networks(args: Arguments, bar: _Bar) -> dict[str, Any]:
    """A fresh and a trained network on test images of the data it was trained on."""
    with tempfile.TemporaryDirectory() as scratch:
        if args.net is None:
            folder = (args.out or Path(scratch)) / "trained"
            train(preset("quick"), folder, resume=True, watch=bar.training)
        else:
            folder = Path(args.net)
        config, trained = load_run(folder)
        data = load(config.dataset, args.data_dir)
        check_data(folder, data)
    x, _ = next(Batches(data.test, config.entry, 32).in_order())
    return {"fresh": (build_network(config), x), "trained": (trained, x)}


def _show(part: report.Part) -> None:
    wide = console if console.is_terminal else Console(width=200)
    table = Table(*part.head, box=SIMPLE_HEAD)
    colours = {"holds": "green", "fails": "red"}
    for row in part.rows:
        colour = colours.get(row[-1], "yellow" if row[-1].startswith(("assumption", "not")) else "")
        table.add_row(*row[:-1], f"[{colour}]{row[-1]}[/]" if colour else row[-1])
    wide.print(part.title, highlight=False, soft_wrap=True)
    wide.print(table)
    if part.note:
        wide.print(part.note, highlight=False, soft_wrap=True)


def _write(out: Path, parts: dict[str, report.Part]) -> None:
    text = "\n".join(f"{part.title}\n\n{part.markdown()}\n{part.note}\n" for part in parts.values())
    write_atomically(out / "theory.md", text.encode())
    data = {topic: part.data for topic, part in parts.items()} | {"made_with": provenance(torch.device("cpu"))}
    write_atomically(out / "theory.json", (json.dumps(data, indent=2) + "\n").encode())
    with _Bar("pictures"):
        pictures = [path for part in parts.values() for path in part.draw(out)]
    saved = ", ".join(map(str, [out / "theory.md", out / "theory.json", *pictures]))
    errors.print(f"saved: {saved}", highlight=False, soft_wrap=True)


class _Bar:
    """Progress on stderr, gone when done."""

    def __init__(self, name: str):
        self.name, self.said = name, False
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )
        self.task = self.bar.add_task(name, total=None)

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, what: str) -> None:
        """Once, where no bar moves."""
        if not self.said and not errors.is_terminal:
            errors.print(f"{self.name}: {what}; it may take some minutes", highlight=False)
        self.said = True

    def told(self, done: int, total: int) -> None:
        self.say("under way")
        self.bar.update(self.task, description=self.name, completed=done, total=total)

    def training(self, event: dict[str, Any]) -> None:
        if "steps" in event:
            self.say("training the quick preset first")
            done = (event["epoch"] - 1) * event["steps"] + event["step"]
            total = preset("quick").epochs * event["steps"]
            self.bar.update(self.task, description="training the quick preset", completed=done, total=total)
