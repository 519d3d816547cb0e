"""ebl study run"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ebl.cli.flags import console
from ebl.cli.matrix import duration, show, title, totals, wide
from ebl.errors import InputError, choose
from ebl.rules import RULES
from ebl.study.executor import Executor
from ebl.study.grid import Cell, narrowed, read_study, with_settings
from ebl.study.local import Local, OnLocal
from ebl.study.on_ray import OnRay, Ray
from ebl.study.on_slurm import OnSlurm, Slurm
from ebl.study.rows import rows
from ebl.study.runner import check_data, run_study
from ebl.study.settings import checked, flat_config, relaxation_of
from ebl.study.store import STUDIES, Store, check_folder, make_store, open_store, waiting

EXECUTORS: dict[str, Callable[[Any, str], Executor]] = {"local": OnLocal, "ray": OnRay, "slurm": OnSlurm}


@dataclass(frozen=True)
class Run:
    """Run a study, or what is left of it: what is done is kept, what failed is tried again. Killed, the same line goes on."""

    study: tyro.conf.Positional[str]
    """quick, table1, table2, table3, table6 (see `ebl study list`), or a YAML file of your own."""
    rules: tuple[str, ...] = ()
    """Only these rules; those the study does not have are added."""
    datasets: tuple[str, ...] = ()
    """Only these datasets; those the study does not have are added."""
    seeds: tuple[int, ...] = ()
    """Only these seeds; those the study does not have are added."""
    epochs: int | None = None
    """Epochs of every run."""
    set: tuple[str, ...] = ()
    """Other settings of every run, as key=value: --set beta=0.1 free.iterations=20 model.hidden=[16,32]."""
    relax: str | None = None
    """A preset whose relaxation every run takes, such as fast: over-relaxed, free phases only as long as they need."""
    device: str | None = None
    """cpu or cuda, if not what the study says."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    store: Path | None = None
    """Where the study is kept; runs/studies/NAME unless given."""
    on: str = "local"
    """Where runs are made: local (this machine), ray or slurm (see docs/clusters.md)."""
    local: Annotated[Local, tyro.conf.arg(name="")] = field(default_factory=Local)
    ray: Ray = field(default_factory=Ray)
    slurm: Slurm = field(default_factory=Slurm)
    retries: int = 2
    """How often a run that failed is tried again."""
    dry_run: bool = False
    """Only list the runs, with an estimate of their time."""


def run(args: Run) -> None:
    study = read_study(args.study)
    cells = _cells(args, study.cells)
    if args.retries < 0:
        raise InputError(f"--retries {args.retries}: use 0 or more")
    _check_executor(args)
    if args.data_dir is not None:
        os.environ["EBL_DATA"] = str(args.data_dir.expanduser().resolve())
    folder = args.store or STUDIES / study.name
    if args.dry_run:
        _dry_run(cells, folder, args)
        return
    check_data(cells)
    done = open_store(folder).is_done if (folder / "study.json").exists() else lambda key: False
    left = [cell for cell in cells if not done(cell.key)]
    executor = _executor(args, left) if left else None
    store = make_store(folder, study.name, study.description)
    if executor is not None:
        if not console.is_terminal:  # where no bar moves
            console.print(
                f"{len(left)} of {len(cells)} runs to make: a line for each; {folder}", highlight=False, soft_wrap=True
            )
        _run_shown(store, cells, executor, args.retries)
    asked = {cell.key for cell in cells}
    found = [record for record in store.records() if record.key in asked]
    show(found, store)
    if any(record.status == "failed" for record in found):
        sys.exit(1)


def _cells(args: Run, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The study's cells as the flags narrow and change them."""
    for rule in args.rules:
        choose("--rules", rule, RULES)
    settings: dict[str, Any] = {}
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text}: give key=value, such as --set beta=0.1")
        settings |= checked({key: _value(value)}, "--set")
    if args.relax is not None:
        settings = relaxation_of(args.relax) | settings
    for name in ("epochs", "device"):
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    for key, values in (("rule", args.rules), ("dataset", args.datasets), ("seed", args.seeds)):
        cells = narrowed(cells, key, values)
    changed = with_settings(cells, settings)
    if len(changed) < len(cells):
        told = f"settings given here make {len(cells)} runs of the study {len(changed)}: the others would be the same runs"
        console.print(told, highlight=False, soft_wrap=True)
    return changed


def _check_executor(args: Run) -> None:
    """An error for flags that would do nothing, since runs are made elsewhere."""
    choose("--on", args.on, EXECUTORS)
    for name, prefix in (("local", "--"), ("ray", "--ray."), ("slurm", "--slurm.")):
        given, default = vars(getattr(args, name)), vars(type(getattr(args, name))())
        changed = [key for key in given if given[key] != default[key]]
        if changed and name != args.on and not (args.dry_run and name == "local"):  # --processes: an estimate is divided by it
            value = given[changed[0]]
            flag = f"{prefix}{changed[0].replace('_', '-')} {' '.join(value) if isinstance(value, tuple) else value}"
            mend = f"add --on {name}, or leave it out" if args.on == "local" else "leave it out"
            raise InputError(f"{flag} is for --on {name}, runs are made on {args.on}: {mend}")


def _value(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _executor(args: Run, cells: Sequence[Cell]) -> Executor:
    _check_devices(args, cells)
    return EXECUTORS[args.on](getattr(args, args.on), max(_devices(cells)))  # cuda where there are both


def _check_devices(args: Run, cells: Sequence[Cell]) -> None:
    for device in _devices(cells):
        getattr(args, args.on).check_device(device)


def _devices(cells: Sequence[Cell]) -> list[str]:
    return sorted({cell.config.device for cell in cells})


def _run_shown(store: Store, cells: Sequence[Cell], executor: Executor, retries: int) -> None:
    """Run a study with a bar over all epochs and a line for each run that ends."""
    row = rows([waiting(cell) for cell in cells])
    names = {cell.key: title(row[cell.key], flat_config(cell.config)) for cell in cells}
    epochs = {cell.key: cell.config.epochs for cell in cells}
    finished = {key: store.epochs(key) for key in epochs}
    done = {key for key in epochs if store.is_done(key)}
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("epochs"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, speed_estimate_period=86400) as bar:
        task = bar.add_task(
            f"{len(done)} of {len(epochs)} runs done", total=sum(epochs.values()), completed=sum(finished.values())
        )
        running: set[str] = set()

        def tell(event: dict[str, Any]) -> None:
            kind, key = event["event"], event.get("key", "")
            if kind == "progress":
                finished.update(event["epochs"])
                running.clear()
                running.update(set(event["running"]) - done)
            if key in names and kind == "done":
                done.add(key)
                finished[key] = epochs[key]
                running.discard(key)
            if key in names and (said := _said(event)):
                bar.console.print(f"{escape(names[key])}: {said}", highlight=False, soft_wrap=True)
            now = f", {len(running)} running" if running else ""
            bar.update(task, completed=sum(finished.values()), description=f"{len(done)} of {len(epochs)} runs done{now}")

        run_study(store, cells, executor, retries=retries, watch=tell)


def _said(event: dict[str, Any]) -> str:
    """What an event is to the user."""
    if event["event"] == "done":
        errors = f"test error {100 * event['test_error']:.2f} %, train error {100 * event['train_error']:.2f} %"
        return f"{errors}, {duration(event['seconds'])}" + (", collapsed" if event["collapsed"] else "")
    if event["event"] == "warning":
        return f"[yellow]warning[/]: {escape(event['message'])}"
    return f"[red]failed[/]: {escape(event['error'])}" if event["event"] == "failed" else ""


def _dry_run(cells: Sequence[Cell], folder: Path, args: Run) -> None:
    from ebl.study.estimate import estimates

    there = {r.key: r for r in open_store(folder).records()} if (folder / "study.json").exists() else {}
    found = [there.get(cell.key) or waiting(cell) for cell in cells]
    seconds, sources = estimates(cells, list(there.values()))
    row = rows(found)
    table = Table("run", "dataset", "seed", "epochs", "state", "time left", box=SIMPLE_HEAD)
    for record in found:
        c, left = record.config, seconds.get(record.key)
        epochs = f"{record.epoch}/{c['epochs']}"
        what = (escape(row[record.key]), escape(c["dataset"]), str(c["seed"]), epochs, record.status)
        table.add_row(*what, "" if left is None else duration(left))
    wide(console).print(table)
    total = sum(seconds.values())
    said, processes = totals(found), args.local.processes
    if seconds:
        said += f"; {duration(total)} one at a time"
        if processes:
            said += f", {duration(total / processes)} with {processes} that do not slow each other down"
    if sources:
        said += f" ({'; '.join(sources)})"
    console.print(said, highlight=False, soft_wrap=True, markup=False)
    waits = [cell for cell, record in zip(cells, found, strict=True) if record.status != "done"]
    for check in (lambda: check_data(cells), lambda: _check_devices(args, waits), lambda: check_folder(folder)):
        try:
            check()
        except InputError as error:
            console.print(f"before it can start: {error}", highlight=False, soft_wrap=True, markup=False)
