"""A block update for any energy: all it needs is `energy`, the rest is autograd's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ebl.errors import InputError
from ebl.shapes import per_example
from ebl.types import Boundary, Energy, Memo, State

HALVINGS = 40


def autograd_update(
    net: Energy, k: int, x: Tensor, state: State, boundary: Boundary, memo: Memo, omega: float = 1.0
) -> tuple[Tensor, Tensor]:
    """s_k - t g / c: a gradient step of the energy (with the boundary's term), scaled by the block's curvature c.

    c is the diagonal of the block's Hessian if its units do not interact (then a quadratic energy is minimised in one
    step), else its largest eigenvalue. t starts at omega and is halved, example by example, until the energy does
    not rise. Returns the moved block and the one that t = 1 would give: its distance to s_k is the residual.
    Under autograd, the step sizes count as constants: unrolled, it still tends to the implicit gradient.
    """
    differentiable = torch.is_grad_enabled()
    low, high = bounds_of(net, len(state))[k] or (-torch.inf, torch.inf)

    def total(s: Tensor) -> Tensor:
        moved = (*state[:k], s, *state[k + 1 :])
        extra = boundary.energy(s) if k == len(state) - 1 else 0.0
        return net.energy(x, moved) + extra

    with torch.enable_grad():
        # an alias: blocks that were computed from state[k] count as held, so the derivative is the partial one
        s = state[k].view_as(state[k]) if state[k].requires_grad else state[k].detach().requires_grad_()
        before = total(s)
        if before.shape != (len(x),):
            raise InputError(f"energy has shape {tuple(before.shape)} for {len(x)} examples: return one number for each, (B,)")
        g = torch.zeros_like(s)  # of a block without a part in the energy
        if before.requires_grad:
            (g,) = torch.autograd.grad(before.sum(), s, create_graph=True, allow_unused=True, materialize_grads=True)
        elif not net.energy(x, tuple(v.detach().requires_grad_() for v in state)).requires_grad:
            raise InputError("the energy does not depend on the state for autograd: use no detach, no_grad or numpy in it")
    before, gd, sd = before.detach(), g.detach(), s.detach()
    blocked = ((sd <= low) & (gd > 0)) | ((sd >= high) & (gd < 0))  # at a bound, and pushed against it
    step = 1 / _curvature(g, s, memo, k)
    direction = torch.where(blocked, 0.0, gd) * step

    def along(t: Tensor | float) -> Tensor:
        return (sd - (per_example(t, sd) if isinstance(t, Tensor) else t) * direction).clamp(low, high)

    with torch.no_grad():
        slack = 16 * torch.finfo(before.dtype).eps * (1 + before.abs())
        t = torch.full_like(before, omega)
        for halving in range(HALVINGS):
            risen = ~(total(along(t)) <= before + slack)  # NaN counts as risen
            if not risen.any():
                break
            t = torch.where(risen, t / 2 if halving < HALVINGS - 1 else 0.0, t)
    if not differentiable:
        return along(t), along(1.0)
    return torch.where(blocked, sd, (s - per_example(t, sd) * step * g).clamp(low, high)), along(1.0)


def bounds_of(net: Energy, num_blocks: int) -> tuple[tuple[float, float] | None, ...]:
    """The declared bounds of each block; none unless declared."""
    declared: Any = getattr(net, "bounds", None)
    return declared if declared is not None else (None,) * num_blocks


def _curvature(g: Tensor, s: Tensor, memo: Memo, k: int) -> Tensor:
    """A positive curvature for every unit, from products of the Hessian with vectors; each example by itself."""
    if not g.requires_grad:
        return torch.ones_like(s)

    def times(v: Tensor) -> Tensor:
        (h,) = torch.autograd.grad(g, s, v, retain_graph=True, allow_unused=True, materialize_grads=True)
        return h.detach()

    row_sums = times(torch.ones_like(s))
    if ("diagonal", k) not in memo:  # then H v = (H 1) v; a vector without symmetries, so that no structure hides
        v = _fixed_vector(s, k)
        difference = _norm(times(v) - row_sums * v)
        memo["diagonal", k] = difference <= 1e-4 * _norm(row_sums * v) + 1e-6
        memo["eigenvector", k] = v, 24
    diagonal = memo["diagonal", k]
    c = row_sums.abs()
    if not bool(diagonal.all()):
        v, rounds = memo["eigenvector", k]
        for _ in range(rounds):
            v = times(v / per_example(_norm(v).clamp_min(1e-30), v))
        largest = _norm(v)
        memo["eigenvector", k] = torch.where(per_example(largest > 0, v), v, _fixed_vector(s, k)), 4
        c = torch.where(per_example(diagonal, s), c, per_example(largest, s))
    largest = c.flatten(1).amax(1)
    floor = torch.where(largest > 0, 1e-6 * largest, 1.0)  # flat directions: a long step, but a finite one
    return torch.maximum(c, per_example(floor, s))


def _fixed_vector(s: Tensor, seed: int) -> Tensor:
    """Normally distributed numbers, the same for every example."""
    return torch.randn(s.shape[1:], generator=torch.Generator().manual_seed(seed)).to(s).expand_as(s)


def _norm(v: Tensor) -> Tensor:
    return v.flatten(1).norm(dim=1)
