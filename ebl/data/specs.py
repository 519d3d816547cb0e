"""What is known of each dataset: a new one is an entry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """Images as they are stored, and how the paper prepares them: zeros around them, then normalisation; in training,
    a random crop from the image with `crop` pixels of edge padding, and a flip where `flip` says so."""

    channels: int
    size: tuple[int, int]  # height and width
    num_classes: int
    mean: tuple[float, ...]  # of pixels between 0 and 1
    std: tuple[float, ...]
    pad: int
    crop: int
    flip: bool


SPECS: dict[str, Spec] = {
    "fashion-mini": Spec(1, (28, 28), 10, (0.2860,), (0.3530,), pad=2, crop=2, flip=True),
    "mnist": Spec(1, (28, 28), 10, (0.1307,), (0.3081,), pad=2, crop=2, flip=False),
    "fashion-mnist": Spec(1, (28, 28), 10, (0.2860,), (0.3530,), pad=2, crop=2, flip=True),
    "kmnist": Spec(1, (28, 28), 10, (0.1918,), (0.3483,), pad=2, crop=2, flip=False),
    "svhn": Spec(3, (32, 32), 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), pad=0, crop=4, flip=False),
    "cifar10": Spec(3, (32, 32), 10, (0.4914, 0.4822, 0.4465), (3 * 0.2023, 3 * 0.1994, 3 * 0.2010), pad=0, crop=4, flip=True),
    "cifar100": Spec(3, (32, 32), 100, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), pad=0, crop=4, flip=True),
}
