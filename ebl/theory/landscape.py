"""The seven rules on a real energy of two outputs: what the paper's first figure sketches, computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ebl.rules import RULES, estimate_gradients
from ebl.rules.contrast import Contrast
from ebl.theory.phases import FREE_PHASE, Loss, contrast, problem, settle
from ebl.types import State

SEVEN = ("cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")
TARGET = (1.5, 1.05)
WINDOW = (-1.9, 2.3, -1.25, 1.75)  # what the picture shows: o1 from, to, o2 from, to


class Landscape(nn.Module):
    """A bent valley plus bumps: E = 1/2 a u^2 + 1/2 b (v - c u^2)^2 + d u^4 + sum_i theta_i exp(-|o - c_i|^2 / 2 w^2).

    (u, v) are the outputs, turned; the c_i lie on a grid. With so many parameters a step changes the energy where the rule
    asks for it: dE/dtheta_i is a bump's height at o, so a step adds a hill at one configuration and a dent at the other.
    """

    centres: Tensor

    def __init__(self, width: float = 0.5, turn: float = -0.35) -> None:
        super().__init__()
        self.width, self.turn = width, torch.tensor(turn, dtype=torch.float64)
        left, right, low, high = WINDOW
        rows, columns = (torch.arange(a - 1, b + 1, width, dtype=torch.float64) for a, b in ((low, high), (left, right)))
        self.register_buffer("centres", torch.cartesian_prod(columns, rows))
        self.theta = nn.Parameter(torch.zeros(len(self.centres), dtype=torch.float64))

    def init_state(self, x: Tensor) -> State:
        return (self.theta.new_zeros(len(x), 2),)

    def energy(self, x: Tensor, state: State) -> Tensor:
        o = state[0]
        c, s = self.turn.cos(), self.turn.sin()
        u, v = c * o[:, 0] + s * o[:, 1], c * o[:, 1] - s * o[:, 0]
        valley = 0.35 * u**2 + 1.1 * (v - 0.35 * u**2) ** 2 + 0.03 * u**4
        distance = (o[:, None] - self.centres).square().sum(2)
        return valley + (distance / (-2 * self.width**2)).exp() @ self.theta


@dataclass(frozen=True)
class Panel:
    """One rule: where its phases settle, and what a step does."""

    raised: list[float]  # the configuration whose energy the rule raises
    lowered: list[float]
    change: Tensor  # of the energy over the picture's grid, in parts of its largest size
    free: list[float]  # o*
    moved: list[float]  # o* after the step


@dataclass(frozen=True)
class SevenRules:
    o1: Tensor  # the grid (columns,)
    o2: Tensor  # (rows,)
    energy: Tensor  # (rows, columns), before any step
    target: list[float]
    beta: float
    panels: dict[str, Panel]


def seven_rules(beta: float = 0.4, rate: float = 0.06, points: int = 121) -> SevenRules:
    left, right, low, high = WINDOW
    o1, o2 = (torch.linspace(a, b, points, dtype=torch.float64) for a, b in ((left, right), (low, high)))
    grid = torch.stack(torch.meshgrid(o1, o2, indexing="xy"), 2).reshape(-1, 2)
    panels = {rule: _panel(rule, None if rule == "cl" else beta, rate, grid, (len(o2), len(o1))) for rule in SEVEN}
    return SevenRules(o1, o2, _over(Landscape(), grid, (len(o2), len(o1))), list(TARGET), beta, panels)


def _panel(rule: str, beta: float | None, rate: float, grid: Tensor, shape: tuple[int, int]) -> Panel:
    net = Landscape()
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([TARGET], dtype=torch.float64)
    p = problem(net, x, y)
    row = RULES[rule]
    assert isinstance(row, Contrast)
    size = row.beta if beta is None else beta
    loss: Loss = contrast(row.boundary, row.first * size, row.second * size)
    states = settle(p, loss)
    estimate_gradients(net, x, y, rule=rule, beta=beta, free=p.schedule(), nudged=p.schedule())
    raised, lowered = (states[min(loss, key=lambda q: s * loss[q])][0][0].tolist() for s in (1, -1))
    before = _over(net, grid, shape)
    assert net.theta.grad is not None
    with torch.no_grad():
        net.theta.sub_(rate * net.theta.grad)
    change = _over(net, grid, shape) - before
    free = states[FREE_PHASE]
    after = settle(p, [], begin=free)[FREE_PHASE]
    return Panel(raised, lowered, change / change.abs().max(), free[0][0].tolist(), after[0][0].tolist())


def _over(net: Landscape, grid: Tensor, shape: tuple[int, int]) -> Tensor:
    with torch.no_grad():
        return net.energy(torch.zeros(len(grid), 1), (grid,)).view(shape)
