"""The appendix's two counter-examples under all nine rules: what one step of plain gradient descent does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ebl.errors import choose
from ebl.models.counterexamples import CoupledLossRises, SquaredErrorRises
from ebl.relax import Schedule
from ebl.rules import estimate_gradients
from ebl.theory.losses import coupled_loss_1_at
from ebl.theory.phases import FREE_PHASE, Problem, problem, settle
from ebl.theory.statements import Row, make_row, order_of
from ebl.types import State

NINE = ("tbp", "rbp", "cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")
EXAMPLES: dict[str, Any] = {"squared-error": SquaredErrorRises, "l1": CoupledLossRises}
BETAS = (0.05, 0.25, 0.45, 0.8, 2.0)
RATES = (4e-3, 2e-3, 1e-3)
UNROLLED = 400  # iterations that tbp backpropagates through


@dataclass(frozen=True)
class Step:
    """What one step changed."""

    squared_error: float  # |o* - y|^2: after minus before
    l1: float
    theta: list[float]  # where the step led


def steps(example: str, rule: str, rates: Sequence[float], beta: float | None = None) -> list[Step]:
    """One step of gradient descent from the appendix's theta, at each of several learning rates."""
    net = EXAMPLES[choose("example", example, EXAMPLES)]()
    p = problem(net, *net.example())
    theta = net.theta.detach().clone()
    free = settle(p, [])[FREE_PHASE]
    before = _losses(p, free)
    nudged = Schedule(UNROLLED) if rule == "tbp" else p.schedule()
    estimate_gradients(net, p.x, p.target, rule=rule, beta=beta, free=p.schedule(), nudged=nudged, start=free)
    found = []
    for rate in rates:
        with torch.no_grad():
            net.theta.copy_(theta - rate * net.theta.grad)
        after = _losses(p, settle(p, [], begin=free)[FREE_PHASE])
        found.append(Step(after[0] - before[0], after[1] - before[1], net.theta.detach().flatten().tolist()))
    return found


def nine_rules(rate: float = 0.01) -> dict[str, dict[str, Step]]:
    """For each rule at its own beta, a step on each example."""
    return {rule: {name: steps(name, rule, [rate])[0] for name in EXAMPLES} for rule in NINE}


def coupled_steps(example: str, beta: float, rates: Sequence[float]) -> list[Step]:
    """CpL at a signed beta."""
    return steps(example, "p-cpl" if beta > 0 else "n-cpl", rates, abs(beta))


def statements_on_counterexamples() -> list[Row]:
    return [_squared_error_rises(), *_coupled_loss_rises()]


def _squared_error_rises() -> Row:
    rates, off = (1e-2, 1e-1), 0.0
    for rule, beta in (("cl", None), *((rule, b) for rule in ("p-cpl", "n-cpl", "c-cpl") for b in (0.25, 2.0))):
        for rate, seen in zip(rates, steps("squared-error", rule, rates, beta), strict=True):
            off = max(off, abs(seen.squared_error / (2 * rate + 10 * rate**2) - 1))
    return make_row("a step of CL or CpL raises |o★ − y|² by 2η + 10η²: relative error", "appendix B.2", "<=", 1e-9, off)


def _coupled_loss_rises() -> list[Row]:
    signed, last = [*BETAS, *(-b for b in BETAS)], RATES[-1]
    changes = {b: [s.l1 for s in coupled_steps("l1", b, RATES)] for b in signed}
    rest = {b: [abs(c - 2 * rate * (1 - 2 * b)) for c, rate in zip(cs, RATES, strict=True)] for b, cs in changes.items()}
    order = min(map(order_of, rest.values()))
    centred = [steps("l1", "c-cpl", [last], b)[0].l1 for b in BETAS]
    least = min(*(changes[b][-1] for b in signed if b < 0.5), *centred) / (2 * last)
    cl = steps("l1", "cl", [last])[0].l1 / (2 * last)
    where = "appendix B.3"
    return [
        make_row("a step of CpL changes L⁽¹⁾ by 2η(1−2β) + O(η²): order of the rest", where, ">=", 1.9, order),
        make_row("… raises it for every β < 1/2 and in C-CpL: least change / 2η", where, ">", 0.0, least),
        make_row("… and CL lowers it: change / 2η", where, "<=", -0.9, cl),
    ]


def _losses(p: Problem, free: State) -> tuple[float, float]:
    return float((free[-1] - p.target).square().sum()), float(coupled_loss_1_at(p, free).sum())
