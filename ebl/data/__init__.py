"""Datasets: what they are (specs), how they are read, and how batches are made of them."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from ebl.data.specs import SPECS, Spec, spec
from ebl.errors import InputError

__all__ = ["SPECS", "Dataset", "Spec", "Split", "load", "spec"]

EMBEDDED = {"fashion-mini": ("fashion_mini.npz", "4c10d8353f50c6280de7e210e59616a3c93460ef9bf7aab79f9de9b3cb22bd11")}


@dataclass(frozen=True)
class Split:
    images: Tensor  # uint8 (N, C, H, W)
    labels: Tensor  # int64 (N,)

    def to(self, device: str | torch.device) -> Split:
        return Split(self.images.to(device), self.labels.to(device))

    def majority_error(self) -> float:
        """The error of always naming the most frequent class."""
        return 1 - int(self.labels.bincount().max()) / len(self.labels)


@dataclass(frozen=True)
class Dataset:
    name: str
    spec: Spec
    train: Split
    test: Split


def load(name: str) -> Dataset:
    """A dataset by name. `fashion-mini` comes with the package: 5,000 and 1,000 images of Fashion-MNIST."""
    entry = spec(name)
    if name not in EMBEDDED:
        raise InputError(f"dataset = {name!r}: this version reads only the embedded data; use {', '.join(EMBEDDED)}")
    file, sha256 = EMBEDDED[name]
    raw = files("ebl.data").joinpath(file).read_bytes()
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise InputError(f"{file} inside the package is damaged (its SHA-256 differs): install ebl again")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return Dataset(name, entry, _split(arrays, "train"), _split(arrays, "test"))


def _split(arrays: np.lib.npyio.NpzFile, name: str) -> Split:
    images = torch.from_numpy(arrays[f"{name}_images"])
    return Split(images[:, None].contiguous(), torch.from_numpy(arrays[f"{name}_labels"]).long())
