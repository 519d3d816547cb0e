"""The user's own data: an .npz file, or a folder with a folder of images for each class.

mine.npz holds `images` and `labels`, or `train_images`, `train_labels`, `test_images`, `test_labels`: bytes of shape
(N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. mine/ holds CLASS/*.png, or train/CLASS/*.png and
test/CLASS/*.png; folders below CLASS are read too. Where no test set is given, a fifth of each class is held out. Mean and
std are the training images'.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebl.data.formats import Images, Labels
from ebl.data.specs import Spec
from ebl.data.splits import Dataset, Split, held_out
from ebl.errors import InputError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class MissingError(InputError):
    """There is nothing of that name."""


def is_own(name: str) -> bool:
    """Whether a dataset's name is a path: it has a slash, or ends in .npz."""
    return "/" in name or os.sep in name or name.endswith(".npz")


def load_own(name: str) -> Dataset:
    path = Path(name).expanduser()
    if not path.exists():
        where = "" if path.is_absolute() else f" below {Path.cwd()} (a run remembers its data as they were named)"
        raise MissingError(f"dataset = {name!r}: no such file or folder{where}; give an .npz, a folder, or a dataset's name")
    return replace(_load(str(path), _stamp(path)), name=name)


def describe(data: Dataset) -> str:
    """N images, C×H×W, K classes."""
    e = data.spec
    counts = f"{len(data.train.labels)} + {len(data.test.labels)} images"
    return f"{counts}, {e.channels}×{e.size[0]}×{e.size[1]}, {e.num_classes} classes"


@lru_cache(maxsize=2)
def _load(name: str, _: frozenset[tuple[str, int, int]]) -> Dataset:
    path = Path(name)
    parts = _read_folder(path) if path.is_dir() else _read_npz(path)
    splits = {}
    for part, (x, y) in parts.items():
        if len(x) != len(y) or not len(x):
            raise InputError(f"{name}: {len(x)} images and {len(y)} labels ({part}); each image needs one label")
        splits[part] = Split(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))
    train, test = splits.get("train"), splits.get("test")
    if train is None or test is None:
        train, test = held_out(splits["all"], share=0.2, seed=0)
    labels = torch.cat([train.labels, test.labels])
    num_classes = int(labels.max()) + 1
    if int(labels.min()) < 0 or num_classes < 2 or train.labels.unique().numel() != num_classes:
        raise InputError(
            f"{name}: labels run from {int(labels.min())} to {int(labels.max())}, {train.labels.unique().numel()} of them in "
            "the training set; number the classes 0, 1, 2, … and give each a training image"
        )
    pixels = train.images.transpose(0, 1).flatten(1)
    share = pixels.shape[1] // 4_000_000 + 1  # a sample of the pixels is enough
    sample = pixels[:, ::share].double() / 255
    mean, std = sample.mean(1), sample.std(1).clamp_min(1e-3)
    shape = train.images.shape[1:]
    if test.images.shape[1:] != shape:
        raise InputError(
            f"{name}: training images are {tuple(shape)}, test images {tuple(test.images.shape[1:])}; make them alike"
        )
    entry = Spec(
        shape[0], (shape[1], shape[2]), num_classes, tuple(mean.tolist()), tuple(std.tolist()), pad=0, crop=0, flip=False
    )
    return Dataset(name, entry, train, test)


def _read_npz(path: Path) -> dict[str, tuple[Images, Labels]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except PermissionError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from error
    except (OSError, ValueError, EOFError, TypeError, NotImplementedError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise InputError(
            f"{path} is no whole .npz of plain arrays: write it with numpy.savez, or give a folder of images"
        ) from error
    if {"images", "labels"} <= set(arrays):
        wanted = {"all": ("images", "labels")}
    elif {"train_images", "train_labels", "test_images", "test_labels"} <= set(arrays):
        wanted = {"train": ("train_images", "train_labels"), "test": ("test_images", "test_labels")}
    else:
        names = ", ".join(sorted(arrays)) or "nothing"
        raise InputError(
            f"{path} holds {names}: it needs images and labels, or train_images, train_labels, test_images, test_labels"
        )
    return {part: (_images(arrays[x], path), _labels(arrays[y], path)) for part, (x, y) in wanted.items()}


def _images(x: Any, path: Path) -> Images:
    """Bytes as (N, C, H, W)."""
    if x.dtype != np.uint8:
        raise InputError(f"{path}: images are {x.dtype}; give bytes (uint8) from 0 to 255")
    if 0 in x.shape[1:]:
        raise InputError(f"{path}: images have shape {x.shape}; give images with pixels")
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] in (1, 3):
        raise InputError(
            f"{path}: images of shape {x.shape} may have their channels first or last; give (N, H, W) or larger ones"
        )
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return x.transpose(0, 3, 1, 2)
    raise InputError(f"{path}: images have shape {x.shape}; give (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels")


def _labels(y: Any, path: Path) -> Labels:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {y.dtype} of shape {y.shape}; give one whole number for each image")
    return y.astype(np.int64)


def _read_folder(path: Path) -> dict[str, tuple[Images, Labels]]:
    folders = {"all": path}
    if (path / "train").is_dir() and (path / "test").is_dir():
        folders = {"train": path / "train", "test": path / "test"}
    found = [sorted(p.name for p in f.iterdir() if p.is_dir() and not p.name.startswith(".")) for f in folders.values()]
    classes = found[0]
    if len(classes) < 2 or "train" in classes:
        raise InputError(
            f"{path} holds {', '.join(classes) or 'no folders'}: it needs a folder for each class (two at least), "
            "or train and test with those"
        )
    if found[-1] != classes:
        differ = ", ".join(sorted(set(classes) ^ set(found[-1])))
        raise InputError(f"{path}: train and test differ in {differ}; give both a folder for each class")
    return {part: _read_classes(folder, classes) for part, folder in folders.items()}


def _read_classes(folder: Path, classes: list[str]) -> tuple[Images, Labels]:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(f"{folder} holds image files, which Pillow reads: pip install pillow") from error
    images: list[Any] = []
    labels = []
    first: Path | None = None
    for label, name in enumerate(classes):
        files = [p for p in _files_below(folder / name) if p.suffix.lower() in SUFFIXES]
        if not files:
            raise InputError(f"{folder / name} holds no images ({' '.join(SUFFIXES)}): fill it or remove it")
        for file in files:
            try:
                with Image.open(file) as image:
                    if image.mode in ("I", "F"):
                        raise ValueError(f"its pixels are of mode {image.mode}, not bytes")
                    deep = image.mode.startswith("I;16")
                    grey = deep or image.mode in ("1", "L")
                    x = np.asarray(image) >> 8 if deep else np.asarray(image.convert("L" if grey else "RGB"))
                    x = x.astype(np.uint8)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise InputError(f"{file} cannot be read ({error}): mend or remove it") from error
            x = x[None] if grey else x.transpose(2, 0, 1)
            if images and x.shape != images[0].shape:
                raise InputError(f"{file} is {_size(x)}, {first} is {_size(images[0])}: make all images alike")
            first = first or file
            images.append(x)
            labels.append(label)
    return np.stack(images), np.array(labels)


def _size(x: Any) -> str:
    return "×".join(map(str, x.shape))


def _files_below(folder: Path) -> list[Path]:
    """All files in a folder and its folders, in order; hidden ones are left out, links followed once."""
    found: list[Path] = []
    seen: set[Path] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_fail):
        real = Path(place).resolve()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and real not in seen)
        found += [Path(place, name) for name in names if not name.startswith(".") and real not in seen]
        seen.add(real)
    return sorted(found)


def _fail(error: OSError) -> None:
    raise InputError(f"{error.filename} cannot be read ({error.strerror}): check its permissions") from error


def _stamp(path: Path) -> frozenset[tuple[str, int, int]]:
    """Changes when the data do: name, size and time of the file, or of all files below a folder."""
    files = [path] if path.is_file() else [p for p in _files_below(path) if p.is_file()]
    return frozenset((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files)
