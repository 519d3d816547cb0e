"""Batches made on the device from uint8 images: gathered, padded, augmented, normalised.

Order and augmentation depend on the seed and the epoch alone, so a resumed run sees the same batches, and several
ranks see their parts of the very batches that one would see.
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
from ebl.parallel import Part


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

    def part(self, step: int, batch_size: int | None = None) -> Part:
        """What this rank has of a batch."""
        size = batch_size or self.batch_size
        return Part.of(min(size, len(self.split.labels) - step * size), self.rank, self.num_ranks)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        device, count = self.split.labels.device, len(self.split.labels)
        order = torch.randperm(count, generator=seeded(self.seed, "order", epoch)).to(device)
        moves = draw_moves(count, self.spec, seeded(self.seed, "augment", epoch)).to(device) if self.augment else order
        for step in range(first_step, self.steps):
            mine = self._rows(step, self.batch_size)
            rows = order[mine]
            images = self._crops(rows, moves[mine]) if self.augment else self._padded.index_select(0, rows)
            yield self._normalised(images), self.split.labels[rows]

    def in_order(self, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        size = batch_size or self.batch_size
        for step in range(-(-len(self.split.labels) // size)):
            rows = self._rows(step, size)
            yield self._normalised(self._padded[rows]), self.split.labels[rows]

    def _rows(self, step: int, size: int) -> slice:
        rows = self.part(step, size).rows
        return slice(step * size + rows.start, step * size + rows.stop)

    @cached_property
    def _padded(self) -> Tensor:
        """All images, zeros around them, channels last (N, H, W, C)."""
        return F.pad(self.split.images, (self.spec.pad,) * 4).permute(0, 2, 3, 1).contiguous()

    @cached_property
    def _edged(self) -> Tensor:
        """The padded images with `crop` pixels of their edges around them, as they are and flipped: (1 or 2, N, H, W, C)."""
        crop, (height, width) = self.spec.crop, self._padded.shape[1:3]
        r, c = (torch.arange(-crop, n + crop, device=self._padded.device).clamp(0, n - 1) for n in (height, width))
        return torch.stack([self._padded[:, r][:, :, c] for c in ((c, c.flip(0)) if self.spec.flip else (c,))])

    def _crops(self, rows: Tensor, moves: Tensor) -> Tensor:
        """A crop of each image at the place drawn for it. A crop's row lies whole in memory, so it is fetched as one piece."""
        (_, count, high, wide, channels), (height, width) = self._edged.shape, self._padded.shape[1:3]
        pieces = self._edged.flatten().unfold(0, width * channels, channels)
        first = ((moves[:, 2] * count + rows) * high + moves[:, 0]) * wide + moves[:, 1]
        where = first[:, None] + wide * torch.arange(height, device=rows.device)
        return pieces.index_select(0, where.flatten()).view(len(rows), height, width, channels)

    @cached_property
    def _scale(self) -> tuple[Tensor, Tensor]:
        """Factor and shift of each number of an image's row."""
        mean, std = (torch.tensor(v, device=self.split.images.device) for v in (self.spec.mean, self.spec.std))
        width = self._padded.shape[2]
        return (1 / (255 * std)).repeat(width), (-mean / std).repeat(width)

    def _normalised(self, images: Tensor) -> Tensor:
        """(images / 255 - mean) / std of (B, H, W, C) as float32 (B, C, H, W), channels last."""
        factor, shift = self._scale
        numbers = images.flatten(2).float().mul_(factor).add_(shift)
        return numbers.view(images.shape).permute(0, 3, 1, 2)


def draw_moves(count: int, spec: Spec, generator: torch.Generator) -> Tensor:
    """For each image: first row and first column of its crop, flipped or not."""
    corner = torch.randint(2 * spec.crop + 1, (count, 2), generator=generator)
    flip = torch.randint(2, (count, 1), generator=generator) if spec.flip else torch.zeros(count, 1, dtype=torch.long)
    return torch.cat([corner, flip], 1)
