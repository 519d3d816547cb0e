"""Derivatives of the phases' energies by finite differences: the truth that the rules' estimates are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ebl.theory.kinks import pattern, switches
from ebl.theory.phases import Loss, Phase, Problem, States, level, settle
from ebl.types import Energy

STEP = 1e-5
ALL = 100  # with no more parameters than this, every one of them is a direction

Direction: TypeAlias = tuple[nn.Parameter, Tensor]
"""A parameter tensor and the way it moves."""


@dataclass(frozen=True)
class Slopes:
    """Central differences along each direction; the first dimension counts directions."""

    level: dict[Phase, Tensor]  # of the batch's mean energy
    bend: dict[Phase, Tensor]  # its slope forwards less that backwards
    switched: dict[Phase, list[int]]  # units and pools that switch within the step

    def of(self, loss: Loss) -> Tensor:
        return torch.stack([weight * self.level[q] for q, weight in loss.items()]).sum(0)

    def bent(self, loss: Loss) -> Tensor:
        return torch.stack([abs(weight) * self.bend[q] for q, weight in loss.items()]).sum(0)

    def smooth(self, loss: Loss) -> Tensor:
        """Directions along which nothing switches in the loss's phases."""
        return torch.tensor([not any(counts) for counts in zip(*(self.switched[q] for q in loss), strict=True)])


def directions(net: Energy, seed: int = 0, each: int = 2) -> list[Direction]:
    """Every parameter by itself, if they are few; else some random directions in each tensor."""
    trained = [q for q in net.parameters() if q.requires_grad]
    if sum(q.numel() for q in trained) <= ALL:
        return [(q, one.view_as(q)) for q in trained for one in torch.eye(q.numel(), dtype=q.dtype)]
    generator = torch.Generator().manual_seed(seed)
    return [(q, torch.randn(q.shape, generator=generator, dtype=q.dtype)) for q in trained for _ in range(each)]


def slopes(
    p: Problem,
    states: States,
    along: Sequence[Direction],
    step: float = STEP,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Slopes:
    """Every phase starts from where it had settled, so that it stays in its minimum."""
    found: dict[Phase, list[Tensor]] = {q: [] for q in states}
    bend: dict[Phase, list[Tensor]] = {q: [] for q in states}
    middle = {q: level(p, q, s).mean() for q, s in states.items()}
    switched: dict[Phase, list[int]] = {q: [] for q in states}
    before = {q: pattern(p, s) for q, s in states.items()}
    for done, direction in enumerate(along, 1):
        ends = []
        for size in (step, -step):
            with moved(direction, size):
                there = settle(p, states, states)
                ends.append({q: (level(p, q, s).mean(), pattern(p, s)) for q, s in there.items()})
        up, down = ends
        for q in states:
            found[q].append((up[q][0] - down[q][0]) / (2 * step))
            bend[q].append((up[q][0] - 2 * middle[q] + down[q][0]) / step)
            switched[q].append(sum(switches(before[q], end[q][1]) for end in ends))
        told(done, len(along))
    level_of, bend_of = ({q: torch.stack(v) for q, v in kept.items()} for kept in (found, bend))
    return Slopes(level_of, bend_of, switched)


def projected(gradients: Sequence[Tensor], net: Energy, along: Sequence[Direction]) -> Tensor:
    """A gradient's components along the directions."""
    by_id = {id(q): g for q, g in zip(net.parameters(), gradients, strict=True)}
    return torch.stack([(by_id[id(q)] * way).sum() for q, way in along])


@contextmanager
def moved(direction: Direction, size: float) -> Iterator[None]:
    """The network with one tensor of its parameters moved."""
    tensor, way = direction
    kept = tensor.detach().clone()
    try:
        tensor.data.add_(way, alpha=size)
        yield
    finally:
        tensor.data.copy_(kept)
