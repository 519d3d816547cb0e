"""Images and labels that belong together, and how to hold some out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ebl.data.specs import Spec
from ebl.errors import InputError


@dataclass(frozen=True)
class Split:
    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)

    def to(self, device: str | torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device))

    def take(self, rows: Tensor) -> Split:
        return Split(self.images[rows], self.labels[rows])

    def majority_error(self) -> float:
        """The error of always naming the most frequent class."""
        return 1 - int(self.labels.bincount().max()) / len(self.labels)


@dataclass(frozen=True)
class Dataset:
    name: str
    spec: Spec
    train: Split
    test: Split


def held_out(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """The split without, and only, a share of each class (stratified, seeded)."""
    chosen = torch.zeros(len(split.labels), dtype=torch.bool)
    generator = seeded(seed, "held out")
    exact = 0.0
    for label in split.labels.unique(sorted=True):
        rows = (split.labels == label).nonzero()[:, 0]
        exact += share * len(rows)
        count = round(exact) - int(chosen.sum())  # the rounding of one class is made good by the next
        count = max(0, min(count, len(rows) - 1))  # each class keeps an example
        chosen[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    if not bool(chosen.any()) or bool(chosen.all()):
        part = round(share * len(split.labels))
        raise InputError(f"{part} of {len(split.labels)} images cannot be held out: give more images, or another number")
    return split.take((~chosen).nonzero()[:, 0]), split.take(chosen.nonzero()[:, 0])


def seeded(*key: object) -> torch.Generator:
    """A generator of its own for each key."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
