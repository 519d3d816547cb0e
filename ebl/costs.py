"""Costs of the output layer. A new cost is a class with these three methods and a limit.

The target y has the output's shape; labels are turned into one-hot codes before they get here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Cost(Protocol):
    lowest_beta: ClassVar[float]  # at and below this beta, 1/2|o - h|^2 + beta C has no single minimum

    def value(self, output: Tensor, target: Tensor) -> Tensor: ...  # (B,)

    def gradient(self, output: Tensor, target: Tensor) -> Tensor: ...  # dC/do, the output's shape

    def prox(self, h: Tensor, target: Tensor, beta: Tensor | float) -> Tensor: ...  # argmin_o 1/2|o - h|^2 + beta C


@dataclass(frozen=True)
class SquaredError:
    """C(o, y) = 1/2 |o - y|^2; its prox is (h + beta y) / (1 + beta)."""

    lowest_beta: ClassVar[float] = -1.0

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (output - target).flatten(1).square().sum(1)

    def gradient(self, output: Tensor, target: Tensor) -> Tensor:
        return output - target

    def prox(self, h: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
        return (h + beta * target) / (1 + beta)


@dataclass(frozen=True)
class CrossEntropy:
    """C(o, y) = -sum_i y_i log softmax(o)_i, with targets that sum to one."""

    lowest_beta: ClassVar[float] = -2.0
    newton_steps: int = 30

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return -(target * output.log_softmax(1)).sum(1)

    def gradient(self, output: Tensor, target: Tensor) -> Tensor:
        return output.softmax(1) - target

    def prox(self, h: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
        """Newton's method on 1/2|o - h|^2 + beta C(o, y), convex for beta > -2; a step is halved until the slope has fallen."""
        beta = torch.as_tensor(beta, dtype=h.dtype, device=h.device).expand(len(h), 1)
        eye = torch.eye(h.shape[1], dtype=h.dtype, device=h.device)

        def slope(o: Tensor) -> Tensor:
            return o - h + beta * self.gradient(o, target)

        o = h
        for _ in range(self.newton_steps):
            p, r = o.softmax(1), slope(o)
            if bool((r.abs() <= 4 * torch.finfo(h.dtype).eps * (1 + h.abs())).all()):
                break
            hessian = eye + beta[:, :, None] * (torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
            step = torch.linalg.solve(hessian, r)
            size = torch.ones_like(beta)
            for _ in range(8):
                worse = slope(o - size * step).norm(dim=1, keepdim=True) > r.norm(dim=1, keepdim=True) * (1 - size / 4)
                size = torch.where(worse, size / 2, size)
            o = o - size * step
        return o


def too_far(what: str, cost: Cost) -> str:
    """What to say of a push away from the target that leaves the output without a minimum; `what` names it, as beta = 1."""
    limit, name = -cost.lowest_beta, type(cost).__name__
    if limit <= 0:
        return f"{what}: it pushes away from the target, which {name} does not allow (lowest_beta); use p-ep, or clamping"
    return (
        f"{what}: it pushes away from the target, and with {name} the nudged output has no minimum from {limit:g} on; "
        f"use a smaller one such as {min(0.25, limit / 2):g}"
    )
