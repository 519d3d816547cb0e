"""What the data of a run were: data.json in its folder, with the counts and the SHA-256 of both splits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ebl.atomic import read_json, write_atomically
from ebl.data.splits import Dataset, Split
from ebl.errors import InputError

SPLITS = {"train": "training set", "test": "test set"}


def keep_data(folder: Path, data: Dataset) -> None:
    """Write down the data of a run that starts; for one that goes on, see `check_data`."""
    path = folder / "data.json"
    if path.exists() or (folder / "metrics.jsonl").exists():
        check_data(folder, data)
    else:
        write_atomically(path, (json.dumps(fingerprint(data), indent=2) + "\n").encode())


def check_data(folder: Path, data: Dataset) -> None:
    """An error if the data are not those the run was trained on. Runs without data.json are older than it: they pass."""
    path = folder / "data.json"
    if not path.exists():
        return
    then, now = read_json(path), fingerprint(data)
    if not now.keys() <= then.keys():
        raise InputError(f"{path} is damaged: restore it, or train again in another folder")
    differs = [key for key in now if then[key] != now[key]]
    changed = [f"{key} {then[key]} then, {now[key]} now" for key in differs if not key.endswith("sha256")]
    changed = changed or [f"other content in the {what}" for part, what in SPLITS.items() if f"{part}_sha256" in differs]
    if changed:
        raise InputError(
            f"dataset = {data.name!r} has changed since {folder} was trained on it, or is another ({'; '.join(changed)}): "
            "restore it, or train again with another --out"
        )


def fingerprint(data: Dataset) -> dict[str, Any]:
    """Counts and hashes. Mean and std of data of one's own follow from them."""
    return {
        "train_images": len(data.train.labels),
        "test_images": len(data.test.labels),
        "image_shape": list(data.train.images.shape[1:]),
        "train_sha256": _sha256(data.train),
        "test_sha256": _sha256(data.test),
    }


def _sha256(split: Split) -> str:
    digest = hashlib.sha256(split.images.cpu().flatten().numpy().data)
    digest.update(split.labels.cpu().numpy().astype("<i8").data)
    return digest.hexdigest()
