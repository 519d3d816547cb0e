"""Batches made on the device from uint8 images: gathered, padded, augmented, normalised.

Order and augmentation depend on the seed, the epoch and the step alone, so a resumed run sees the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.data import Spec, Split


@dataclass(frozen=True)
class Batches:
    """A split, ready to be fed: `epoch` in a seeded order with augmentation, `in_order` for evaluation."""

    split: Split
    spec: Spec
    batch_size: int
    seed: int = 0
    augment: bool = False
    pad: int | None = None  # zeros on each side; None: as the dataset's entry says

    @property
    def steps(self) -> int:
        """Batches an epoch; the last, short one counts."""
        return -(-len(self.split.labels) // self.batch_size)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.split.labels), generator=seeded(self.seed, "order", epoch))
        for step in range(first_step, self.steps):
            rows = order[step * self.batch_size : (step + 1) * self.batch_size].to(self.split.labels.device)
            images = self._padded(rows)
            if self.augment:
                images = augmented(images, self.spec, seeded(self.seed, "augment", epoch, step))
            yield self._normalised(images), self.split.labels[rows]

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.arange(len(self.split.labels), device=self.split.labels.device).split(self.batch_size):
            yield self._normalised(self._padded(rows)), self.split.labels[rows]

    def _padded(self, rows: Tensor) -> Tensor:
        pad = self.spec.pad if self.pad is None else self.pad
        return F.pad(self.split.images[rows], (pad,) * 4)

    def _normalised(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, device=images.device).view(-1, 1, 1) for v in (self.spec.mean, self.spec.std))
        return ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def augmented(images: Tensor, spec: Spec, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to `crop` pixels, its edge repeated, and flipped every other time where the entry flips."""
    batch, _, height, width = images.shape
    shift = torch.randint(-spec.crop, spec.crop + 1, (2, batch, 1), generator=generator)
    rows = (torch.arange(height) + shift[0]).clamp(0, height - 1)
    columns = (torch.arange(width) + shift[1]).clamp(0, width - 1)
    if spec.flip:
        flipped = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(flipped, columns.flip(1), columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    example = torch.arange(batch, device=images.device)
    return images.permute(0, 2, 3, 1)[example[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def seeded(*key: object) -> torch.Generator:
    """A generator of its own for each key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
