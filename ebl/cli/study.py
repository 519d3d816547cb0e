"""ebl study"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebl.cli import study_run
from ebl.cli.flags import console, parse
from ebl.cli.matrix import show, wide
from ebl.errors import InputError, choose
from ebl.study.grid import BUILT_IN, read_study
from ebl.study.record import Record
from ebl.study.rows import rows
from ebl.study.store import STUDIES as STUDIES
from ebl.study.store import Store, open_store, records, waiting


@dataclass(frozen=True)
class Show:
    """Show what is done, running (and how far), failed and waiting, at any time and from any terminal."""

    study: tyro.conf.Positional[str]
    """A study's name or file, its store, or a folder of run folders."""
    json: bool = False
    """Print JSON: a line for each run."""


@dataclass(frozen=True)
class Merge:
    """Copy what other stores have into one; nothing in it is overwritten."""

    into: tyro.conf.Positional[Path]
    """The store to copy into; made if it is not there."""
    sources: tyro.conf.Positional[tuple[Path, ...]]
    """The stores to copy from."""


@dataclass(frozen=True)
class List:
    """List the built-in studies and the stores in runs/studies."""


Action = (
    Annotated[study_run.Run, tyro.conf.subcommand("run")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Merge, tyro.conf.subcommand("merge")]
    | Annotated[List, tyro.conf.subcommand("list")]
)


@dataclass(frozen=True)
class Arguments:
    """Studies: many runs, kept in one store."""

    action: tyro.conf.OmitSubcommandPrefixes[Action]


def run(argv: list[str]) -> None:
    if argv and not argv[0].startswith("-"):
        choose("action", argv[0], ("run", "show", "merge", "list"))
    action = parse(Arguments, "ebl study", argv).action
    if isinstance(action, study_run.Run):
        study_run.run(action)
    elif isinstance(action, Show):
        _show(action)
    elif isinstance(action, Merge):
        _merge(action)
    else:
        _list()


def _show(args: Show) -> None:
    found, store = _find(args.study)
    if args.json:
        row = rows(found)
        for record in found:
            c, final = record.config, record.final or {}
            line = {
                "key": record.key,
                "row": row[record.key],
                **{name: c[name] for name in ("rule", "dataset", "seed", "epochs")},
            }
            line |= {"status": record.status, "epoch": record.epoch, "collapsed": record.collapsed, "error": record.error}
            line |= {name: final.get(name) for name in ("test_error", "train_error")} | {"seconds": record.seconds}
            print(json.dumps(line))
        return
    show(found, store)


def _find(name: str) -> tuple[list[Record], Store | None]:
    """The runs of a study, its store, or a folder; of a study that was never run, what it would run."""
    folder = Path(name).expanduser()
    if (STUDIES / name / "study.json").exists():
        folder = STUDIES / name
    elif folder.is_dir() and name not in BUILT_IN:
        pass
    else:
        stores = [path.parent.name for path in STUDIES.glob("*/study.json")]
        if folder.suffix not in (".yaml", ".yml"):
            choose("study", name, dict.fromkeys([*BUILT_IN, *sorted(stores)]))
        study = read_study(name)
        folder = STUDIES / study.name
        if not (folder / "study.json").exists():
            return [waiting(cell) for cell in study.cells], None
    return records(folder), open_store(folder) if (folder / "study.json").exists() else None


def _merge(args: Merge) -> None:
    from ebl.study.merge import KINDS, merge

    counts = merge(args.into, args.sources)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
    console.print(f"{args.into}: {said or 'no runs to copy'}", highlight=False, soft_wrap=True)


def _list() -> None:
    table = Table("study", "runs", "done", "what", box=SIMPLE_HEAD)
    stores = {path.parent.name: path.parent for path in sorted(STUDIES.glob("*/study.json"))}
    for name in BUILT_IN:
        study = read_study(name)
        done, trouble = _done(stores.pop(name, None))
        table.add_row(name, str(len(study.cells)), done, trouble or study.description)
    for name, folder in stores.items():
        done, trouble = _done(folder)
        store = Store(folder)
        table.add_row(name, "" if trouble else str(len(store.cells())), done, trouble or store.about.get("description", ""))
    wide(console).print(table)


def _done(folder: Path | None) -> tuple[str, str]:
    """How many runs of a store are done; what is wrong with it, if it cannot be read."""
    if folder is None:
        return "", ""
    try:
        store = open_store(folder)
        return str(sum(store.is_done(key) for key in store.cells())), ""
    except InputError as error:
        return "", str(error)
