"""Batches made on the device from uint8 images: gathered, padded, augmented, normalised.

Order and augmentation depend on the seed and the epoch alone, so a resumed run sees the same batches, and several
ranks see disjoint parts of the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.data.specs import Spec
from ebl.data.splits import Split, seeded


@dataclass(frozen=True)
class Batches:
    """A split, ready to be fed: `epoch` in a seeded order with augmentation, `in_order` for evaluation."""

    split: Split
    spec: Spec
    batch_size: int  # of all ranks together
    seed: int = 0
    augment: bool = False
    rank: int = 0
    num_ranks: int = 1

    @property
    def steps(self) -> int:
        """Batches an epoch; the last, short one counts."""
        return -(-len(self.split.labels) // self.batch_size)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        device, count = self.split.labels.device, len(self.split.labels)
        order = torch.randperm(count, generator=seeded(self.seed, "order", epoch)).to(device)
        if self.augment:
            moves = draw_moves(count, self.spec, seeded(self.seed, "augment", epoch)).to(device)
            rows_from, columns_from = pixel_sources(order, moves, self._padded.shape)
            pixels = self._padded.flatten(0, 2)
        for step in range(first_step, self.steps):
            mine = slice(step * self.batch_size + self.rank, (step + 1) * self.batch_size, self.num_ranks)
            if self.augment:
                where = rows_from[mine, :, None] + columns_from[mine, None, :]
                images = pixels.index_select(0, where.flatten()).view(*where.shape, -1)
            else:
                images = self._padded.index_select(0, order[mine])
            yield self._normalised(images), self.split.labels[order[mine]]

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self.split.labels), self.batch_size):
            rows = slice(first, first + self.batch_size)
            yield self._normalised(self._padded[rows]), self.split.labels[rows]

    @cached_property
    def _padded(self) -> Tensor:
        """All images, zeros around them, channels last."""
        return F.pad(self.split.images, (self.spec.pad,) * 4).permute(0, 2, 3, 1).contiguous()

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Factor and shift of each number of an image's row."""
        mean, std = (torch.tensor(v, device=self.split.images.device) for v in (self.spec.mean, self.spec.std))
        width = self._padded.shape[2]
        return (1 / (255 * std)).repeat(width), (-mean / std).repeat(width)

    def _normalised(self, images: Tensor) -> Tensor:
        """(images / 255 - mean) / std of (B, H, W, C) as float32 (B, C, H, W), channels last."""
        factor, shift = self._scale
        rows = images.flatten(2).float().mul_(factor).add_(shift)
        return rows.view(images.shape).permute(0, 3, 1, 2)


def draw_moves(batch: int, spec: Spec, generator: torch.Generator) -> Tensor:
    """For each image: rows down, columns right, flipped or not."""
    shift = torch.randint(-spec.crop, spec.crop + 1, (batch, 2), generator=generator)
    flip = torch.randint(2, (batch, 1), generator=generator) if spec.flip else torch.zeros(batch, 1, dtype=torch.long)
    return torch.cat([shift, flip], 1)


def pixel_sources(order: Tensor, moves: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Where each pixel of the moved images comes from, as a row's part (N, H) and a column's part (N, W) of its index among
    all pixels of `shape` (count, H, W, C). A shift past the border takes the edge's pixel again: a crop of the edge-padded
    image."""
    count, height, width = shape[:3]
    kind = torch.int32 if count * height * width < 2**31 else torch.int64
    rows = (torch.arange(height, device=order.device) + moves[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=order.device) + moves[:, 1:2]).clamp_(0, width - 1)
    columns = torch.where(moves[:, 2:] == 1, columns.flip(1), columns)
    return ((order[:, None] * height + rows) * width).to(kind), columns.to(kind)
