"""The whole training step on the fused kernels, recorded as one CUDA graph.

The image's drive, the free phase, both perturbed phases as one batch (for TBP and RBP the adjoint), the contrast of the
gradients, the optimiser and the new 16-bit weights: nothing of it waits for the host, and sums over the examples stay on the
device until they are asked for. With several ranks it is two graphs, before and after the gradients are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.config import Config
from ebl.data.batches import Batches
from ebl.engine.adjoint import SIZE, Adjoint
from ebl.engine.contrasts import Contrasts
from ebl.engine.fused import Fused, factors
from ebl.engine.graphs import Graphs
from ebl.engine.sgd import Sgd
from ebl.models.hopfield import Hopfield
from ebl.parallel import ALONE, Part, Ranks, Shared
from ebl.relax import Schedule
from ebl.rules import RULES
from ebl.rules.contrast import Contrast
from ebl.steps import TOTALS, report, score
from ebl.types import State

EVALUATION_BATCH = 1024


class FusedStep:
    def __init__(self, config: Config, net: Hopfield, optimiser: torch.optim.SGD, ranks: Ranks = ALONE):
        rule = RULES[config.rule]
        self.config, self.net, self.ranks = config, net, ranks
        self.rule = rule if isinstance(rule, Contrast) else None
        self.beta = rule.check_beta(config.rule, config.beta)
        self.name = "fused fp16"
        device = net.biases[0].device
        batch = -(-config.batch_size // ranks.size)
        self.fused = Fused(net, config.free.order)
        self.free = self.fused.phase(batch)
        self.perturbed = self.fused.perturbed(self.free)
        self.adjoint = None if self.rule is not None else Adjoint(self.fused, self.free, self.perturbed, config)
        self.contrasts = Contrasts(self.fused, batch)
        self.sgd = Sgd(optimiser, list(net.parameters()))
        self.shared = None if ranks.alone else Shared(ranks, list(net.parameters()))
        self.graphs = Graphs(device)
        self.evaluator: Evaluator | None = None
        self.clamped = self.rule is not None and self.rule.boundary == "clamp"
        shape = net.input_shape
        self.x = torch.zeros(batch, *shape, device=device)
        if len(shape) == 3:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.y = torch.zeros(batch, dtype=torch.long, device=device)
        self.signs = torch.zeros(batch, device=device)  # of each example's contrast; 0: not there
        self.betas = torch.zeros(2 * batch, 1, device=device)
        self.factor = torch.zeros((), device=device)
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64, device=device)
        groups = len(self.fused.groups())
        self.free_omegas = factors(config.free, groups, config.free.iterations, device)
        nudged_groups = len(self.fused.groups(self.clamped))
        self.nudged_omegas = factors(config.nudged, nudged_groups, config.nudged.iterations, device)
        self.filled: Part | None = None  # what the buffers are set up for
        self.num_carried: int | None = None  # examples of the state carried over

    @property
    def carried(self) -> State | None:
        """The state the next step starts from, as the plain path would have it."""
        if self.num_carried is None:
            return None
        return tuple(s[: self.num_carried] for s in self.fused.state(self.free))

    @carried.setter
    def carried(self, state: State | None) -> None:
        self.num_carried = None if state is None else len(state[0])
        self.fused.cast()  # the parameters may have been restored too
        self.fused.zero(self.free)
        if state is not None:
            padded = tuple(torch.cat([s, s.new_zeros(len(self.x) - len(s), *s.shape[1:])]) for s in state)
            self.fused.load(self.free, padded)

    def step(self, x: Tensor, y: Tensor, iterations: int, generator: torch.Generator, part: Part | None = None) -> None:
        part = part or Part.of(len(x))
        self._take(x, y, generator, part)
        self.sgd.sync()
        shared = self.shared
        if shared is None:
            self.graphs.run(iterations, lambda: self._update(self._gradients(iterations)))
        else:  # what ranks say to each other is not recorded
            self.graphs.run(iterations, lambda: shared.put(self._gradients(iterations)))
            shared.add_up()
            self.graphs.run("update", lambda: self._update(shared.gradients))
        self.num_carried = part.count if self.config.start == "carry" else None

    def _take(self, x: Tensor, y: Tensor, generator: torch.Generator, part: Part) -> None:
        """Copy a batch in. One smaller than usual fills the rest with examples that count for nothing."""
        n = part.count
        if self.num_carried not in (None, n):  # as the paper's simulations: another batch size starts at zero
            self.fused.zero(self.free)
        if part != self.filled:
            self.x.zero_()
            self.y.zero_()
            apart = 2 * SIZE if self.rule is None else (self.rule.second - self.rule.first) * self.beta
            self.factor.fill_(-1 / (apart * part.whole))
            self.filled = part
            self._set_signs(torch.ones(n))
        if self.rule is not None and self.rule.random_sign:
            coins = torch.rand(n, generator=generator)
            self._set_signs(torch.where(coins < 0.5, -1.0, 1.0))
        self.x[:n].copy_(x[:n].reshape(n, *self.x.shape[1:]))
        self.y[:n].copy_(y[:n])

    def evaluate(self, batches: Batches, schedule: Schedule) -> dict[str, Any]:
        if self.evaluator is None:
            self.evaluator = Evaluator(self.fused, ranks=self.ranks)
        return self.evaluator(batches, schedule)

    def _set_signs(self, signs: Tensor) -> None:
        self.signs.zero_()
        self.signs[: len(signs)].copy_(signs)
        if self.rule is not None:
            first, second = (side * self.beta * self.signs for side in (self.rule.first, self.rule.second))
            self.betas.copy_(torch.cat([first, second])[:, None])

    @torch.no_grad()
    def _gradients(self, iterations: int) -> list[Tensor]:
        fused, free = self.fused, self.free
        target = F.one_hot(self.y, free.output.shape[1]).float()
        extra = fused.drive(self.x, free, self.perturbed)
        if self.config.start == "carry":
            fused.refresh(free)
        else:
            fused.zero(free)
        fused.relax(free, iterations, self.free_omegas)
        with fused.aside(-1):
            self.totals += score(free.output, target, self.y, fused.residual(free), self.signs.abs(), iterations)
        if self.adjoint is not None:  # it may move the state that is scored
            fused.join(-1)
        gradients = self._perturb(target, extra)
        fused.join(-1)
        self.totals[4] += 0 * (gradients[-1].sum() + gradients[-2].sum())  # what is not finite shows
        return gradients

    @torch.no_grad()
    def _update(self, gradients: list[Tensor]) -> None:
        self.sgd.apply(gradients)
        self.fused.cast()
        if self.config.start == "carry" and self.adjoint is None:
            self.fused.carry(self.free, self.perturbed)

    def _perturb(self, target: Tensor, extra: Tensor | None) -> list[Tensor]:
        """From the free state to the gradients: both perturbed phases, and their contrast."""
        if self.adjoint is not None:
            self.adjoint.solve(target)
        else:
            targets = torch.cat([target, target])
            iterations = self.config.nudged.iterations
            self.fused.perturb(self.free, self.perturbed, iterations, self.nudged_omegas, self.betas, targets, self.clamped)
        return self.contrasts.gradients(self.perturbed, self.x, extra, self.signs, self.factor)

    @torch.no_grad()
    def gradients_from(self, x: Tensor, y: Tensor, state: State) -> list[Tensor]:
        """The rule's estimate for a whole batch from a given free state; nothing is trained."""
        self._take(x, y, torch.Generator(), Part.of(len(x)))
        self.carried = state
        extra = self.fused.drive(self.x, self.free, self.perturbed)
        self.fused.refresh(self.free)
        return self._perturb(F.one_hot(self.y, self.free.output.shape[1]).float(), extra)


class Evaluator:
    """Settles a test set from zeros in batches of its own."""

    def __init__(self, fused: Fused, batch: int | None = None, ranks: Ranks = ALONE):
        device, batch = fused.device, batch or evaluation_batch(fused.shapes)
        self.ranks = ranks
        self.fused, self.phase = fused, fused.phase(batch)
        self.graphs = Graphs(device)
        shape = fused.net.input_shape
        self.x = torch.zeros(batch, *shape, device=device)
        if len(shape) == 3:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.y = torch.zeros(batch, dtype=torch.long, device=device)
        self.there = torch.zeros(batch, device=device)
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64, device=device)
        self.saturated = torch.zeros(fused.num_hidden, dtype=torch.float64, device=device)
        self.schedule: Schedule | None = None
        self.omegas = torch.zeros(0, device=device)

    def __call__(self, batches: Batches, schedule: Schedule) -> dict[str, Any]:
        size = len(self.x) * self.ranks.size
        if schedule != self.schedule:
            self.schedule = schedule
            new = factors(schedule, len(self.fused.groups()), schedule.iterations, self.fused.device)
            if len(new) != len(self.omegas):
                self.omegas, self.graphs = new, Graphs(self.fused.device)
            self.omegas.copy_(new)
        self.totals.zero_()
        self.saturated.zero_()
        for step, (x, y) in enumerate(batches.in_order(size)):
            n = batches.part(step, size).count
            self.x[:n].copy_(x[:n].reshape(n, *self.x.shape[1:]))
            self.y[:n].copy_(y[:n])
            self.there.zero_()
            self.there[:n].fill_(1)
            self.graphs.run(schedule.iterations, lambda: self._body(schedule.iterations))
        return report(self.ranks.total(self.totals), self.ranks.total(self.saturated))

    @torch.no_grad()
    def _body(self, iterations: int) -> None:
        fused, phase = self.fused, self.phase
        fused.drive(self.x, phase)
        fused.zero(phase)
        fused.relax(phase, iterations, self.omegas)
        target = F.one_hot(self.y, phase.output.shape[1]).float()
        self.totals += score(phase.output, target, self.y, fused.residual(phase), self.there, iterations)
        for k, (layer, link) in enumerate(zip(phase.layers, fused.net.links[:-1], strict=True)):
            full = (layer.hi.float() + layer.lo.float() >= 1).sum((1, 2, 3)) / torch.Size(link.shape).numel()
            self.saturated[k] += (full * self.there).sum()


def evaluation_batch(shapes: Sequence[tuple[int, int, int]]) -> int:
    """The best number of examples, or as many as can be told apart by 32 bits in the layers' unpooled maps."""
    return max(1, min(EVALUATION_BATCH, (2**31 - 1) // max(4 * h * w * c for h, w, c in shapes)))
