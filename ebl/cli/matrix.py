"""What a study looks like in a terminal: the matrix of its runs, what runs now, what failed."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ebl.cli.flags import console
from ebl.study.record import Record
from ebl.study.rows import STATES, Place, places, rows
from ebl.study.store import Store

SHOWN = 20  # lines about single runs


def show(found: Sequence[Record], store: Store | None) -> None:
    """Print all of it."""
    out = wide(console)
    if not found:
        console.print("no runs were asked for yet")
        return
    out.print(matrix(found))
    out.print(news(found, store), highlight=False, soft_wrap=True)
    where = f"; {store.folder}" if store is not None else ""
    console.print(f"{totals(found)}{where}", highlight=False, soft_wrap=True, markup=False)


def matrix(records: Sequence[Record]) -> Table:
    """Rows by datasets with the mean test error; for one dataset, more of each row."""
    found = places(records)
    names, datasets = list(dict.fromkeys(r for r, _ in found)), list(dict.fromkeys(d for _, d in found))
    if len(datasets) > 1:
        table = Table("test error %", *map(escape, datasets), box=SIMPLE_HEAD)
        for name in names:
            table.add_row(escape(name), *(_brief(found.get((name, dataset))) for dataset in datasets))
        return table
    table = Table(escape(datasets[0]), "test error %", "train error %", "seconds", "done", "", box=SIMPLE_HEAD)
    for name in names:
        place = found[name, datasets[0]]
        errors = [_percent(place.mean(f"{part}_error")) for part in ("test", "train")]
        seconds = place.mean("seconds")
        states = ", ".join(_states(place))
        table.add_row(escape(name), *errors, "" if seconds is None else f"{seconds:.0f}", _share(place), states)
    return table


def news(records: Sequence[Record], store: Store | None) -> Group:
    """A line for each run that is going on, and for each that failed."""
    row = rows(records)
    lines = [_running(r, row[r.key], store) for r in records if r.status == "running"]
    failed = [r for r in records if r.status == "failed"]
    for record in failed[:SHOWN]:
        lines.append(f"failed: {title(row[record.key], record.config)}: {record.error}")
    if len(failed) > SHOWN:
        lines.append(f"failed: {len(failed) - SHOWN} more")
    again = [r for r in records if r.status == "waiting" and r.error]
    lines += [f"failed, waits to be tried again: {title(row[r.key], r.config)}: {r.error}" for r in again[:SHOWN]]
    if len(again) > SHOWN:
        lines.append(f"failed, waits to be tried again: {len(again) - SHOWN} more")
    if (failed or again) and store is not None:
        lines.append(f"tracebacks: {store.folder}/failures; the same `ebl study run` tries failed runs again")
    return Group(*(Text(line) for line in lines))


def totals(records: Sequence[Record]) -> str:
    """How many runs are in each state."""
    counts = Counter(record.status for record in records)
    collapsed = sum(record.collapsed for record in records)
    said = [f"{counts['done']} of {len(records)} runs done" + (f" ({collapsed} collapsed)" if collapsed else "")]
    return ", ".join(said + [f"{counts[state]} {state}" for state in STATES[1:] if counts[state]])


def title(row: str, config: dict[str, Any]) -> str:
    return f"{row} on {config['dataset']}, seed {config['seed']}"


def duration(seconds: float) -> str:
    """Short, and no more exact than it is."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def wide(console: Console) -> Console:
    """Files and pipes have no width: enough for every column."""
    return console if console.is_terminal else Console(width=140)


def _brief(place: Place | None) -> str:
    if place is None:
        return ""
    error = _percent(place.mean("test_error"))
    return " ".join([error or "–", f"({', '.join([_share(place), *_states(place)])})"])


def _share(place: Place) -> str:
    return f"{len(place.done)}/{len(place.records)}"


def _states(place: Place) -> list[str]:
    said = [f"{place.states[state]} {state}" for state in ("running", "failed") if place.states[state]]
    return said + ([f"{place.collapsed} collapsed"] if place.collapsed else [])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _running(record: Record, row: str, store: Store | None) -> str:
    """How far a run is: epochs, and the time since it was begun or since its last epoch and until its end."""
    seconds, epochs = record.curves.get("seconds", []), record.config["epochs"]
    said = f"running: {title(row, record.config)}: {record.epoch} of {epochs} epochs"
    if seconds:
        each = sum(seconds) / len(seconds)
        said += f", {duration(each)} each, about {duration(each * (epochs - record.epoch))} left"
    holder = store.holder(record.key) if store is not None else None
    if holder and "time" in holder:
        since = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(holder["time"])
        said += f"; for {duration(since.total_seconds())} on {holder['host']}, process {holder['pid']}"
    return said
