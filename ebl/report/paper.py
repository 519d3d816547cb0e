"""The paper's tables as it printed them: files in published/, numbers with the digits that were printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import resources
from math import sqrt
from typing import Any

from ebl.report.samples import Sample

TABLES = (1, 2, 3, 6, 7)


@dataclass(frozen=True)
class Published:
    """A mean over runs; the paper's std divides by their number."""

    mean: Decimal
    std: Decimal | None = None
    runs: int = 3

    @property
    def sample(self) -> Sample:
        """With the std of a sample, which divides by runs - 1."""
        std = None if self.std is None or self.runs < 2 else float(self.std) * sqrt(self.runs / (self.runs - 1))
        return Sample(float(self.mean), std, self.runs)

    def __str__(self) -> str:
        return f"{self.mean}" if self.std is None else f"{self.mean} ± {self.std}"


@dataclass(frozen=True)
class Theirs:
    """What the paper has for one cell: error rates (%), and the time of a run on an A100 as H:MM."""

    test: Published | None = None
    train: Published | None = None
    top5: Published | None = None
    time: str | None = None


Figures = Mapping[tuple[str, str], Theirs]
"""By rule and dataset."""


@cache
def table(number: int) -> dict[str, Any]:
    """A published table; its fractions are Decimals, which keep the printed digits."""
    text = resources.files("ebl.report").joinpath("published", f"table{number}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return found


@cache
def comparison() -> Figures:
    """Table 1, with the standard deviations of Table 7."""
    test = {(row["rule"], row["dataset"]): _published(row, "test") for row in table(7)["rows"]}
    return {
        (row["rule"], row["dataset"]): Theirs(
            test[row["rule"], row["dataset"]], _published(row, "train"), time=table(1)["hours"][row["dataset"]]
        )
        for row in table(1)["rows"]
    }


@cache
def svhn() -> Figures:
    """Table 6."""
    time = table(1)["hours"]["svhn"]
    return {
        (row["rule"], "svhn"): Theirs(_published(row, "test"), _published(row, "train"), time=time) for row in table(6)["rows"]
    }


@cache
def best(epochs: int) -> Figures:
    """The paper's own rows of Table 2."""
    return {
        ("c-ep", row["dataset"]): Theirs(
            _published(row, "top1"), top5=_published(row, "top5") if "top5" in row else None, time=row["time"]
        )
        for row in table(2)["rows"]
        if row.get("epochs") == epochs
    }


@cache
def speed(order: str) -> Figures:
    """A row of Table 3: synchronous or asynchronous."""
    row = next(row for row in table(3)["rows"] if row["order"] == order)
    return {("c-ep", "cifar10"): Theirs(_published(row, "test"), _published(row, "train"), time=row["time"])}


def singles(rule: str) -> list[Decimal]:
    """Test errors of single runs, which the text gives for two rules of Table 6."""
    return [value for row in table(6)["rows"] if row["rule"] == rule for value in row.get("single", ())]


def slips() -> list[str]:
    """What does not agree in the paper; Table 7's is Table 1's."""
    return [f"Table {number}: {slip}" for number in TABLES if number != 7 for slip in table(number)["slips"]]


def _published(row: dict[str, Any], name: str) -> Published:
    return Published(row[name], row.get(f"{name}_std"), row.get("runs", 3))
