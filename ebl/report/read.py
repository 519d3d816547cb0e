"""The runs a report is of: a store's, a folder's of run folders, or one. What is damaged is named and left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ebl.errors import InputError
from ebl.report.settings import beta, setting
from ebl.study.record import Record, read_run
from ebl.study.store import open_store

DAMAGE = (InputError, KeyError, TypeError, ValueError, AttributeError)


def read(folder: Path) -> tuple[list[Record], list[str]]:
    """The runs, and a line for each that cannot be read."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give a study's name, its store, or a folder of run folders")
    damaged: list[str] = []
    if (folder / "study.json").exists():
        found = open_store(folder).records()
    else:
        several = [path.parent for path in sorted(folder.glob("*/config.json"))]
        places = [folder] if (folder / "config.json").exists() else several
        found, damaged = _each(places)
    sound = [(record, _trouble(record)) for record in found]
    damaged += [f"{record.key} is damaged ({trouble}): left out" for record, trouble in sound if trouble]
    found = [record for record, trouble in sound if not trouble]
    if not found:
        raise InputError("; ".join(damaged[:1]) or f"{folder} holds no runs: give a study's store, or a folder of run folders")
    return found, damaged


def _each(places: Iterable[Path]) -> tuple[list[Record], list[str]]:
    found, damaged = [], []
    for place in places:
        try:
            found.append(read_run(place))
        except DAMAGE as error:
            damaged.append(f"{place.name} is damaged ({_said(error)}): left out")
    return found, damaged


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
