"""Where each run stands in its study's table: its row beside its dataset, and what is known of each place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ebl.study.key import NOT_IN
from ebl.study.record import Record
from ebl.study.settings import flat

STATES = ("done", "running", "failed", "waiting")


@dataclass(frozen=True)
class Place:
    """The runs of one row and one dataset: the seeds."""

    records: tuple[Record, ...]

    @property
    def states(self) -> Counter[str]:
        return Counter(record.status for record in self.records)

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.final is not None]

    @property
    def collapsed(self) -> int:
        return sum(record.collapsed for record in self.done)

    def mean(self, name: str) -> float | None:
        """Of a number of the last epoch, over the runs that are done; `seconds` too."""
        values = [record.seconds if name == "seconds" else (record.final or {})[name] for record in self.done]
        return mean(values) if values else None


def places(records: Iterable[Record]) -> dict[tuple[str, str], Place]:
    """The study's table, by row and dataset, in the order of the runs."""
    records = list(records)
    row = rows(records)
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((row[record.key], record.config["dataset"]), []).append(record)
    return {where: Place(tuple(there)) for where, there in found.items()}


def rows(records: Sequence[Record]) -> dict[str, str]:
    """The row of each run, by key: its label, else its rule; and, where runs of one row, dataset and seed differ, by how."""
    shared: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        shared.setdefault((_name(record), record.config["dataset"], record.config["seed"]), []).append(record)
    telling: dict[str, set[str]] = {}
    for (name, _, _), group in shared.items():
        telling.setdefault(name, set()).update(_telling_apart([flat(record.config) for record in group]))
    found = {}
    for record in records:
        name = _name(record)
        settings = flat(record.config) if telling[name] else {}
        found[record.key] = ", ".join([name, *(f"{key}={_short(v)}" for key, v in settings.items() if key in telling[name])])
    return found


def _name(record: Record) -> str:
    return record.label or str(record.config["rule"])


def _telling_apart(configs: list[dict[str, Any]]) -> list[str]:
    """The first settings that are enough to tell these apart."""
    chosen: list[str] = []
    kinds = 1
    for key in configs[0] if len(configs) > 1 else ():
        seen = {repr([c.get(k) for k in (*chosen, key)]) for c in configs}
        if key not in NOT_IN and len(seen) > kinds:
            chosen.append(key)
            kinds = len(seen)
    return chosen


def _short(value: Any) -> str:
    return (
        "/".join(map(_short, value)) if isinstance(value, list | tuple) else str(value).lower() if value is None else str(value)
    )
