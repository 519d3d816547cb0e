"""The three things that can hold at the output: nothing, a nudge towards a target, a clamp."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ebl.costs import Cost
from ebl.shapes import per_example
from ebl.types import Boundary


@dataclass(frozen=True)
class Free:
    """The output settles by itself."""

    def energy(self, output: Tensor) -> float:
        return 0.0

    def output(self, h: Tensor) -> Tensor:
        return h


@dataclass(frozen=True)
class Nudge:
    """beta C(o, y) is added to the energy; beta may differ from example to example."""

    cost: Cost
    target: Tensor
    beta: Tensor | float  # a number or (B,)

    def energy(self, output: Tensor) -> Tensor:
        return self.beta * self.cost.value(output, self.target)

    def output(self, h: Tensor) -> Tensor:
        beta = self.beta
        if isinstance(beta, Tensor):
            beta = per_example(beta, h)
        return self.cost.prox(h, self.target, beta)


@dataclass(frozen=True)
class Clamp:
    """The output is held at a given value."""

    value: Tensor

    def energy(self, output: Tensor) -> float:
        return 0.0

    def output(self, h: Tensor) -> Tensor:
        return self.value


FREE: Boundary = Free()
