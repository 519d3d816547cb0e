"""Where an energy is not smooth: units that touch or leave a bound, pools whose winner changes."""

from __future__ import annotations

import torch
from torch import Tensor

from ebl.models.autograd import bounds_of
from ebl.models.hopfield import Hopfield
from ebl.theory.phases import Problem
from ebl.types import State


def pattern(p: Problem, state: State) -> list[Tensor]:
    """Which units are at which bound, and which positions win their pools."""
    kept = []
    for s, limits in zip(state, bounds_of(p.net, len(state)), strict=True):
        if limits is not None:
            kept.append((s >= limits[1]).to(torch.int64) - (s <= limits[0]).to(torch.int64))
    if isinstance(p.net, Hopfield):
        for k, below in enumerate((p.x, *state[:-1])):
            _, winners = p.net._up(k, below, None)
            if winners is not None:
                kept.append(winners)
    return [t.flatten(1) for t in kept]


def switches(a: list[Tensor], b: list[Tensor]) -> int:
    """In how many places two patterns differ."""
    return sum(int((one != two).sum()) for one, two in zip(a, b, strict=True))
