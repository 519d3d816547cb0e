"""How fast a network settles: residual and energy against iterations for orders and factors (the paper's appendix C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebl.boundary import FREE
from ebl.errors import InputError
from ebl.relax import Schedule, sweep, update_groups
from ebl.theory.phases import in_float64
from ebl.types import Energy, State

ORDERS: dict[str, tuple[str, float | str]] = {
    "synchronous": ("synchronous", 1.0),
    "two-colour, odd first": ("odd-first", 1.0),
    "two-colour, even first": ("even-first", 1.0),
    "sweep upwards": ("forward", 1.0),
    "sweep downwards": ("backward", 1.0),
    "two-colour, ω = 1.2": ("odd-first", 1.2),
    "two-colour, ω = 1.4": ("odd-first", 1.4),
    "two-colour, ω = 1.6": ("odd-first", 1.6),
    "two-colour, Chebyshev 0.9": ("odd-first", "chebyshev:0.9"),
    "synchronous, ω = 1.4": ("synchronous", 1.4),
}
LEVELS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Course:
    """A batch's means after each iteration."""

    residual: list[float]  # rms way of an example's worst block to its minimiser, the others as that iteration left them
    energy: list[float]

    def reaches(self, level: float) -> int | None:
        """Iterations until the residual is there to stay, as far as was looked."""
        above = [t for t, r in enumerate(self.residual, 1) if not r <= level]
        reached = (above[-1] if above else 0) + 1
        return reached if reached <= len(self.residual) else None

    def factor(self) -> float | None:
        """What an iteration leaves of the residual in the end: the mean factor from 1e-5 to 1e-8, if it gets there."""
        first, last = self.reaches(1e-5), self.reaches(1e-8)
        if first is None or last is None or last == first:
            return None
        return (self.residual[last - 1] / self.residual[first - 1]) ** (1 / (last - first))

    def above_limit(self) -> list[float]:
        """The energy above where this course ended: equilibria may differ from schedule to schedule."""
        return [e - self.energy[-1] for e in self.energy]


def courses(
    net: Energy,
    x: Tensor,
    iterations: int = 200,
    names: Sequence[str] = tuple(ORDERS),
    told: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Course]:
    """Free phases from zeros in float64, under several schedules, each ended early once its residual is 1e-10."""
    if iterations < 1:
        raise InputError(f"iterations = {iterations}: use at least 1, such as 200")
    net, x = in_float64(net), x.double() if x.is_floating_point() else x
    found = {}
    for done, name in enumerate(names, 1):
        order, omega = ORDERS[name]
        found[name] = _course(net, x, Schedule(iterations, omega, order))
        told(done, len(names))
    return found


def _course(net: Energy, x: Tensor, schedule: Schedule) -> Course:
    state: State = net.init_state(x)
    groups = update_groups(net, len(state), schedule.order, FREE)
    everything = update_groups(net, len(state), "synchronous", FREE)
    factors, plain, memo = schedule.factors(), Schedule().factors(), dict[Any, Any]()
    residual, energy = [], []
    with torch.no_grad():
        for _ in range(schedule.iterations):
            state, _ = sweep(net, x, state, FREE, groups, factors, memo)
            _, gaps = sweep(net, x, state, FREE, everything, plain, memo, watch=True)
            residual.append(float(torch.stack(gaps).amax(0).mean()))
            energy.append(float(net.energy(x, state).mean()))
            if residual[-1] <= 1e-10:
                break
    return Course(residual, energy)
