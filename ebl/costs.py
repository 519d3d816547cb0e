"""Costs of the output layer. A new cost is a class with these three methods.

The target y has the output's shape; labels are turned into one-hot codes before they get here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

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
    newton_steps: int = 12

    def value(self, output: Tensor, target: Tensor) -> Tensor:
        return -(target * output.log_softmax(1)).sum(1)

    def gradient(self, output: Tensor, target: Tensor) -> Tensor:
        return output.softmax(1) - target

    def prox(self, h: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
        """Newton's method on o - h + beta (p - y) = 0, with p = softmax(o).

        The Jacobian D - beta p p^T, D = diag(1 + beta p), is inverted by Sherman and Morrison's formula.
        """
        o = h - beta * self.gradient(h, target)
        for _ in range(self.newton_steps):
            p = o.softmax(1)
            r = o - h + beta * (p - target)
            d = 1 + beta * p
            q = p / d
            o = o - (r / d + q * beta * (q * r).sum(1, keepdim=True) / (1 - beta * (p * q).sum(1, keepdim=True)))
        return o
