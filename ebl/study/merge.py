"""Bringing stores of one study together, such as those of several machines."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ebl.atomic import disk_error
from ebl.errors import InputError
from ebl.study.journal import append
from ebl.study.store import Store, make_store, open_store

KINDS = ("done", "begun", "already here", "in use")


def merge(into: Path, sources: Sequence[Path], watch: Callable[[str, str], None] | None = None) -> Counter[str]:
    """Copy runs that `into` does not have, done or only begun, and what was asked for; nothing in it is overwritten. How many
    were copied (done, begun), were there already, or are being worked on. `watch` is told of each run and its kind."""
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
        for key in store.cells():
            if kind := _merge_run(store, target, key):
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


def _copying(error: Exception) -> InputError:
    return InputError(f"a run could not be copied ({str(error)[:200]}): check permissions and space")
