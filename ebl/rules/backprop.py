"""The two baselines that differentiate the cost at the free equilibrium instead of contrasting two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ebl.boundary import FREE
from ebl.costs import Cost
from ebl.errors import InputError
from ebl.parallel import everywhere
from ebl.relax import Schedule, sweep, update_groups
from ebl.rules.differentiate import by_parameters
from ebl.types import Energy, Memo, Settled, State


def _no_beta(name: str, beta: float | None) -> float:
    if beta is not None:
        raise InputError(f"beta = {beta:g} for {name}: it does not nudge; leave beta out")
    return 0.0


@dataclass(frozen=True)
class Unrolled:
    """TBP: backpropagation through K more iterations from the free state."""

    def check_beta(self, name: str, beta: float | None, cost: Cost | None = None) -> float:
        return _no_beta(name, beta)

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
        groups = update_groups(net, len(free.state), nudged.order, FREE)
        factors = nudged.factors()
        memo: Memo = {}
        state, gaps = free.state, [free.residual]
        with torch.enable_grad():
            for _ in range(nudged.iterations):
                state, gaps = sweep(net, x, state, FREE, groups, factors, memo, watch=True)
            total = cost.value(state[-1], target).mean()
            found = by_parameters(net, [total])
        end = tuple(s.detach() for s in state)
        return found, Settled(end, torch.stack(gaps).amax(0), nudged.iterations)


@dataclass(frozen=True)
class Linearised:
    """RBP: the adjoint of one iteration s -> G(s), taken at the free state and iterated K times.

    lambda <- dC/ds + (dG/ds)^T lambda, from dC/ds; the gradient is (dG/dtheta)^T lambda. The paper's RBP takes G
    synchronous; any order has the same limit, and the asynchronous ones get there sooner.
    """

    order: str = "synchronous"

    def check_beta(self, name: str, beta: float | None, cost: Cost | None = None) -> float:
        return _no_beta(name, beta)

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
        """With a tolerance, stops once lambda moves by no more than that part of dC/ds (rms, every example)."""
        factors = replace(nudged, omega=1.0).factors()
        groups = update_groups(net, len(free.state), self.order, FREE)
        at = tuple(s.detach().requires_grad_() for s in free.state)
        memo: Memo = {}
        with torch.enable_grad():
            after, _ = sweep(net, x, at, FREE, groups, factors, memo)
        seed = (*map(torch.zeros_like, at[:-1]), cost.gradient(at[-1].detach(), target) / len(x))
        adjoint, residual, iterations = seed, free.residual, 0
        while iterations < nudged.iterations:
            pulled = torch.autograd.grad(after, at, adjoint, retain_graph=True, allow_unused=True, materialize_grads=True)
            moved = tuple(s + p for s, p in zip(seed, pulled, strict=True))
            residual = _rms_change(moved, adjoint, seed)
            adjoint = moved
            iterations += 1
            if nudged.tolerance is not None and everywhere(bool((residual <= nudged.tolerance).all())):
                break
        found = by_parameters(net, after, adjoint)
        return found, Settled(free.state, residual, iterations)


def _rms_change(new: State, old: State, seed: State) -> Tensor:
    change = torch.stack([(a - b).flatten(1).square().mean(1).sqrt() for a, b in zip(new, old, strict=True)])
    scale = seed[-1].flatten(1).square().mean(1).sqrt()
    return change.amax(0) / scale.clamp_min(torch.finfo(scale.dtype).tiny)
