"""The functions that the learning rules descend, or are said to descend: (B,), a number for each example.

Phases relax to `tolerance` in float64 (a network of another type is copied), the perturbed ones from the free state;
where one does not settle, an AssumptionError says so. F is the least energy if that start leads to the least minimum.
"""

from __future__ import annotations

import math

from torch import Tensor

from ebl.costs import Cost
from ebl.errors import InputError
from ebl.theory.phases import FREE_PHASE, TOLERANCE, Loss, Phase, Problem, contrast, problem, settle, value
from ebl.theory.stiffness import times_stiffness
from ebl.types import Energy, State


def free_energy(
    net: Energy,
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    cost: Cost | None = None,
    start: State | None = None,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """F(beta, theta) = min over h and o of E + beta C."""
    return _value(net, x, y, {Phase("nudge", _finite(beta)): 1.0}, cost, start, tolerance)


def surrogate_loss(
    net: Energy,
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    cost: Cost | None = None,
    start: State | None = None,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """L_beta = (F(beta) - F(0)) / beta, with beta of either sign: what P-EP and N-EP descend."""
    return _value(net, x, y, contrast("nudge", 0, _not_zero(beta)), cost, start, tolerance)


def centred_surrogate_loss(
    net: Energy,
    x: Tensor,
    y: Tensor,
    beta: float,
    *,
    cost: Cost | None = None,
    start: State | None = None,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """L_-beta;+beta = (F(beta) - F(-beta)) / (2 beta): what C-EP descends."""
    return _value(net, x, y, contrast("nudge", -beta, _not_zero(beta)), cost, start, tolerance)


def contrastive_function(
    net: Energy, x: Tensor, y: Tensor, *, start: State | None = None, tolerance: float = TOLERANCE
) -> Tensor:
    """L_CL = min over h of E(h, y) - E(h*, o*): what CL descends."""
    return _value(net, x, y, contrast("clamp", 0, 1), None, start, tolerance)


def coupled_loss_1(net: Energy, x: Tensor, y: Tensor, *, start: State | None = None, tolerance: float = TOLERANCE) -> Tensor:
    """L1 = (y - o*)^T G_oo (y - o*), with G(o) = min over h of E."""
    p = problem(net, x, y, tolerance=tolerance)
    return coupled_loss_1_at(p, settle(p, [FREE_PHASE], begin=start)[FREE_PHASE])


def coupled_loss_2(
    net: Energy, x: Tensor, y: Tensor, beta: float, *, start: State | None = None, tolerance: float = TOLERANCE
) -> Tensor:
    """L2 = (E(h_beta, o_beta) - E(h*, o*)) / beta, with o_beta = o* + beta (y - o*), beta of either sign."""
    return _value(net, x, y, contrast("clamp", 0, _not_zero(beta)), None, start, tolerance)


def coupled_loss_1_at(p: Problem, free: State) -> Tensor:
    gap = p.target - free[-1]
    return (gap * times_stiffness(p.net, p.x, free, gap)).flatten(1).sum(1)


def _value(net: Energy, x: Tensor, y: Tensor, loss: Loss, cost: Cost | None, start: State | None, tolerance: float) -> Tensor:
    p = problem(net, x, y, cost, tolerance)
    return value(p, loss, settle(p, loss, begin=start))


def _finite(beta: float) -> float:
    if not math.isfinite(beta):
        raise InputError(f"beta = {beta}: use a finite number such as 0.25")
    return float(beta)


def _not_zero(beta: float) -> float:
    if beta == 0:
        raise InputError("beta = 0: the loss divides by beta; use a value such as 0.25 or -0.25")
    return _finite(beta)
