"""A number over seeds, and what a difference between two such numbers is worth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ebl.report.words import signed

LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    mean: float
    std: float | None  # dividing by runs - 1; None for one run
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        runs = len(values)
        mean = math.fsum(values) / runs
        squares = math.fsum((value - mean) ** 2 for value in values)  # statistics.stdev is exact, and 50 times slower
        return cls(mean, math.sqrt(squares / (runs - 1)) if runs > 1 else None, runs)

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class Difference:
    """a - b, with its confidence interval where both have a spread."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    def __str__(self) -> str:
        within = "" if self.interval is None else f" [{signed(self.interval[0])}, {signed(self.interval[1])}]"
        return f"{signed(self.mean)}{within}"


def compare(a: Sample, b: Sample) -> Difference:
    """Welch's interval: mean_a - mean_b ± t(df) sqrt(s_a²/n_a + s_b²/n_b), df by Welch and Satterthwaite."""
    difference = a.mean - b.mean
    if a.std is None or b.std is None:
        return Difference(difference)
    va, vb = a.std**2 / a.runs, b.std**2 / b.runs
    half = 0.0
    if va + vb > 0:
        df = (va + vb) ** 2 / (va**2 / (a.runs - 1) + vb**2 / (b.runs - 1))
        half = quantile(round(df, 3)) * math.sqrt(va + vb)
    return Difference(difference, difference - half, difference + half)


@lru_cache(maxsize=4096)
def quantile(df: float) -> float:
    """t such that Student's t with df degrees of freedom lies in (-t, t) with probability LEVEL.

    With T = sqrt(df) tan(a), the density of a is proportional to cos(a)^(df - 1) on (-pi/2, pi/2)."""
    if df > 1000:
        return statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    angle = np.linspace(0, math.pi / 2, 10_001)
    density = np.cos(angle) ** (df - 1)
    share = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(df) * math.tan(float(np.interp(LEVEL * share[-1], share, angle)))
