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
        place = {id(p): i for i, p in enumerate(self.parameters)}
        self.groups = [
            ([place[id(p)] for p in group["params"]], torch.zeros((), device=self.parameters[0].device))
            for group in optimiser.param_groups
        ]
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
        rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        if rates != self.read:
            self.read = rates
            for (_, to), rate in zip(self.groups, rates, strict=True):
                to.fill_(rate)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> None:
        """v <- momentum v + g + decay p; p <- p - rate v."""
        for places, rate in self.groups:
            params, buffers = ([values[i] for i in places] for values in (self.parameters, self.buffers))
            torch._fused_sgd_(
                params,
                [_laid_out_like(p, gradients[i]) for p, i in zip(params, places, strict=True)],
                buffers,
                weight_decay=self.decay,
                momentum=self.momentum,
                lr=rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )


def _laid_out_like(p: Tensor, g: Tensor) -> Tensor:
    """The fused kernel walks through memory: all its partners must lie alike."""
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
