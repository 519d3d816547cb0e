"""The runs a report is of: a store's, a folder's of run folders, or one. What is damaged is named and left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ebl.errors import InputError
from ebl.report.settings import beta, setting
from ebl.study.record import Record, read_run
from ebl.study.store import Store, open_store

DAMAGE = (InputError, KeyError, TypeError, ValueError, AttributeError)


def read(folder: Path) -> tuple[list[Record], list[str]]:
    """The runs, and a line for each that cannot be read."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give a study's name, its store, or a folder of run folders")
    if (folder / "study.json").exists():
        found, damaged = _of_store(open_store(folder))
    else:
        several = [path.parent for path in sorted(folder.glob("*/config.json"))]
        places = [folder] if (folder / "config.json").exists() else several
        found, damaged = _each((place, None) for place in places)
    sound = [(record, _trouble(record)) for record in found]
    damaged += [f"{record.key} is damaged ({trouble}): left out" for record, trouble in sound if trouble]
    found = [record for record, trouble in sound if not trouble]
    if not found:
        raise InputError("; ".join(damaged[:1]) or f"{folder} holds no runs: give a study's store, or a folder of run folders")
    return found, damaged


def _of_store(store: Store) -> tuple[list[Record], list[str]]:
    try:
        return store.records(), []
    except DAMAGE:  # of some run: the others can be read one by one
        cells = store.cells()
    found, damaged = _each((store.run_folder(key), line["config"]) for key, line in cells.items())
    return [_with_status(store, replace(record, label=cells[record.key].get("label", ""))) for record in found], damaged


def _each(places: Iterable[tuple[Path, dict[str, Any] | None]]) -> tuple[list[Record], list[str]]:
    """Run folders, each with the config of a run that has not begun."""
    found, damaged = [], []
    for place, config in places:
        try:
            begun = config is None or (place / "config.json").exists()
            found.append(read_run(place) if begun else Record(place.name, config or {}, "waiting"))
        except DAMAGE as error:
            damaged.append(f"{place.name} is damaged ({_said(error)}): left out")
    return found, damaged


def _with_status(store: Store, record: Record) -> Record:
    """What the store knows of a run that is not done."""
    if record.status == "done":
        return record
    if store.holder(record.key) is not None:
        return replace(record, status="running")
    told = store.folder / "failures" / f"{record.key}.txt"
    lines = told.read_text(encoding="utf-8", errors="replace").strip().splitlines() if told.exists() else []
    return replace(record, status="failed", error=lines[-1]) if lines else record


def _trouble(record: Record) -> str:
    """What of a record cannot be used."""
    try:
        setting(record.config)
        beta(record.config)
        for name in ("rule", "dataset", "seed", "epochs"):
            record.config[name]
        for line in filter(None, (record.final, record.best)):
            float(line["test_error"]) + float(line["train_error"])
        if record.status == "done" and not record.final:
            return "its result has no last epoch"
        sum(sum(curve) for curve in record.curves.values())
    except DAMAGE as error:
        return _said(error)
    return ""


def _said(error: BaseException) -> str:
    if isinstance(error, InputError):
        return str(error).partition(": restore")[0]
    return f"no {error.args[0]}" if isinstance(error, KeyError) and error.args else str(error)
