"""One training step behind a small interface, so that the trainer does not care how it is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ebl.config import Config
from ebl.costs import SquaredError
from ebl.data.batches import Batches
from ebl.models.hopfield import Hopfield
from ebl.parallel import ALONE, Part, Ranks, Shared
from ebl.relax import Schedule, relax
from ebl.rules import as_target, error_rates, estimate_gradients, rank_of_label
from ebl.types import State

TOTALS = ("examples", "error", "top5_error", "cost", "residual", "iterations")


class Stepper(Protocol):
    """Trains a network's parameters. All state but parameters and momentum is here: `totals` and `carried`.

    Several ranks have a part of each batch, and of these two; the parameters stay the same on all of them."""

    name: str
    totals: Tensor  # (6,) float64: sums over the examples since someone set it to zero
    carried: State | None  # where the next free phase starts, if not at zero

    def step(self, x: Tensor, y: Tensor, iterations: int, generator: torch.Generator, part: Part | None = None) -> None: ...

    def evaluate(self, batches: Batches, schedule: Schedule) -> dict[str, Any]: ...


class PlainStep:
    """As the library's functions do it, one call after another; every model, rule and device."""

    def __init__(self, config: Config, net: Hopfield, optimiser: torch.optim.SGD, ranks: Ranks = ALONE):
        self.config, self.net, self.optimiser, self.ranks = config, net, optimiser, ranks
        self.shared = None if ranks.alone else Shared(ranks, list(net.parameters()))
        self.name = "plain"
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64)
        self.carried: State | None = None

    def step(self, x: Tensor, y: Tensor, iterations: int, generator: torch.Generator, part: Part | None = None) -> None:
        c, part = self.config, part or Part.of(len(x))
        start = self.carried if self.carried is not None and len(self.carried[0]) == len(x) else None
        seen = estimate_gradients(
            self.net,
            x,
            y,
            rule=c.rule,
            beta=c.beta,
            free=replace(c.free, iterations=iterations),
            nudged=c.nudged,
            start=start,
            generator=generator,
        )
        if self.shared is not None:
            gradients = [p.grad for p in self.net.parameters() if p.grad is not None]
            self.shared.put(gradients, part.share)
            torch._foreach_copy_(gradients, self.shared.add_up())
        self.optimiser.step()
        if c.start == "carry":
            self.carried = seen.state
        residual = seen.free.residual.mean() + 0 * seen.nudged.residual.sum()  # what is not finite shows
        means = (1.0, seen.top1_error, seen.top5_error, seen.cost, residual, seen.free.iterations)
        self.totals += part.count * torch.tensor([float(v) for v in means], dtype=torch.float64)

    def evaluate(self, batches: Batches, schedule: Schedule) -> dict[str, Any]:
        return evaluate(self.net, batches, schedule, self.ranks)


def evaluate(net: Hopfield, batches: Batches, schedule: Schedule, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Errors, cost, residual and the share of saturated units of each hidden layer, from zero starts."""
    totals = torch.zeros(len(TOTALS), dtype=torch.float64)
    saturated = torch.zeros(len(net.links) - 1, dtype=torch.float64)
    for step, (x, y) in enumerate(batches.in_order()):
        count = batches.part(step).count
        settled = relax(net, x, schedule)
        output = settled.state[-1]
        cost = SquaredError().value(output, as_target(y, output)).mean()
        means = (1.0, *error_rates(output, y), cost, settled.residual.mean(), settled.iterations)
        totals += count * torch.tensor([float(v) for v in means], dtype=torch.float64)
        shares = torch.tensor([float((s >= 1).double().mean()) for s in settled.state[:-1]], dtype=torch.float64)
        saturated += count * shares
    return report(ranks.total(totals), ranks.total(saturated))


def report(totals: Tensor, saturated: Tensor) -> dict[str, Any]:
    """What an evaluation found, as plain numbers."""
    examples = float(totals[0])
    return {**means_of(totals), "saturation": [round(float(v) / examples, 6) for v in saturated]}


def score(output: Tensor, target: Tensor, y: Tensor, residual: Tensor, there: Tensor, iterations: int) -> Tensor:
    """What a batch adds to the totals; `there` is 0 for examples that do not count."""
    rank = rank_of_label(output, y)
    ones = torch.ones_like(residual)
    cost = SquaredError().value(output, target)
    columns = torch.stack([ones, (rank >= 1).to(cost), (rank >= 5).to(cost), cost, residual, iterations * ones])
    return (columns.double() * there).sum(1)


def means_of(totals: Tensor) -> dict[str, float]:
    values = totals.tolist()
    return {name: value / max(1.0, values[0]) for name, value in zip(TOTALS[1:], values[1:], strict=True)}
