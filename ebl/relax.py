"""Relaxation: bringing a network to equilibrium, block by block.

One iteration updates every block once. Blocks that share no term of the energy may move together; over-relaxation moves
each block past its minimiser, s <- clamp(s + omega (update - s)).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, repeat

import torch
from torch import Tensor

from ebl.boundary import FREE, Clamp
from ebl.errors import InputError, choose
from ebl.models.autograd import autograd_update, bounds_of
from ebl.parallel import everywhere
from ebl.recording import recording
from ebl.types import Boundary, Energy, Memo, Settled, State, Trajectory

ORDERS = ("odd-first", "even-first", "synchronous", "forward", "backward")


@dataclass(frozen=True)
class Schedule:
    """How to relax.

    The order odd-first takes the colours of the interaction graph in turn: in a chain, layers 1, 3, 5, then 2, 4 (the paper's
    asynchronous updates). even-first goes the other way round, synchronous moves all blocks at once, forward and backward
    one after another. The cyclic Chebyshev schedule of Golub and Varga takes omega = 1, 1/(1 - R/2), then
    1/(1 - R omega/4), a step for each group of blocks.
    """

    iterations: int = 60  # the most allowed, where a tolerance is given
    omega: float | str = 1.0  # over-relaxation: a number in (0, 2), or chebyshev:R with 0 < R < 1
    order: str = "odd-first"  # odd-first even-first synchronous forward backward
    tolerance: float | None = None  # stop once the residual of every example is at most this

    def __post_init__(self) -> None:
        if isinstance(self.omega, str) and not self.omega.startswith("chebyshev"):
            object.__setattr__(self, "omega", _number(self.omega, self.omega))
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise InputError(
                f"iterations = {self.iterations!r}: use a whole number from 1 on, such as 60 for free, 20 for nudged phases"
            )
        choose("order", self.order, ORDERS)
        if self.tolerance is not None and not (isinstance(self.tolerance, int | float) and self.tolerance >= 0):
            raise InputError(
                f"tolerance = {self.tolerance}: use a number such as 1e-6, or none for a fixed number of iterations"
            )
        next(self.factors())

    def factors(self) -> Iterator[float]:
        """omega for one group of blocks after another, without end."""
        if isinstance(self.omega, str) and self.omega.startswith("chebyshev:"):
            rho2 = _number(self.omega.removeprefix("chebyshev:"), 0.0)
            if not isinstance(rho2, float) or not 0 < rho2 < 1:
                raise InputError(f"omega = {self.omega!r}: chebyshev takes a number between 0 and 1, such as chebyshev:0.95")
            return _chebyshev(rho2)
        omega = _number(self.omega, float("nan"))
        if not isinstance(omega, float) or not 0 < omega < 2:
            raise InputError(
                f"omega = {self.omega}: relaxation needs 0 < omega < 2; use 1 (plain), 1.5 (over-relaxed) or chebyshev:0.95"
            )
        return repeat(omega)


def relax(
    net: Energy,
    x: Tensor,
    schedule: Schedule | int = 60,
    *,
    start: State | None = None,
    boundary: Boundary = FREE,
    trajectory: bool = False,
    memo: Memo | None = None,
) -> Settled:
    """Let the network settle on the input x, from zeros (its `init_state`) or from `start`. A number means that many
    plain iterations. `trajectory` keeps energy, residual and output of every iteration."""
    schedule = as_schedule(schedule)
    state = check_start(net, x, start, boundary)
    groups = update_groups(net, len(state), schedule.order, boundary)
    factors = schedule.factors()
    memo = {} if memo is None else memo
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    residual = state[-1].new_zeros(len(x))
    iteration = 0
    with torch.no_grad():
        for iteration in range(1, schedule.iterations + 1):
            watch = trajectory or schedule.tolerance is not None or iteration == schedule.iterations
            state, gaps = sweep(net, x, state, boundary, groups, factors, memo, watch)
            if watch:
                residual = torch.stack(gaps).amax(0) if gaps else residual
            if trajectory:
                seen.append((net.energy(x, state) + boundary.energy(state[-1]), residual, state[-1]))
            if schedule.tolerance is not None and everywhere(bool((residual <= schedule.tolerance).all())):
                break
    kept = Trajectory(*(torch.stack(column) for column in zip(*seen, strict=True))) if trajectory else None
    return Settled(state, residual, iteration, kept)


def sweep(
    net: Energy,
    x: Tensor,
    state: State,
    boundary: Boundary,
    groups: Sequence[Sequence[int]],
    factors: Iterator[float],
    memo: Memo,
    watch: bool = False,
) -> tuple[State, list[Tensor]]:
    """One iteration: the new state and, if watched, each block's rms way to where its update leads when its turn came."""
    bounds = bounds_of(net, len(state))
    closed_form = getattr(net, "update", None)
    gaps = []
    for group in groups:
        omega = next(factors)
        moved = list(state)
        for k in group:
            s = state[k]
            if closed_form is None:
                moved[k], target = autograd_update(net, k, x, state, boundary, memo, omega)
            else:
                target = closed_form(k, x, state, boundary, memo)
                if getattr(target, "shape", None) != s.shape:
                    got = f"shape {tuple(target.shape)}" if isinstance(target, Tensor) else repr(target)
                    raise InputError(f"update({k}, ...) gives {got}: return block {k}'s minimiser, {tuple(s.shape)}")
                moved[k] = target if omega == 1 else torch.lerp(s, target, omega)
                limits = bounds[k]
                if omega > 1 and limits is not None:
                    moved[k] = moved[k].clamp_(*limits)
            if watch:
                gaps.append((target - s).detach().flatten(1).square().mean(1).sqrt())
        state = tuple(moved)
    return state, gaps


def update_groups(net: Energy, num_blocks: int, order: str, boundary: Boundary) -> list[list[int]]:
    """Which blocks move together, in which order. A clamped output does not move."""
    blocks = list(range(num_blocks))
    if order == "synchronous":
        groups = [blocks]
    elif order in ("forward", "backward"):
        groups = [[k] for k in blocks]
    else:
        groups = colours(num_blocks, getattr(net, "interactions", None))
    if order in ("backward", "even-first"):
        groups = groups[::-1]
    held = {num_blocks - 1} if isinstance(boundary, Clamp) else set()
    kept = [[k for k in group if k not in held] for group in groups]
    return [group for group in kept if group]


def colours(num_blocks: int, interactions: Sequence[tuple[int, int]] | None) -> list[list[int]]:
    """Groups of blocks that share no term: a greedy colouring of the interaction graph (all pairs if none is declared)."""
    edges = list(combinations(range(num_blocks), 2)) if interactions is None else interactions
    colour: dict[int, int] = {}
    for k in range(num_blocks):
        taken = {colour.get(j) for i, j in edges if i == k} | {colour.get(i) for i, j in edges if j == k}
        colour[k] = next(c for c in range(num_blocks) if c not in taken)
    return [[k for k in colour if colour[k] == c] for c in sorted(set(colour.values()))]


def as_schedule(schedule: Schedule | int) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    try:
        return Schedule(operator.index(schedule))
    except TypeError as error:
        raise InputError(f"schedule = {schedule!r}: give a number of iterations such as 60, or an ebl.Schedule") from error


def check_start(net: Energy, x: Tensor, start: State | None, boundary: Boundary) -> State:
    """The state to start from, its output clamped where the boundary says so; an error for what does not fit."""
    if getattr(net, "check", None) is not None:
        net.check(x, boundary)  # type: ignore[attr-defined]
    if not recording() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).sum())
        raise InputError(f"x holds {bad} values that are NaN or infinite: clean the input before relaxing")
    if not len(x):
        raise InputError("x is an empty batch: give at least one example")
    state = net.init_state(x)
    for k, s in enumerate(state):
        if s.dim() < 2 or not s.numel():
            raise InputError(
                f"block {k} of init_state has shape {tuple(s.shape)}: use (B, units), as x.new_zeros(len(x), 1) is"
            )
    pairs = bounds_of(net, len(state))
    if len(pairs) != len(state):
        raise InputError(f"bounds has {len(pairs)} entries for {len(state)} blocks: give (low, high) or None for each block")
    for k, pair in enumerate(pairs):
        if pair is not None and not pair[0] < pair[1]:
            raise InputError(f"bounds[{k}] = {pair}: give (low, high) with low below high, or None")
    if start is not None:
        want, got = [tuple(s.shape) for s in state], [tuple(s.shape) for s in start]
        if want != got:
            raise InputError(f"start has shapes {got}: this network and batch need {want}; pass start=None for zeros")
        for k, (s, zeros, limits) in enumerate(zip(start, state, bounds_of(net, len(state)), strict=True)):
            if s.dtype != zeros.dtype or s.device != zeros.device:
                raise InputError(f"start[{k}] is {s.dtype} on {s.device}, not {zeros.dtype} on {zeros.device}: convert it")
            low, high = limits or (-torch.finfo(s.dtype).max, torch.finfo(s.dtype).max)
            held = k == len(state) - 1 and isinstance(boundary, Clamp)  # its start is not used: a clamp may be anywhere
            if not held and not recording() and not bool(((s >= low) & (s <= high)).all()):
                raise InputError(f"start[{k}] holds values outside [{low:g}, {high:g}] or NaN: clamp it, or pass start=None")
        state = tuple(start)
    if isinstance(boundary, Clamp):
        if boundary.value.shape != state[-1].shape:
            raise InputError(
                f"the clamp has shape {tuple(boundary.value.shape)}, the output {tuple(state[-1].shape)}: make them alike"
            )
        state = (*state[:-1], boundary.output(state[-1]))
    return state


def _chebyshev(rho2: float) -> Iterator[float]:
    yield 1.0
    omega = 1 / (1 - rho2 / 2)
    while True:
        yield omega
        omega = 1 / (1 - rho2 * omega / 4)


def _number(text: float | str, otherwise: float | str) -> float | str:
    try:
        return float(text)
    except (ValueError, TypeError):
        return otherwise
