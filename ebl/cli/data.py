"""ebl data"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from ebl.cli.flags import console, parse
from ebl.data import SPECS, load
from ebl.data.files import check, data_folder, find, whereabouts
from ebl.data.sources import FORMS
from ebl.errors import InputError, choose


@dataclass(frozen=True)
class Arguments:
    """Datasets: list what there is, fetch one, or check the hashes of one (or all that are here) again."""

    action: tyro.conf.Positional[str]
    """list, fetch or check"""
    name: tyro.conf.Positional[str | None] = None
    """The dataset."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl data", argv)
    root = data_folder(args.data_dir)
    action = choose("action", args.action, ("list", "fetch", "check"))
    if args.name is not None:
        choose("dataset", args.name, SPECS)
    if action == "fetch":
        if args.name is None:
            raise InputError(f"ebl data fetch needs a dataset: one of {', '.join(FORMS)}")
        if args.name in FORMS:
            fetch_shown(args.name, root)
            return
        console.print(f"{args.name} comes with the package", highlight=False)
        return
    if action == "check":
        _check_data([args.name] if args.name else list(SPECS), root)
        return
    table = Table("dataset", "images", "classes", "files", box=SIMPLE_HEAD)
    for name, entry in SPECS.items():
        if args.name not in (None, name):
            continue
        where = whereabouts(name, root) if name in FORMS else "in the package"
        table.add_row(name, f"{entry.channels}×{entry.size[0]}×{entry.size[1]}", str(entry.num_classes), where)
    console.print(table)


def _check_data(names: list[str], root: Path) -> None:
    """Check each set's hashes again, say what was found, and fail at the end if any was wrong."""
    wrong = []
    for name in names:
        try:
            if len(names) > 1 and name in FORMS and whereabouts(name, root) == "not here":
                lines = [f"{name}: not here"]
            elif name in FORMS:
                lines = check(name, find(name, root), again=True)
            else:
                load(name)
                lines = [f"{name}: in the package, as it should be"]
        except InputError as error:
            lines = [str(error)]
            wrong.append(name)
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if wrong:
        raise InputError(f"wrong or missing: {', '.join(wrong)}; fetch what is damaged again with `ebl data fetch NAME`")


def fetch_shown(name: str, root: Path) -> None:
    from ebl.data.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        paths = fetch(name, root, progress)
    console.print(f"{name}: {', '.join(map(str, paths))}", highlight=False, soft_wrap=True)
