"""Broadcasting a number for each example over a block of units."""

from __future__ import annotations

from torch import Tensor


def per_example(t: Tensor, like: Tensor) -> Tensor:
    """(B,) as (B, 1, ...), with as many dimensions as `like`."""
    return t.view(-1, *[1] * (like.dim() - 1))
