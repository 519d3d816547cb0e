"""A store keeps a study: what is to be run, what was run, what went wrong. It is a folder:

    study.json         format, name, description
    cells.jsonl        the runs that were asked for: key, config, label; of two lines with one key the later counts
    runs/KEY/          the run folder `ebl train` makes
    events.jsonl       what happened to each cell: claimed, done, failed, again (it failed, but will be tried again), warning;
                       with attempt, host, pid, time
    claims/KEY         held (flock) by the process that works on the cell
    failures/KEY.txt   tracebacks, attempt by attempt
    logs/KEY.log       what the workers said
    records.jsonl      a record of each finished run, so that thousands are read in seconds; may be deleted at any time

Nothing is ever rewritten: lines are appended, under a lock, and run folders are written as `ebl.train` does. So it can be
killed, copied, extended and merged at any time. A run is done when its folder has a result.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebl.atomic import read_json, read_lines, write_atomically
from ebl.config import Config, from_json
from ebl.errors import InputError
from ebl.study.grid import Cell
from ebl.study.journal import append, claimed, holder, readable, whoami
from ebl.study.record import Record, read_run

log = logging.getLogger("ebl")

STUDIES = Path("runs/studies")  # where stores are unless another folder is named
FORMAT = 1
INDEX = 1  # format of records.jsonl: other lines are left out and read again from the run folders
FOLDERS = ("runs", "claims", "failures", "logs")


def records(folder: str | Path) -> list[Record]:
    """What is known of each run of a store, or of each run folder in a plain folder."""
    folder = Path(folder)
    if (folder / "study.json").exists():
        return open_store(folder).records()
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give a study's store or a folder of run folders")
    found = [read_run(path.parent) for path in sorted(folder.glob("*/config.json"))]
    if not found:
        raise InputError(f"{folder} holds no runs: give a study's store, or a folder of run folders")
    return found


def open_store(folder: str | Path) -> Store:
    """A store that is there; an error for what is none, or is a newer version's."""
    folder = Path(folder)
    if not (folder / "study.json").is_file():
        raise InputError(f"{folder} is not a study's store: it has no study.json; give a folder that `ebl study run` made")
    about = read_json(folder / "study.json")
    if not isinstance(about.get("format"), int):
        raise InputError(f"{folder / 'study.json'} is damaged: it gives no format; restore it, or use another --store")
    if about["format"] > FORMAT:
        raise InputError(
            f"{folder} was made by a newer version of ebl (format {about['format']}, this one reads {FORMAT}): update ebl"
        )
    return Store(folder)


def make_store(folder: str | Path, name: str, description: str = "") -> Store:
    """The store in this folder, made if it is not there yet."""
    folder = Path(folder)
    if (folder / "study.json").exists():
        store = open_store(folder)
        _make_folders(folder)  # a copy may lack those that were empty
        return store
    check_folder(folder)
    try:
        _make_folders(folder)
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror}): choose another --store") from error
    about = {"format": FORMAT, "name": name, "description": description}
    write_atomically(folder / "study.json", (json.dumps(about, indent=2) + "\n").encode())
    return Store(folder)


def check_folder(folder: Path) -> None:
    """An error if a store cannot be in this folder; nothing is made."""
    if (folder / "study.json").exists():
        open_store(folder)
        return
    try:
        if folder.exists() and any(p.name not in FOLDERS and p.suffix != ".part" for p in folder.iterdir()):
            raise InputError(f"{folder} holds other things and no study: choose another --store")
    except OSError as error:
        raise InputError(f"{folder} cannot be used ({error.strerror}): choose another --store") from error
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written" if there.is_dir() else "is no folder"
        raise InputError(f"{folder} cannot be used ({there} {why}): choose another --store")


def waiting(cell: Cell) -> Record:
    """The record of a run that nobody has begun."""
    return Record(cell.key, _as_json(cell.config), "waiting", label=cell.label)


@dataclass(frozen=True)
class Store:
    """A store, by its folder: open it with `open_store` or `make_store`."""

    folder: Path

    @property
    def about(self) -> dict[str, Any]:
        return read_json(self.folder / "study.json")

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"

    def run_folder(self, key: str) -> Path:
        return self.folder / "runs" / key

    def add(self, cells: Iterable[Cell]) -> None:
        """Ask for these runs, beside those that were asked for."""
        there = self.cells()
        lines: list[dict[str, Any]] = [{"key": c.key, "config": _as_json(c.config), "label": c.label} for c in cells]
        if new := [line for line in lines if there.get(line["key"]) != line]:
            append(self.folder / "cells.jsonl", new)

    def cells(self) -> dict[str, dict[str, Any]]:
        """The line of each run that was asked for, by key."""
        return {line["key"]: line for line in read_lines(self.folder / "cells.jsonl")}

    def config(self, key: str) -> Config:
        """What to train for a cell: what its run was begun with, if it was."""
        begun = self.run_folder(key) / "config.json"
        if begun.exists():
            return from_json(begun.read_text(encoding="utf-8"), str(begun))
        line = self.cells().get(key)
        if line is None:
            raise InputError(f"{key} is no cell of {self.folder}: see `ebl study show`")
        return from_json(json.dumps(line["config"]), f"{self.folder}/cells.jsonl")

    def is_done(self, key: str) -> bool:
        return (self.run_folder(key) / "result.json").exists()

    def epochs(self, key: str) -> int:
        """How many epochs a run has finished."""
        try:
            return (self.run_folder(key) / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Hold a cell as long as the block lasts; False if somebody else does."""
        return claimed(self.folder / "claims" / key)

    def holder(self, key: str) -> dict[str, Any] | None:
        """Who works on a cell: host, pid, time."""
        return holder(self.folder / "claims" / key)

    def tell(self, event: str, key: str, **more: Any) -> None:
        append(self.events, [{"event": event, "key": key, **more, **whoami()}])

    def attempts(self, key: str) -> int:
        """How often a cell has failed."""
        return sum(event.get("event") == "failed" and event.get("key") == key for event in read_lines(self.events))

    def finish(self, key: str) -> Record:
        """Keep the record of a run that ended."""
        record = read_run(self.run_folder(key))
        append(self.folder / "records.jsonl", [self._line(record)])
        return record

    def records(self) -> list[Record]:
        """One for each cell that was asked for, in that order."""
        with _no_collection():
            done, failures = self._finished(), self.failures()
            return [self._record(line, done, failures) for line in self.cells().values()]

    def _record(self, line: dict[str, Any], done: dict[str, Record], failures: dict[str, dict[str, Any]]) -> Record:
        key = line["key"]
        record = done.get(key)
        if record is None:
            begun = (self.run_folder(key) / "config.json").exists()
            record = self._read(key) if begun else Record(key, line["config"], "waiting")
        if record.status == "waiting":
            failure = failures.get(key, {"again": True})
            status = "running" if self.holder(key) is not None else "waiting" if failure.get("again") else "failed"
            record = replace(record, status=status, error="" if status == "running" else failure.get("error", ""))
        return replace(record, config=record.config or line["config"], label=line.get("label", ""))

    def _read(self, key: str) -> Record:
        """The record of a run folder; if it is damaged, that is its error."""
        folder = self.run_folder(key)
        try:
            return read_run(folder)
        except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
            said = str(error).partition(": restore")[0] if isinstance(error, InputError) else repr(error)
            return Record(key, {}, "failed", error=f"{said}: restore it, or remove {folder} to train it anew")

    def failures(self) -> dict[str, dict[str, Any]]:
        """The last event of each cell whose last attempt failed; with `again` if whoever runs the study will try it again."""
        found: dict[str, dict[str, Any]] = {}
        for event in read_lines(self.events):
            if event.get("event") == "failed":
                found[event["key"]] = event
            elif event.get("event") == "again" and event.get("after") == mark(found.get(event["key"], {})):
                found[event["key"]] = {**found[event["key"]], "again": True}
            elif event.get("event") in ("done", "claimed"):
                found.pop(event["key"], None)
        return found

    def _finished(self) -> dict[str, Record]:
        """The finished runs: from records.jsonl, and from the folders of those it does not have as they are now."""
        path = self.folder / "records.jsonl"
        lines = {line["key"]: line for line in _readable_index(path)}
        found, new = {}, []
        for key, stamp in self._results():
            line = lines.get(key)
            if line is not None and line["stamp"] == stamp:
                found[key] = Record(**line["record"])
            else:
                found[key] = self._read(key)
                if found[key].status == "done":
                    new.append(self._line(found[key]))
        if new:
            try:
                append(path, new)
            except InputError as error:
                log.info("the records could not be kept: %s", error)
        return found

    def _results(self) -> Iterator[tuple[str, list[int]]]:
        """Each finished run's key, and what changes with its result.json."""
        folder = self.folder / "runs"
        for key in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208 - names are all we need of thousands
            try:
                stat = os.stat(f"{folder}/{key}/result.json")  # noqa: PTH116
            except OSError:
                continue
            yield key, [stat.st_size, stat.st_mtime_ns]

    def _line(self, record: Record) -> dict[str, Any]:
        stat = (self.run_folder(record.key) / "result.json").stat()
        values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        return {"index": INDEX, "key": record.key, "stamp": [stat.st_size, stat.st_mtime_ns], "record": values}


def mark(failure: dict[str, Any]) -> list[Any]:
    """What tells a failure from others of its cell."""
    return [failure.get(name) for name in ("attempt", "time", "error")]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector, which takes half the time to find nothing among thousands of records."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _make_folders(folder: Path) -> None:
    for part in FOLDERS:
        (folder / part).mkdir(parents=True, exist_ok=True)


def _readable_index(path: Path) -> list[dict[str, Any]]:
    try:
        lines = readable(path.read_bytes())
    except FileNotFoundError:
        return []
    return [line for line in lines if line.get("index") == INDEX]


def _as_json(config: Config) -> dict[str, Any]:
    """The config as it is read back from a JSON file."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found
