"""Settled phases in float64: what every statement of the theory is made of.

Each loss of the theory is a weighted sum of the energies of a few phases, such as (F(beta) - F(0)) / beta.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ebl.boundary import FREE, Clamp, Nudge
from ebl.costs import Cost, SquaredError
from ebl.errors import InputError
from ebl.models.autograd import bounds_of
from ebl.relax import Schedule, relax
from ebl.rules import as_target
from ebl.shapes import per_example
from ebl.types import Boundary, Energy, State

TOLERANCE = 1e-12  # the residual at which a phase counts as settled
ITERATIONS = 5000
OMEGA = 1.5
FAR = 1e9  # whoever gets there falls for ever
ROUNDING = 32 * torch.finfo(torch.float64).eps  # of a state: no residual gets much below
EARLY = (10, 4, 2)  # iterations after which what ends in NaN is looked at again
PUSH = 1e-5  # off an equilibrium, to see whether it is a minimum
HIGHER = 1e-8  # an energy that is: relative
NEAR = 1e-7  # an equilibrium's whereabouts, in parts of its size: beyond, the energy may not fall on
SLOPE = 1e-10  # of an energy, above what rounding leaves of it
CHUNKS = 50  # in which a relaxation is watched: with a halving of the residual in each, 40 lead to 1e-12

N = TypeVar("N")


class AssumptionError(InputError):
    """An assumption of the theory does not hold here: nothing settles, or where it settles is no strict minimum."""


class TooSmallError(AssumptionError):
    """What a statement is about is there, but too small for float64."""


@dataclass(frozen=True)
class Phase:
    """What holds at the output: beta C added to the energy (nudge), or o* + beta (y - o*) in its place (clamp)."""

    boundary: Literal["nudge", "clamp"]
    beta: float  # signed

    def __str__(self) -> str:
        kind = {"nudge": "nudged", "clamp": "clamped"}[self.boundary]
        return "free" if self == FREE_PHASE else f"{kind} at β = {self.beta:g}"


FREE_PHASE = Phase("nudge", 0.0)

Loss: TypeAlias = dict[Phase, float]
"""Phases and the weights of their energies."""

States: TypeAlias = dict[Phase, State]


def contrast(boundary: Literal["nudge", "clamp"], b1: float, b2: float) -> Loss:
    """(energy at b2 - energy at b1) / (b2 - b1): the loss that belongs to a rule's two phases."""
    one, two = (Phase(boundary, b) if b else FREE_PHASE for b in (float(b1), float(b2)))
    return {two: 1 / (b2 - b1), one: -1 / (b2 - b1)}


@dataclass(frozen=True)
class Problem:
    """An energy with inputs and targets, all in float64, and how far phases relax."""

    net: Energy
    x: Tensor
    target: Tensor
    cost: Cost
    tolerance: float
    iterations: int

    def schedule(self, iterations: int | None = None, near: State | None = None) -> Schedule:
        """As far as the tolerance, or the rounding of a state near where it ends."""
        tolerance = self.tolerance if near is None else float(self.enough(near).min())
        return Schedule(iterations or self.iterations, OMEGA, tolerance=tolerance)

    def enough(self, state: State) -> Tensor:
        """The residual of each example that counts as settled: the tolerance, or the rounding of its blocks and target."""
        target = self.target.repeat(len(state[-1]) // len(self.target), *[1] * (self.target.dim() - 1))
        sizes = torch.stack([s.flatten(1).square().mean(1).sqrt() for s in (*state, target)]).amax(0)
        return (ROUNDING * sizes).clamp_min(self.tolerance)


def problem(
    net: Energy,
    x: Tensor,
    y: Tensor,
    cost: Cost | None = None,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
    own: bool = False,
) -> Problem:
    """`own`: with a copy of the network, whose parameters may be moved."""
    net = in_float64(net, own)
    x = x.double() if x.is_floating_point() else x
    state = net.init_state(x)
    output = state[-1]
    for name, found in (("init_state", output), ("energy", net.energy(x, state))):
        if found.dtype != torch.float64:
            raise InputError(f"{name} gives {found.dtype} where x and the parameters are float64: use x.new_zeros and the like")
    return Problem(net, x, as_target(y, output), cost or SquaredError(), tolerance, iterations)


def in_float64(net: N, own: bool = False) -> N:
    """The network if it is in float64 already, else a copy that is."""
    assert isinstance(net, nn.Module)
    tensors = [*net.parameters(), *net.buffers()]
    if not own and all(t.dtype == torch.float64 for t in tensors if t.is_floating_point()):
        return net
    double: Any = copy.deepcopy(net).double()
    return double


def settle(p: Problem, phases: Iterable[Phase], starts: States | None = None, begin: State | None = None) -> States:
    """Where the phases settle, the free one among them: from `starts`, where they were seen to be minima, or from the
    free state, and that from `begin`."""
    phases, starts = list(phases), starts or {}
    found = {FREE_PHASE: _relax(p, [FREE_PHASE], FREE, p.x, starts.get(FREE_PHASE, begin))}
    free = found[FREE_PHASE]
    if FREE_PHASE not in starts:
        _check_minimum(p, [FREE_PHASE], FREE, p.x, free)
    for kind in ("nudge", "clamp"):
        group = [q for q in phases if q.boundary == kind and q != FREE_PHASE]
        if group:
            start = tuple(torch.cat(blocks) for blocks in zip(*(starts.get(q, free) for q in group), strict=True))
            x, boundary = torch.cat([p.x] * len(group)), hold(p, group, free[-1])
            together = _relax(p, group, boundary, x, start)
            if not all(q in starts for q in group):
                _check_minimum(p, group, boundary, x, together)
            parts = zip(*(block.chunk(len(group)) for block in together), strict=True)
            found |= dict(zip(group, parts, strict=True))
    return found


def _check_minimum(p: Problem, group: Sequence[Phase], boundary: Boundary, x: Tensor, state: State) -> None:
    """An error where a small push leads lower: a relaxation rests at a maximum too, or where a wrong update keeps it."""
    generator = torch.Generator().manual_seed(0)
    limits = [pair or (-torch.inf, torch.inf) for pair in bounds_of(p.net, len(state))]
    noise = [PUSH * torch.randn(s.shape, generator=generator, dtype=s.dtype) for s in state]
    there, back = (tuple((s + way * n).clamp(*b) for s, n, b in zip(state, noise, limits, strict=True)) for way in (1, -1))
    if group[0].boundary == "clamp":
        there, back = ((*s[:-1], state[-1]) for s in (there, back))
    after = torch.stack([_total(p, boundary, x, s) for s in (there, back, _relax(p, group, boundary, x, there))])
    before = _total(p, boundary, x, state)
    lower = (after < before - HIGHER * (1 + before.abs())).any(0) | _falls_on(p, boundary, x, state, there, limits)
    lower = lower.view(len(group), -1).any(1)
    if bool(lower.any()):
        raise AssumptionError(f"no minimum, {group[int(lower.int().argmax())]}: it rests where a small push leads lower")


def _falls_on(
    p: Problem, boundary: Boundary, x: Tensor, state: State, there: State, limits: list[tuple[float, float]]
) -> Tensor:
    """For each example, whether the energy's slope is hardly less a small step downhill, or leads on at `there`, where it was
    pushed. No constant in the energy hides that, and where the energy has a kink the slope turns."""
    moving = len(state) - isinstance(boundary, Clamp)

    def slopes(s: State) -> list[Tensor]:
        """Where units can follow them; zeros where autograd does not see the energy."""
        zeros = [torch.zeros_like(v) for v in s[:moving]]
        with torch.enable_grad():
            at = tuple(v.detach().requires_grad_(k < moving) for k, v in enumerate(s))
            e = p.net.energy(x, at).sum()
            seen = torch.autograd.grad(e, at[:moving], allow_unused=True) if moving and e.requires_grad else ()
            if all(g is None for g in seen):
                return zeros
            found = [zero if g is None else g for zero, g in zip(zeros, seen, strict=True)]
            added = boundary.energy(at[-1])
            if moving == len(s) and isinstance(added, Tensor) and added.requires_grad:
                found[-1] = found[-1] + torch.autograd.grad(added.sum(), at[-1])[0]
        held = [((v <= low) & (g > 0)) | ((v >= high) & (g < 0)) for v, g, (low, high) in zip(s, found, limits, strict=False)]
        return [torch.where(h, 0.0, g) for h, g in zip(held, found, strict=True)]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return sum(((u * v).flatten(1).sum(1) for u, v in zip(a, b, strict=True)), x.new_zeros(len(x), dtype=torch.float64))

    slope = slopes(state)
    steepness = dot(slope, slope).sqrt()
    step = NEAR * (1 + dot(state, state).sqrt()) / steepness.clamp_min(SLOPE)
    moved = [(s - per_example(step, s) * g).clamp(*b) for s, g, b in zip(state, slope, limits, strict=False)]
    on = (steepness > SLOPE) & (dot(slopes((*moved, *state[moving:])), slope) > steepness.square() / 2)
    push = [a - b for a, b in zip(there, state, strict=True)][:moving]
    return on | (dot(slopes(there), push) < -SLOPE * dot(push, push).sqrt())


def _total(p: Problem, boundary: Boundary, x: Tensor, state: State) -> Tensor:
    with torch.no_grad():
        return p.net.energy(x, state) + boundary.energy(state[-1])


def hold(p: Problem, group: Sequence[Phase], output: Tensor) -> Boundary:
    """What holds at the output of phases of one kind, stacked."""
    if group[0] == FREE_PHASE:
        return FREE
    betas = output.new_tensor([q.beta for q in group]).repeat_interleave(len(output))
    target = torch.cat([p.target] * len(group))
    if group[0].boundary == "nudge":
        return Nudge(p.cost, target, betas)
    output = torch.cat([output] * len(group))
    return Clamp(output + per_example(betas, output) * (target - output))


def level(p: Problem, phase: Phase, state: State) -> Tensor:
    """E, and beta C where the phase is nudged: (B,)."""
    with torch.no_grad():
        e = p.net.energy(p.x, state)
        return e + phase.beta * p.cost.value(state[-1], p.target) if phase.boundary == "nudge" and phase.beta else e


def value(p: Problem, loss: Loss, states: States) -> Tensor:
    """The loss of each example, (B,)."""
    return torch.stack([weight * level(p, q, states[q]) for q, weight in loss.items()]).sum(0)


def _relax(p: Problem, group: Sequence[Phase], boundary: Boundary, x: Tensor, start: State | None) -> State:
    """To the tolerance or not at all. Whoever comes no nearer in two chunks would not get there in `iterations` either."""
    done, best, stuck = 0, torch.inf, 0
    origin = p.net.init_state(x) if start is None else start
    while True:
        chunk = min(max(p.iterations // CHUNKS, 20), p.iterations - done)
        settled = relax(p.net, x, p.schedule(chunk, start), start=start, boundary=boundary)
        before, start, done = start or origin, settled.state, done + settled.iterations
        residual = settled.residual.nan_to_num(torch.inf)
        worst = float(residual.max())
        if bool((residual <= p.enough(start)).all()):
            return start
        phase = group[int(residual.view(len(group), -1).amax(1).argmax())]
        if any(bool(s.isnan().any()) for s in start):
            early = (relax(p.net, x, Schedule(n, OMEGA), start=before, boundary=boundary).state for n in EARLY)
            if any(_falls_far(p, boundary, x, before, state, 1.0, 1.0) for state in early):
                raise AssumptionError(f"no minimum, {phase}: the energy falls without end")
            raise AssumptionError(f"no convergence, {phase}: the state is NaN after {done} iterations")
        if not all(bool((s.abs() < FAR).all()) for s in start):
            if bool((_total(p, boundary, x, start) < _total(p, boundary, x, origin)).any()):
                raise AssumptionError(f"no minimum, {phase}: the energy falls without end")
            raise AssumptionError(f"no convergence, {phase}: the state runs away, and its energy does not fall")
        stuck = stuck + 1 if worst > best / 2 else 0
        best = min(best, worst)
        if done >= p.iterations or stuck == 2:
            if _falls_far(p, boundary, x, before, start, FAR, FAR**0.5):
                raise AssumptionError(f"no minimum, {phase}: the energy falls without end")
            raise AssumptionError(f"no convergence, {phase}: residual {worst:.0e} after {done} iterations")


def _falls_far(p: Problem, boundary: Boundary, x: Tensor, before: State, after: State, on: float, least: float) -> bool:
    """Whether the energy is lower still, and by how much, so many times further on in the direction that a relaxation took."""
    limits = [pair or (-torch.inf, torch.inf) for pair in bounds_of(p.net, len(after))]
    far = tuple((s + on * (s - b)).clamp(*pair) for s, b, pair in zip(after, before, limits, strict=True))
    return bool((_total(p, boundary, x, far) < _total(p, boundary, x, after) - least).any())
