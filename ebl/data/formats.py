"""Readers of the original distribution formats: bytes in, uint8 images (N, C, H, W) and int64 labels out.

Pickles from outside are read by an unpickler that knows what CIFAR's files contain and nothing else.
"""

from __future__ import annotations

import io
import pickle
import zlib
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ebl.errors import InputError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

GZIP = b"\x1f\x8b"


def gunzip(raw: bytes, name: str) -> bytes:
    """The content of a gzip (all its members); anything else as it is."""
    if not raw.startswith(GZIP):
        return raw
    content = []
    try:
        while raw:
            stream = zlib.decompressobj(wbits=31)
            content.append(stream.decompress(raw) + stream.flush())
            if not stream.eof:
                raise InputError(f"{name} is cut short: its gzip stream does not end; fetch it again")
            raw = stream.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise InputError(f"{name} is damaged ({error}): fetch it again") from error
    return b"".join(content)


def read_idx(raw: bytes, name: str) -> Images:
    """An idx file of bytes, with or without gzip: 0, 0, 8, dimensions, sizes (big-endian), data."""
    raw = gunzip(raw, name)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 4:
        raise InputError(f"{name} is no idx file of bytes: it starts with {raw[:4].hex(' ')}, not 00 00 08; fetch it again")
    head = 4 + 4 * raw[3]
    shape = tuple(int(v) for v in np.frombuffer(raw[4:head], ">u4")) if len(raw) >= head else (1 << 40,)
    if len(raw) != head + prod(shape):
        raise InputError(f"{name} is cut short: {len(raw)} bytes do not hold {'×'.join(map(str, shape))}; fetch it again")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def read_idx_pair(images: bytes, labels: bytes, name: str) -> tuple[Images, Labels]:
    x, y = read_idx(images, name), read_idx(labels, name)
    if x.ndim != 3 or y.ndim != 1:
        raise InputError(
            f"{name}: images have {x.ndim} dimensions and labels {y.ndim}, not 3 and 1; are the two files swapped?"
        )
    return x[:, None], y.astype(np.int64)


def read_cifar_python(raw: bytes, name: str, label_key: str) -> tuple[Images, Labels]:
    """A pickled batch: `data` (N, 3072) and a list of labels."""
    try:
        batch = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
        x, y = np.asarray(batch["data"]), np.asarray(batch[label_key], dtype=np.int64)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except (
        pickle.UnpicklingError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        ImportError,
    ) as error:
        raise InputError(f"{name} is no CIFAR batch ({type(error).__name__}: {error}): fetch it again") from error
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        raise InputError(f"{name} holds {x.dtype} data of shape {x.shape}, not bytes of shape (N, 3072): fetch it again")
    return x.reshape(-1, 3, 32, 32), y


def read_cifar_binary(raw: bytes, name: str, label_bytes: int) -> tuple[Images, Labels]:
    """Rows of labels and 3072 bytes; CIFAR-100 has a coarse label in front of the fine one."""
    if not raw or len(raw) % (label_bytes + 3072):
        raise InputError(f"{name} is cut short: {len(raw)} bytes are no whole number of {label_bytes + 3072}; fetch it again")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, label_bytes + 3072)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1].astype(np.int64)


def read_mat(raw: bytes, name: str) -> tuple[Images, Labels]:
    """SVHN: X (32, 32, 3, N) and y (N, 1), where digit 0 is written 10."""
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise InputError(f"{name} is a .mat file, which scipy reads: pip install scipy") from error
    try:
        arrays = loadmat(io.BytesIO(raw), variable_names=["X", "y"])
        x, y = arrays["X"], arrays["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # scipy raises whatever a damaged byte leads to
        raise InputError(f"{name} is no .mat file that scipy can read ({error}): fetch it again") from error
    if x.dtype != np.uint8 or x.ndim != 4:
        raise InputError(f"{name} holds {x.dtype} images of shape {x.shape}, not bytes of shape (32, 32, 3, N): fetch it again")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(y == 10, 0, y)


class _Unpickler(pickle.Unpickler):
    """Lists, dicts, strings, numbers and NumPy arrays: what CIFAR's batches are made of."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.ALLOWED:
            if module == "numpy.core.multiarray":
                module = "numpy._core.multiarray" if hasattr(np, "_core") else module  # the old name warns
            return super().find_class(module, name)
        raise InputError(f"its pickle asks for {module}.{name}, which no CIFAR file does; nothing was run; fetch it again")
