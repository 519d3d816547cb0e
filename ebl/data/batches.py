"""Batches made on the device from uint8 images: gathered, padded, augmented, normalised.

Order and augmentation depend on the seed, the epoch and the step alone, so a resumed run sees the same batches, and several
ranks see disjoint parts of the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        device = self.split.labels.device
        order = torch.randperm(len(self.split.labels), generator=seeded(self.seed, "order", epoch)).to(device)
        mine = slice(self.rank, None, self.num_ranks)
        for step in range(first_step, self.steps):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size]
            if self.augment:
                moves = draw_moves(len(rows), self.spec, seeded(self.seed, "augment", epoch, step))
                images = moved(self._padded, rows[mine], moves[mine].to(device), self.spec)
            else:
                images = self._padded.index_select(0, rows[mine])
            yield self._normalised(images), self.split.labels[rows[mine]]

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


def moved(images: Tensor, rows: Tensor, moves: Tensor, spec: Spec) -> Tensor:
    """Crops of the edge-padded images, flipped where drawn: each pixel is fetched from where it comes from.

    images: (N, H, W, C), of which `rows` are taken."""
    height, width = images.shape[1:3]
    r = (torch.arange(height, device=images.device) + moves[:, :1]).clamp_(0, height - 1)
    c = (torch.arange(width, device=images.device) + moves[:, 1:2]).clamp_(0, width - 1)
    if spec.flip:
        c = torch.where(moves[:, 2:] == 1, c.flip(1), c)
    where = ((rows[:, None] * height + r)[:, :, None] * width + c[:, None, :]).flatten()
    return images.flatten(0, 2).index_select(0, where).view(len(rows), height, width, -1)
