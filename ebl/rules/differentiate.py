"""Derivatives by every parameter, in the order of parameters()."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ebl.types import Energy


def by_parameters(net: Energy, outputs: Sequence[Tensor], weights: Sequence[Tensor] | None = None) -> list[Tensor]:
    """d/dtheta of sum_i weights[i] . outputs[i] by autograd; zeros for what is frozen or not used."""
    trained = [p for p in net.parameters() if p.requires_grad]
    if not trained or not any(o.requires_grad for o in outputs):
        return [torch.zeros_like(p) for p in net.parameters()]
    found = torch.autograd.grad(outputs, trained, weights, allow_unused=True, materialize_grads=True)
    by_id = {id(p): g for p, g in zip(trained, found, strict=True)}
    return [by_id[id(p)] if p.requires_grad else torch.zeros_like(p) for p in net.parameters()]
