"""Datasets: what they are (specs), how they are read, and how batches are made of them."""

from __future__ import annotations

import hashlib
import io
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from ebl.data.files import Found, data_folder, find_right
from ebl.data.formats import read_cifar_binary, read_cifar_python, read_idx_pair, read_mat
from ebl.data.own import is_own, load_own
from ebl.data.sources import File
from ebl.data.specs import SPECS, Spec
from ebl.data.splits import Dataset, Split
from ebl.errors import InputError, choose

__all__ = ["SPECS", "Dataset", "Spec", "Split", "load", "spec"]

EMBEDDED = {"fashion-mini": ("fashion_mini.npz", "4c10d8353f50c6280de7e210e59616a3c93460ef9bf7aab79f9de9b3cb22bd11")}


def spec(name: str) -> Spec:
    """What is known of a dataset: its entry, or what its file or folder shows."""
    if is_own(name):
        return load_own(name).spec
    if name and name not in SPECS and Path(name).exists():
        kind = "folder" if Path(name).is_dir() else "file"
        raise InputError(
            f"dataset = {name!r} is a {kind} here, not a dataset's name: write ./{name}, or use one of {', '.join(SPECS)}"
        )
    return SPECS[choose("dataset", name, SPECS)]


def load(name: str, data_dir: str | Path | None = None) -> Dataset:
    """A dataset by name, from the files people have (see `ebl data list`). `fashion-mini` comes with the package: 5,000 and
    1,000 images of Fashion-MNIST. A path names data of your own: an .npz, or a folder of images for each class."""
    if is_own(name):
        return load_own(name)
    entry = spec(name)
    if name in EMBEDDED:
        return _load_embedded(name, entry)
    found = find_right(name, data_folder(data_dir))
    return Dataset(name, entry, _read(name, entry, found, found.form.train), _read(name, entry, found, found.form.test))


def _read(name: str, entry: Spec, found: Found, files_of_split: tuple[File, ...]) -> Split:
    form, raw = found.form, [found.read(file) for file in files_of_split]
    if form.kind == "idx":
        parts = [read_idx_pair(raw[0], raw[1], f"{name} ({found.paths[0].parent})")]
    elif form.kind == "mat":
        parts = [read_mat(raw[0], files_of_split[0].name)]
    elif form.kind == "cifar-python":
        parts = [read_cifar_python(r, file.name, form.label_key) for r, file in zip(raw, files_of_split, strict=True)]
    else:
        parts = [read_cifar_binary(r, file.name, form.label_bytes) for r, file in zip(raw, files_of_split, strict=True)]
    images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return checked_split(name, entry, Split(torch.from_numpy(images), torch.from_numpy(labels)))


def checked_split(name: str, entry: Spec, split: Split) -> Split:
    """The split, if its images and labels are what the entry says."""
    shape = (entry.channels, *entry.size)
    if split.images.dtype != torch.uint8 or tuple(split.images.shape[1:]) != shape:
        got = f"{split.images.dtype} of shape {tuple(split.images.shape)}"
        raise InputError(f"{name}: images are {got}, not bytes of shape (N, {', '.join(map(str, shape))}); convert them")
    if len(split.labels) != len(split.images) or not len(split.images):
        raise InputError(f"{name}: {len(split.images)} images and {len(split.labels)} labels; each image needs one label")
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= entry.num_classes:
        raise InputError(
            f"{name}: label {low if low < 0 else high} is out of range; its labels run from 0 to {entry.num_classes - 1}"
        )
    return split


def _load_embedded(name: str, entry: Spec) -> Dataset:
    file, sha256 = EMBEDDED[name]
    raw = resources.files("ebl.data").joinpath(file).read_bytes()
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise InputError(f"{file} inside the package is damaged (its SHA-256 differs): install ebl again")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return Dataset(name, entry, _split(arrays, "train"), _split(arrays, "test"))


def _split(arrays: np.lib.npyio.NpzFile, name: str) -> Split:
    images = torch.from_numpy(arrays[f"{name}_images"])
    return Split(images[:, None].contiguous(), torch.from_numpy(arrays[f"{name}_labels"]).long())
