"""The plain path on a GPU, recorded as CUDA graphs: every rule, TBP and RBP too, in float32 or with TF32 convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ebl.config import Config
from ebl.costs import SquaredError
from ebl.data.batches import Batches
from ebl.engine.graphs import Graphs
from ebl.engine.sgd import Sgd
from ebl.models.hopfield import Hopfield
from ebl.parallel import ALONE, Part, Ranks, Shared
from ebl.relax import Schedule, relax
from ebl.rules import RULES, as_target
from ebl.rules.backprop import Linearised, Unrolled
from ebl.rules.contrast import Contrast
from ebl.steps import TOTALS, evaluate, score
from ebl.types import Memo, State


class CapturedStep:
    def __init__(self, config: Config, net: Hopfield, optimiser: torch.optim.SGD, tf32: bool, ranks: Ranks = ALONE):
        self.config, self.net, self.tf32, self.ranks = config, net, tf32, ranks
        self.rule = RULES[config.rule]
        self.beta = self.rule.check_beta(config.rule, config.beta)
        self.name = "captured tf32" if tf32 else "captured fp32"
        self.sgd = Sgd(optimiser, list(net.parameters()))
        self.shared = None if ranks.alone else Shared(ranks, list(net.parameters()))
        self.device = net.biases[0].device
        draws = isinstance(self.rule, Contrast) and self.rule.random_sign  # on the host, step by step
        stops = config.free.tolerance is not None or config.nudged.tolerance is not None  # looks at values
        ours = type(self.rule) in (Contrast, Unrolled, Linearised)  # another one may do what cannot be recorded
        self.graphs = Graphs(self.device, wanted=ours and not (draws or stops))
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64, device=self.device)
        self.inputs: dict[int, tuple[Tensor, Tensor]] = {}  # by batch size
        self.ends: dict[int, State] = {}
        self.examples: int | None = None  # of the state carried over

    @property
    def carried(self) -> State | None:
        return None if self.examples is None else self.ends[self.examples]

    @carried.setter
    def carried(self, state: State | None) -> None:
        self.examples = None if state is None else len(state[0])
        if state is not None:
            self._keep(state)

    def step(self, x: Tensor, y: Tensor, iterations: int, generator: torch.Generator, part: Part | None = None) -> None:
        n, part = len(x), part or Part.of(len(x))
        if n not in self.inputs:
            self.inputs[n] = (torch.empty_like(x), torch.empty_like(y))
        for to, value in zip(self.inputs[n], (x, y), strict=True):
            to.copy_(value)
        self.sgd.sync()
        start = self.ends[n] if self.examples == n else None
        key = (n, part, iterations, start is None)
        shared = self.shared
        if shared is None:
            self.graphs.run(key, lambda: self.sgd.apply(self._gradients(n, part, iterations, start, generator)))
        else:  # what ranks say to each other is not recorded
            self.graphs.run(key, lambda: shared.put(self._gradients(n, part, iterations, start, generator), part.share))
            shared.add_up()
            self.graphs.run("update", lambda: self.sgd.apply(shared.gradients))
        if self.config.start == "carry":
            self.examples = n

    def evaluate(self, batches: Batches, schedule: Schedule) -> dict[str, Any]:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=self.tf32):
            return evaluate(self.net, batches, schedule, self.ranks)

    def _gradients(self, n: int, part: Part, iterations: int, start: State | None, generator: torch.Generator) -> list[Tensor]:
        x, y = self.inputs[n]
        c, cost = self.config, SquaredError()
        memo: Memo = {}
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=self.tf32):
            free = relax(self.net, x, replace(c.free, iterations=iterations), start=start, memo=memo)
            target = as_target(y, free.state[-1])
            gradients, last = self.rule.gradients(self.net, x, target, free, memo, c.nudged, cost, self.beta, generator)
        with torch.no_grad():
            residual = free.residual + 0 * last.residual  # what is not finite shows
            there = torch.full_like(residual, float(part.count > 0))
            self.totals += score(free.state[-1], target, y, residual, there, iterations)
            if c.start == "carry":
                self._keep(last.state)
        return gradients

    def _keep(self, state: State) -> None:
        n = len(state[0])
        if n not in self.ends:
            self.ends[n] = tuple(torch.empty_like(s) for s in state)
        for to, s in zip(self.ends[n], state, strict=True):
            to.copy_(s)
