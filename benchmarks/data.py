"""Gather + augment + normalise, batch 128, CIFAR-10's shape: ours against a per-image pipeline in torchvision's manner.

    python benchmarks/data.py [--device cuda] [--threads 2]

Random pixels: the cost does not depend on them. Ours is timed over an epoch's steps, indexing and random draws included.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor

from ebl.data.batches import Batches
from ebl.data.specs import SPECS
from ebl.data.splits import Split

BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8)
    split = Split(images, torch.randint(10, (50_000,))).to(args.device)
    batches = Batches(split, SPECS["cifar10"], BATCH, augment=True)
    ours = min(time_ours(batches, args.device) for _ in range(3))
    theirs = min(time_per_image(images.numpy()) for _ in range(3))
    print(f"{args.device}, {args.threads} threads, torch {torch.__version__}, batch {BATCH}, 3×32×32, crop 4, flip")
    print(f"ours       {1e3 * ours:8.3f} ms a batch  {BATCH / ours:12.0f} images/s")
    print(f"per image  {1e3 * theirs:8.3f} ms a batch  {BATCH / theirs:12.0f} images/s (CPU, one process)")
    print(f"ratio      {theirs / ours:8.1f}")


def time_ours(batches: Batches, device: str) -> float:
    steps = batches.epoch(0)
    next(steps)
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    count = sum(1 for _ in zip(range(200), steps, strict=False))
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / count


def time_per_image(images: np.ndarray) -> float:
    """One image after another: crop from the edge-padded image, flip, to tensor, normalise; then stack."""
    spec = SPECS["cifar10"]
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (spec.mean, spec.std))
    rng = np.random.default_rng(0)

    def one(image: np.ndarray) -> Tensor:
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="edge")
        i, j = rng.integers(9, size=2)
        crop = padded[:, i : i + 32, j : j + 32]
        if rng.random() < 0.5:
            crop = crop[:, :, ::-1]
        return (torch.from_numpy(np.ascontiguousarray(crop)).float().div_(255) - mean) / std

    begin = time.perf_counter()
    for step in range(10):
        torch.stack([one(images[k]) for k in range(step * BATCH, (step + 1) * BATCH)])
    return (time.perf_counter() - begin) / 10


if __name__ == "__main__":
    main()
