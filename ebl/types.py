"""The small interfaces everything else is written against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, ...]
"""The free layers (blocks), input side first; `state[-1]` is the output layer. Never changed in place."""

Memo: TypeAlias = dict[Any, Any]
"""Scratch space that lives for one relaxation: a model may keep there what it need not compute again.

When both phases of a rule run as one batch, memo["twice"] is (x, memo of the free phase): the batch holds that x twice."""


class Energy(Protocol):
    """What a model must give: a start and an energy. Every rule works with just these two.

    A model may add, as attributes or methods:
      update(k, x, state, boundary, memo)   block k's minimiser within its bounds, the others held; at the output
                                            boundary.output(h), with h the free minimiser (else autograd makes one)
      gradients(x, state, weights, memo)    d/dtheta of sum_b weights[b] E_b, in the order of parameters()
      interactions                          pairs (i, j) of blocks that share a term (else: all pairs)
      bounds                                (low, high) or None for each block (else: no bounds)
      check(x, boundary)                    raises InputError for what does not fit
    """

    def init_state(self, x: Tensor) -> State: ...

    def energy(self, x: Tensor, state: State) -> Tensor: ...  # (B,), every term included

    def parameters(self, recurse: bool = ...) -> Iterator[nn.Parameter]: ...


class Boundary(Protocol):
    """What holds at the output layer during a phase."""

    def energy(self, output: Tensor) -> Tensor | float: ...  # the term it adds to E, (B,)

    def output(self, h: Tensor) -> Tensor: ...  # argmin_o 1/2 |o - h|^2 + that term


@dataclass(frozen=True)
class Trajectory:
    """What was seen after each iteration; the first dimension counts iterations."""

    energy: Tensor  # (T, B), the boundary's term included
    residual: Tensor  # (T, B)
    output: Tensor  # (T, B, ...)


@dataclass(frozen=True)
class Settled:
    """Where a relaxation ended."""

    state: State
    residual: Tensor  # (B,): rms way of the worst block to where its update leads, as the last iteration met it
    iterations: int
    trajectory: Trajectory | None = None
