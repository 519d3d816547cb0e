"""Two energies on which a step of coupled learning raises what it is said to lower (the paper's appendix B).

No input and no hidden units: x only says how many copies of the example there are. y = 0; the outputs are unbounded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ebl.types import State


class SquaredErrorRises(nn.Module):
    """E = 1/2 (o - b)^T A (o - b), A = [[1, -1], [-1, 2]], b = (1 + t2, t1 + 2 t2).

    o* = b, so |o* - y|^2 = |b|^2. From t = (0, 0) one step of CL or CpL, whatever its beta, leads to t = (eta, eta):
    |o* - y|^2 rises by exactly 2 eta + 10 eta^2.
    """

    a: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.register_buffer("a", torch.tensor([[1.0, -1.0], [-1.0, 2.0]], dtype=torch.float64))

    def init_state(self, x: Tensor) -> State:
        return (self.theta.new_zeros(len(x), 2),)

    def energy(self, x: Tensor, state: State) -> Tensor:
        t1, t2 = self.theta
        gap = state[0] - torch.stack([1 + t2, t1 + 2 * t2])
        return 0.5 * ((gap @ self.a) * gap).sum(1)

    def example(self) -> tuple[Tensor, Tensor]:
        return self.theta.new_zeros(1, 1), self.theta.new_zeros(1, 2)


class CoupledLossRises(nn.Module):
    """E = 1/2 (5 - 4 t) (o - t)^2, with 0 < t < 5/4.

    o* = t, so L1 = (5 - 4 t) t^2, and dE/dt = -(5 - 6 t + 2 o)(o - t). From t = 1 one step at a signed beta leads to
    t = 1 - (1 - 2 beta) eta: L1 rises by 2 eta (1 - 2 beta) + O(eta^2), so for every beta < 1/2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones((), dtype=torch.float64))

    def init_state(self, x: Tensor) -> State:
        return (self.theta.new_zeros(len(x), 1),)

    def energy(self, x: Tensor, state: State) -> Tensor:
        return (0.5 * (5 - 4 * self.theta) * (state[0] - self.theta) ** 2).sum(1)

    def example(self) -> tuple[Tensor, Tensor]:
        return self.theta.new_zeros(1, 1), self.theta.new_zeros(1, 1)
