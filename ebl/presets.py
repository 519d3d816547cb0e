"""Settings by name: the columns of the paper's hyperparameter table, and a quick one for a CPU."""

from __future__ import annotations

from dataclasses import replace

from ebl.config import Config, Model, Optimiser
from ebl.errors import choose
from ebl.relax import Schedule

_COMPARATIVE = Config(
    dataset="cifar10",
    beta=0.25,
    epochs=100,
    batch_size=128,
    free=Schedule(60),
    nudged=Schedule(15),
    model=Model(gains=(0.5,) * 5),
    optimiser=Optimiser(rates=(0.0625, 0.0375, 0.025, 0.02, 0.0125), momentum=0.9, weight_decay=3e-4, rate_min=2e-6),
)
_CIFAR10 = Config(
    dataset="cifar10",
    beta=0.1,
    epochs=100,
    batch_size=128,
    free=Schedule(60),
    nudged=Schedule(20),
    model=Model(gains=(0.4, 0.7, 0.6, 0.3, 0.4)),
    optimiser=Optimiser(rates=(0.03,) * 5, momentum=0.9, weight_decay=2.5e-4, rate_min=2e-6),
)
_CIFAR100 = Config(
    dataset="cifar100",
    beta=0.25,
    epochs=100,
    batch_size=128,
    free=Schedule(60),
    nudged=Schedule(15),
    model=Model(gains=(0.5, 0.4, 0.5, 0.8, 0.5)),
    optimiser=Optimiser(rates=(0.03, 0.04, 0.04, 0.04, 0.025), momentum=0.9, weight_decay=3.5e-4, rate_min=2e-6),
)

PRESETS: dict[str, tuple[str, Config]] = {
    "quick": (
        "the embedded data, a small network, over-relaxed: seconds on two cores",
        Config(
            dataset="fashion-mini",
            epochs=3,
            batch_size=50,
            free=Schedule(12, omega=1.4),
            nudged=Schedule(8, omega=1.4),
            model=Model(hidden=(16, 32), gains=(0.5, 0.8, 0.8)),
            optimiser=Optimiser(rates=(0.1, 0.06, 0.03), momentum=0.9, weight_decay=0.0, rate_min=2e-6),
            augment=False,
            pad=0,
        ),
    ),
    "table1": ("the comparative study, any of the five datasets and nine rules", _COMPARATIVE),
    "table6": ("the additional study on SVHN, gain 0.7", replace(_COMPARATIVE, dataset="svhn", model=Model(gains=(0.7,) * 5))),
    "mnist-sota": ("the best setting on MNIST", replace(_COMPARATIVE, dataset="mnist")),
    "cifar10-sota-100": ("the best setting on CIFAR-10, 100 epochs", _CIFAR10),
    "fast": (
        "cifar10-sota-100 with free phases that stop when they have settled, over-relaxed",
        replace(
            _CIFAR10,
            free=Schedule(40, omega="chebyshev:0.95"),
            nudged=Schedule(8, omega=1.4),
            settle=5e-4,
            start="zeros",
        ),
    ),
    "cifar10-sota-300": ("the best setting on CIFAR-10, 300 epochs", replace(_CIFAR10, epochs=300)),
    "cifar100-sota-100": ("the best setting on CIFAR-100, 100 epochs", _CIFAR100),
    "cifar100-sota-300": ("the best setting on CIFAR-100, 300 epochs", replace(_CIFAR100, epochs=300)),
}


def preset(name: str) -> Config:
    return PRESETS[choose("preset", name, PRESETS)][1]
