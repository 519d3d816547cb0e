"""Checkpoints: safetensors with a JSON header, written atomically; no pickles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ebl.atomic import write_atomically
from ebl.errors import InputError

FORMAT = 2


def save_checkpoint(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    metadata = {"ebl": json.dumps({"format": FORMAT, **header})}
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    write_atomically(path, save(plain, metadata=metadata))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (images channels-last, as networks use them) and header; an error for what is no whole checkpoint of ours."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: give a run folder that has a checkpoint") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged or cut short ({error}): restore it, or train again in another folder") from error
    header: dict[str, Any] = json.loads(metadata.get("ebl", "{}"))
    if header.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {header.get('format')}, this version reads {FORMAT}: use the ebl version that wrote it"
        )
    return {name: image_layout(t) for name, t in tensors.items()}, header


def fill(path: Path, targets: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Copy a checkpoint's tensors into those of a network; an error if it belongs to another."""
    for name, target in targets.items():
        found = tensors.get(name)
        if found is None or found.shape != target.shape:
            got = "no such tensor" if found is None else f"shape {tuple(found.shape)}"
            raise InputError(
                f"{path} belongs to another model: {name} needs shape {tuple(target.shape)}, the file has {got}; "
                "use the config it was trained with"
            )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])


def image_layout(t: Tensor) -> Tensor:
    """A copy of its own: where a tensor starts in memory can change the last bits of what is computed from it."""
    return t.clone(memory_format=torch.channels_last if t.dim() == 4 else torch.contiguous_format)
