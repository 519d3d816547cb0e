"""How two successive layers of a Hopfield network are joined.

A link stands for the energy term -above . up(w, b, below); the bias b of the layer above rides along. `up` also returns
what `down` and `weight_gradient` need again (for max pooling: which position won), so that a caller who keeps it saves a
convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

Extra = Tensor | None


class Link(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...  # of the layer above, without the batch

    @property
    def weight_shape(self) -> tuple[int, ...]: ...

    @property
    def fan_in(self) -> int: ...

    def up(self, w: Tensor, b: Tensor, below: Tensor) -> tuple[Tensor, Extra]: ...  # the drive of the layer above

    def down(self, w: Tensor, above: Tensor, extra: Extra) -> Tensor: ...  # d(above . up)/d below

    def weight_gradient(self, above: Tensor, below: Tensor, extra: Extra) -> Tensor: ...  # d(above . up)/d w


@dataclass(frozen=True)
class Dense:
    """above . (below w + b), with w of shape (size below, size above)."""

    below_shape: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def fan_in(self) -> int:
        return torch.Size(self.below_shape).numel()

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.fan_in, *self.shape)

    def up(self, w: Tensor, b: Tensor, below: Tensor) -> tuple[Tensor, Extra]:
        return torch.addmm(b, below.flatten(1), w), None

    def down(self, w: Tensor, above: Tensor, extra: Extra) -> Tensor:
        return (above @ w.t()).view(-1, *self.below_shape)

    def weight_gradient(self, above: Tensor, below: Tensor, extra: Extra) -> Tensor:
        return below.flatten(1).t() @ above


@dataclass(frozen=True)
class Conv:
    """above . pool(w * below + b): a convolution, then 2x2 pooling (max: ties go to the first position; or average)."""

    below_shape: tuple[int, int, int]
    channels: int
    kernel_size: int
    padding: int
    pool: str

    @property
    def map_size(self) -> tuple[int, int]:
        """Height and width before pooling."""
        _, height, width = self.below_shape
        grow = 2 * self.padding - self.kernel_size + 1
        return height + grow, width + grow

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, self.map_size[0] // 2, self.map_size[1] // 2)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels, self.below_shape[0], self.kernel_size, self.kernel_size)

    @property
    def fan_in(self) -> int:
        return self.below_shape[0] * self.kernel_size**2

    def up(self, w: Tensor, b: Tensor | None, below: Tensor) -> tuple[Tensor, Extra]:
        z = F.conv2d(below, w, b, padding=self.padding)
        if self.pool == "average":
            return F.avg_pool2d(z, 2), None
        return F.max_pool2d(z, 2, return_indices=True)

    def down(self, w: Tensor, above: Tensor, extra: Extra) -> Tensor:
        return F.conv_transpose2d(self._unpool(above, extra), w, padding=self.padding)

    def weight_gradient(self, above: Tensor, below: Tensor, extra: Extra) -> Tensor:
        return conv2d_weight(below, self.weight_shape, self._unpool(above, extra), padding=self.padding)

    def _unpool(self, above: Tensor, extra: Extra) -> Tensor:
        """The pooling's transpose: above at the winning positions, or a quarter of it at all four."""
        if extra is not None:
            return F.max_unpool2d(above, extra, [2, 2])
        return F.interpolate(above, scale_factor=2.0, mode="nearest") / 4
