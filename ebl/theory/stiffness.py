"""How stiff the output is once the hidden units give way: the Hessian of G(o) = min over h of E. And what moves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ebl.models.autograd import bounds_of
from ebl.rules.differentiate import by_parameters
from ebl.shapes import per_example
from ebl.theory.phases import AssumptionError
from ebl.types import Energy, State

PRECISION = 1e-13  # of the linear solve, relative


def times_stiffness(net: Energy, x: Tensor, state: State, v: Tensor) -> Tensor:
    """(E_oo - E_oh E_hh^-1 E_ho) v at an equilibrium, over the hidden units that are not held at a bound.

    The solve is by conjugate gradients on products of the Hessian with vectors, every example by itself.
    """
    hidden = len(state) - 1
    free = _unclamped(net, state)[:-1]
    _, hessian = _curvature(net, x, state)

    def hidden_hessian(vectors: list[Tensor]) -> list[Tensor]:
        return _where(free, hessian([*vectors, torch.zeros_like(v)])[:hidden])

    zeros = [torch.zeros_like(s) for s in state[:-1]]
    pulled = _where(free, hessian([*zeros, v])[:hidden])
    give = _solve(hidden_hessian, pulled) if hidden else []
    return hessian([*(-z for z in give), v])[-1]


def output_response(net: Energy, x: Tensor, state: State, v: Tensor) -> list[Tensor]:
    """v . do*/dtheta at an equilibrium, summed over the examples, in the order of parameters(): -v . (H^-1 dE_s/dtheta)_o over
    the units that are not held at a bound. From the energy alone: how the network settles has no part in it."""
    free = _unclamped(net, state)
    slopes, hessian = _curvature(net, x, state)
    zeros = [torch.zeros_like(s) for s in state[:-1]]
    way = _solve(lambda vectors: _where(free, hessian(vectors)), _where(free, [*zeros, v]))
    curved = [(g, -w) for g, w in zip(slopes, way, strict=True) if g.requires_grad]
    return by_parameters(net, [g for g, _ in curved], [w for _, w in curved])


def _curvature(net: Energy, x: Tensor, state: State) -> tuple[Sequence[Tensor], Callable[[list[Tensor]], list[Tensor]]]:
    """dE/ds, and products of the Hessian with vectors."""
    with torch.enable_grad():
        at = tuple(s.detach().requires_grad_() for s in state)
        slopes = torch.autograd.grad(net.energy(x, at).sum(), at, create_graph=True, allow_unused=True, materialize_grads=True)
    curved = [g for g in slopes if g.requires_grad]

    def hessian(vectors: list[Tensor]) -> list[Tensor]:
        along = [u for g, u in zip(slopes, vectors, strict=True) if g.requires_grad]
        if not curved:
            return [torch.zeros_like(u) for u in vectors]
        found = torch.autograd.grad(curved, at, along, retain_graph=True, allow_unused=True, materialize_grads=True)
        return [f.detach() for f in found]

    return slopes, hessian


def _unclamped(net: Energy, state: State) -> list[Tensor]:
    """Which units of each block are not held at a bound."""
    pairs = [pair or (-torch.inf, torch.inf) for pair in bounds_of(net, len(state))]
    return [(s > low) & (s < high) for s, (low, high) in zip(state, pairs, strict=True)]


def _where(masks: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    return [torch.where(mask, u, 0.0) for mask, u in zip(masks, vectors, strict=True)]


def _solve(times: Callable[[list[Tensor]], list[Tensor]], b: list[Tensor]) -> list[Tensor]:
    """Conjugate gradients."""
    z = [torch.zeros_like(u) for u in b]
    r, d = b, b
    size = _dot(r, r)
    enough = PRECISION**2 * size
    for _ in range(2 * sum(u[0].numel() for u in b) + 10):
        going = size > enough
        if not going.any():
            return z
        hd = times(d)
        curvature = _dot(d, hd)
        if bool((curvature[going] <= 0).any()):
            raise AssumptionError("the free state is no strict minimum: the energy does not curve upwards around it")
        step = torch.where(going, size / curvature.where(going, torch.ones_like(curvature)), 0.0)
        z = [u + per_example(step, u) * w for u, w in zip(z, d, strict=True)]
        r = [u - per_example(step, u) * w for u, w in zip(r, hd, strict=True)]
        new = _dot(r, r)
        turn = torch.where(going, new / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)
        d = [u + per_example(turn, u) * w for u, w in zip(r, d, strict=True)]
        size = new
    raise AssumptionError("the energy's Hessian is too ill-conditioned to be inverted")


def _dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return torch.stack([(u * w).flatten(1).sum(1) for u, w in zip(a, b, strict=True)]).sum(0)
