"""Momentum SGD over fixed buffers: what torch.optim.SGD computes, with learning rates a graph can read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Sgd:
    """Shares parameters and momentum with a torch.optim.SGD, so that checkpoints and resuming need not know of it."""

    def __init__(self, optimiser: torch.optim.SGD, parameters: Sequence[Tensor]):
        self.optimiser, self.parameters = optimiser, list(parameters)
        self.momentum = float(optimiser.param_groups[0]["momentum"])
        self.decay = float(optimiser.param_groups[0]["weight_decay"])
        self.group_of = {id(p): group for group in optimiser.param_groups for p in group["params"]}
        self.rates = [torch.zeros((), device=p.device) for p in self.parameters]
        self.read: list[float] = []
        self.buffers: list[Tensor] = []
        self.sync()

    def sync(self) -> None:
        """Take over the optimiser's rates and momentum; call before a step, outside of a graph."""
        found = []
        for p in self.parameters:
            state = self.optimiser.state[p]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(p)
            found.append(state["momentum_buffer"])
        if self.buffers and any(a is not b for a, b in zip(self.buffers, found, strict=True)):
            for kept, p, new in zip(self.buffers, self.parameters, found, strict=True):
                kept.copy_(new)
                self.optimiser.state[p]["momentum_buffer"] = kept
        else:
            self.buffers = found
        rates = [float(self.group_of[id(p)]["lr"]) for p in self.parameters]
        if rates != self.read:
            self.read = rates
            for to, rate in zip(self.rates, rates, strict=True):
                to.fill_(rate)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> None:
        """v <- momentum v + g + decay p; p <- p - rate v."""
        grads = torch._foreach_add(list(gradients), self.parameters, alpha=self.decay)
        torch._foreach_mul_(self.buffers, self.momentum)
        torch._foreach_add_(self.buffers, grads)
        torch._foreach_sub_(self.parameters, torch._foreach_mul(self.buffers, self.rates))
