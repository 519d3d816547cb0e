"""Bringing stores of one study together, such as those of several machines."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ebl.atomic import disk_error, read_lines, write_atomically
from ebl.errors import InputError
from ebl.study.journal import append
from ebl.study.store import Store, make_store, open_store

KINDS = ("done", "begun", "failed", "already here", "in use")


def merge(into: Path, sources: Sequence[Path], watch: Callable[[str, str], None] | None = None) -> Counter[str]:
    """Copy runs that `into` does not have, done or only begun, what was asked for and what failed; nothing in it is
    overwritten. How many were copied (done, begun, failed before they had begun), were there already, or are being worked on.
    `watch` is told of each run and its kind."""
    stores = [open_store(source) for source in sources]
    if not stores:
        raise InputError("nothing to merge: name the store to merge into, then those to merge")
    first = stores[0].about
    target = make_store(into, first.get("name", into.name), first.get("description", ""))
    counts: Counter[str] = Counter()
    for store in stores:
        if store.folder.resolve() == target.folder.resolve():
            raise InputError(f"{store.folder} cannot be merged into itself: name another store")
        there = target.cells()
        if missing := [line for key, line in store.cells().items() if key not in there]:
            append(target.folder / "cells.jsonl", missing)
        failures, attempted = store.failures(), _last_attempts(target)
        for key in store.cells():
            kind = _merge_run(store, target, key)
            if kind != "in use" and _merge_failures(store, target, key, failures.get(key), attempted.get(key, "")):
                kind = kind or "failed"
            if kind:
                counts[kind] += 1
                if watch is not None:
                    watch(key, kind)
    return counts


def _merge_run(store: Store, target: Store, key: str) -> str | None:
    """What became of a run; None if there is none."""
    source, goal = store.run_folder(key), target.run_folder(key)
    if not (source / "config.json").exists():
        return None
    if target.is_done(key) or (goal.exists() and not store.is_done(key)):
        return "already here"
    with store.claim(key) as free, target.claim(key) as mine:
        if not free or not mine:
            return "in use"
        if target.is_done(key):  # since we looked
            return "already here"
        beside = goal.with_name(f".{key}.part")
        try:
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(source, beside)
            if goal.exists():  # begun here, done there
                aside = target.folder / "set-aside"
                aside.mkdir(exist_ok=True)
                goal.rename(aside / f"{key}-{len(list(aside.iterdir()))}")
            beside.rename(goal)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise (disk_error(goal, error) if isinstance(error, OSError) and error.errno else _copying(error)) from error
        if target.is_done(key):
            target.finish(key)
        target.tell("merged", key, source=str(store.folder.resolve()))
    return "done" if target.is_done(key) else "begun"


def _last_attempts(store: Store) -> dict[str, str]:
    """When each cell was last worked on."""
    attempts = [event for event in read_lines(store.events) if event.get("event") in ("claimed", "done", "failed")]
    return {event["key"]: event.get("time", "") for event in attempts}


def _merge_failures(store: Store, target: Store, key: str, last: dict[str, Any] | None, attempted: str) -> bool:
    """Copy a cell's tracebacks, and its last failure if the target has tried none later; whether the cell now failed there."""
    source, goal = (it.folder / "failures" / f"{key}.txt" for it in (store, target))
    later = last is not None and last.get("time", "") > attempted
    if not source.exists() and not later:
        return False
    with target.claim(key) as mine:
        if not mine:
            return False
        if source.exists():
            there = goal.read_text(encoding="utf-8") if goal.exists() else ""
            attempts = re.split(r"^(?=attempt \d+, )", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if new := "".join(attempt for attempt in attempts if attempt not in there):
                write_atomically(goal, (there + new).encode())
        if last is None or not later or target.is_done(key):
            return False
        append(target.events, [{name: value for name, value in last.items() if name != "again"}])  # nobody is at it there
        return True


def _copying(error: Exception) -> InputError:
    return InputError(f"a run could not be copied ({str(error)[:200]}): check permissions and space")
