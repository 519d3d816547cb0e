"""The energy-based rules: each contrasts dE/dtheta at two equilibria, (dE(b2) - dE(b1)) / (b2 - b1).

The phases differ in what holds at the output: EP nudges it (beta C is added to the energy), CL and CpL clamp it to
o + beta (y - o), with o the free output. Both phases start from the free state and cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ebl.boundary import Clamp, Nudge
from ebl.costs import Cost, too_far
from ebl.errors import InputError, choose
from ebl.relax import Schedule, relax
from ebl.rules.differentiate import by_parameters
from ebl.shapes import per_example
from ebl.types import Boundary, Energy, Memo, Settled, State


@dataclass(frozen=True)
class Contrast:
    boundary: Literal["nudge", "clamp"]
    first: int  # b1, in units of beta
    second: int  # b2, in units of beta
    beta: float = 0.25  # unless the caller gives another
    beta_is_fixed: bool = False
    random_sign: bool = False  # of beta, drawn for each example

    def __post_init__(self) -> None:
        choose("boundary", self.boundary, ("nudge", "clamp"))
        if self.first == self.second:
            raise InputError(f"second = {self.second} with first = {self.first}: a contrast needs two phases, such as 0 and 1")

    def check_beta(self, name: str, beta: float | None, cost: Cost | None = None) -> float:
        """The beta to use, or an error. `cost` is given where the output has unit curvature: its limit then holds."""
        if beta is None:
            return self.beta
        if self.beta_is_fixed and beta != self.beta:
            raise InputError(f"beta = {beta:g} for {name}: its beta is {self.beta:g} by definition; leave beta out")
        if beta == 0:
            raise InputError(f"beta = 0 for {name}: the contrast divides by beta; use a value such as 0.25")
        if not 0 < beta < torch.inf:
            raise InputError(f"beta = {beta:g} for {name}: give its size, the rule sets the sign; use a value such as 0.25")
        pushes = self.boundary == "nudge" and (self.first < 0 or self.random_sign)
        if cost is not None and pushes and -beta <= cost.lowest_beta:
            raise InputError(too_far(f"beta = {beta:g} for {name}", cost))
        return beta

    def gradients(
        self,
        net: Energy,
        x: Tensor,
        target: Tensor,
        free: Settled,
        free_memo: Memo,
        nudged: Schedule,
        cost: Cost,
        beta: float,
        generator: torch.Generator | None,
    ) -> tuple[list[Tensor], Settled]:
        """The estimate for each parameter, and where the second phase ended. Both phases run as one batch of 2B."""
        b1, b2 = self.betas(target, beta, generator)
        x2, free2, target2 = _twice(x), tuple(map(_twice, free.state)), _twice(target)
        boundary = self.hold(cost, free2[-1], target2, torch.cat([b1, b2]))
        memo: Memo = {"twice": (x, free_memo)}
        settled = relax(net, x2, nudged, start=free2, boundary=boundary, memo=memo)
        weights = torch.cat([-1 / (b2 - b1), 1 / (b2 - b1)]) / len(x)
        gradients = weighted_gradients(net, x2, settled.state, weights, memo)
        second = tuple(s[len(x) :] for s in settled.state)
        residual = torch.maximum(*settled.residual.chunk(2))
        return gradients, Settled(second, residual, settled.iterations)

    def betas(self, target: Tensor, beta: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """b1 and b2 for each example."""
        one = target.new_full((len(target),), beta)
        if self.random_sign:
            coins = torch.rand(len(target), generator=generator)
            one = torch.where(coins.to(target.device) < 0.5, -one, one)
        return self.first * one, self.second * one

    def hold(self, cost: Cost, output: Tensor, target: Tensor, betas: Tensor) -> Boundary:
        if self.boundary == "nudge":
            return Nudge(cost, target, betas)
        return Clamp(output + per_example(betas, output) * (target - output))


def weighted_gradients(net: Energy, x: Tensor, state: State, weights: Tensor, memo: Memo | None = None) -> list[Tensor]:
    """d/dtheta of sum_b weights[b] E_b at a given state, in the order of parameters(): one pass, the signs folded in."""
    closed_form = getattr(net, "gradients", None)
    if closed_form is not None:
        with torch.no_grad():
            return list(closed_form(x, state, weights, memo))
    with torch.enable_grad():
        total = (weights * net.energy(x, tuple(s.detach() for s in state))).sum()
        return by_parameters(net, [total])


def _twice(t: Tensor) -> Tensor:
    return torch.cat([t, t])
