"""Is there one minimum? Relaxing from several starts can only tell where there is not."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ebl.models.autograd import bounds_of
from ebl.relax import Schedule, relax
from ebl.theory.phases import FREE_PHASE, HIGHER, OMEGA, Phase, Problem, States, hold, level
from ebl.types import State

SETTLED = 1e-9
APART = 1e-5  # rms of the outputs


def several_minima(p: Problem, states: States, phases: Iterable[Phase], starts: int = 8, seed: int = 0) -> str | None:
    """A line on the phase with the most minima, if one has more than one for some example."""
    worst, line = 1, None
    for phase in phases:
        count, failed = _count(p, states, phase, starts, seed)
        if count > worst:
            worst = count
            line = f"several minima: {count} from {starts + 1} starts, {phase}"
            line += f" ({failed} starts did not settle)" if failed else ""
    return line


def _count(p: Problem, states: States, phase: Phase, starts: int, seed: int) -> tuple[int, int]:
    """The most minima that any example has, and how many starts did not settle."""
    generator = torch.Generator().manual_seed(seed)
    known = states[phase]
    many = Problem(p.net, torch.cat([p.x] * starts), torch.cat([p.target] * starts), p.cost, p.tolerance, p.iterations)
    begin = _random_starts(many, tuple(torch.cat([s] * starts) for s in known), generator)
    boundary = hold(many, [phase], torch.cat([states[FREE_PHASE][-1]] * starts))
    settled = relax(many.net, many.x, Schedule(p.iterations, OMEGA, tolerance=SETTLED), start=begin, boundary=boundary)
    good = (settled.residual <= SETTLED).view(starts, -1)
    energies = torch.stack([level(p, phase, known), *level(many, phase, settled.state).chunk(starts)])
    outputs = torch.stack([known[-1], *settled.state[-1].chunk(starts)]).flatten(2)
    most = 1
    for b in range(len(p.x)):
        kept = [0]
        for i in range(1, starts + 1):
            if good[i - 1, b] and all(_apart(outputs[i, b], outputs[j, b], energies[i, b], energies[j, b]) for j in kept):
                kept.append(i)
        most = max(most, len(kept))
    return most, int((~good).any(1).sum())


def _apart(o1: Tensor, o2: Tensor, e1: Tensor, e2: Tensor) -> bool:
    far = float((o1 - o2).square().mean().sqrt()) > APART * (1 + float(o1.square().mean().sqrt()))
    return far or float((e1 - e2).abs()) > HIGHER * (1 + float(e1.abs()))


def _random_starts(p: Problem, like: State, generator: torch.Generator) -> State:
    """Anywhere between bounds; where there are none, around `like`."""
    found = []
    for s, limits in zip(like, bounds_of(p.net, len(like)), strict=True):
        low, high = limits or (-torch.inf, torch.inf)
        if low > -torch.inf and high < torch.inf:
            found.append(low + (high - low) * torch.rand(s.shape, generator=generator, dtype=s.dtype))
        else:
            noise = torch.randn(s.shape, generator=generator, dtype=s.dtype)
            found.append((s + (1 + s.square().mean().sqrt()) * noise).clamp(low, high))
    return tuple(found)
