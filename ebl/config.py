"""What a run is: one frozen config, checked when it is made, saved beside its results."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from math import inf, isfinite, prod
from pathlib import Path
from typing import Any

from ebl.costs import SquaredError
from ebl.data import Spec, spec
from ebl.errors import InputError, choose
from ebl.models.hopfield import POOLS, ConvHopfield, DenseHopfield, Hopfield, conv_links, per_layer
from ebl.relax import Schedule
from ebl.rules import RULES

KINDS = ("conv", "dense")
STARTS = ("carry", "zeros")
PRECISIONS = ("auto", "fp32", "tf32", "fp16")


@dataclass(frozen=True)
class Model:
    """The network."""

    kind: str = "conv"  # conv or dense
    hidden: tuple[int, ...] = (128, 256, 512, 512)  # channels (conv) or units (dense) of each hidden layer
    kernel_size: int = 3  # of the convolutions
    padding: int = 1  # of the convolutions
    pool: str = "max"  # max or average
    gains: tuple[float, ...] = (0.5,)  # scale of the initial weights: one number, or one a layer

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        object.__setattr__(self, "gains", tuple(self.gains))
        choose("model.kind", self.kind, KINDS)
        choose("model.pool", self.pool, POOLS)
        if self.kernel_size < 1:
            raise InputError(f"model.kernel_size = {self.kernel_size}: use a positive number, such as 3")
        if self.padding < 0:
            raise InputError(f"model.padding = {self.padding}: use 0 or a positive number")
        if min(self.hidden, default=1) < 1:
            raise InputError(f"model.hidden = {self.hidden}: give one positive number a layer")
        if not all(map(isfinite, per_layer("model.gains", self.gains, len(self.hidden) + 1))):
            raise InputError(f"model.gains = {self.gains}: use finite numbers such as 0.5")


@dataclass(frozen=True)
class Optimiser:
    """SGD with momentum and a cosine schedule."""

    rates: tuple[float, ...] = (0.0625, 0.0375, 0.025, 0.02, 0.0125)  # learning rates: one, or one a layer
    momentum: float = 0.9  # plain, not Nesterov's
    weight_decay: float = 3e-4  # of weights and biases
    rate_min: float = 2e-6  # what the rates fall to, stepped once an epoch

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))
        if not self.rates or not all(0 < rate < inf for rate in self.rates):
            raise InputError(f"optimiser.rates = {self.rates}: learning rates must be positive, such as 0.03")
        for name in ("weight_decay", "rate_min"):
            if not 0 <= getattr(self, name) < inf:
                raise InputError(f"optimiser.{name} = {getattr(self, name)}: use 0 or a small positive number")
        if not 0 <= self.momentum < 1:
            raise InputError(f"optimiser.momentum = {self.momentum}: use a value from 0 to below 1, such as 0.9")


@dataclass(frozen=True)
class Config:
    """One run."""

    dataset: str = "fashion-mini"  # the embedded one needs no files
    rule: str = "c-ep"  # cl p-ep n-ep c-ep p-cpl n-cpl c-cpl r-ep tbp rbp
    beta: float | None = None  # strength of the perturbation; None: the rule's own (0.25; 1 for cl)
    epochs: int = 100  # the cosine schedule of the learning rates spans them
    batch_size: int = 128  # of the training
    seed: int = 0  # of the weights, the order of the data and its augmentation
    device: str = "cpu"  # cpu or cuda
    precision: str = "auto"  # on cuda: fp16 (fused kernels), tf32, fp32; auto: fp16 where the kernels take the run, else tf32
    model: Model = field(default_factory=Model)
    free: Schedule = field(default_factory=lambda: Schedule(60))  # relaxation of the free phase and at test time
    nudged: Schedule = field(default_factory=lambda: Schedule(15))  # relaxation of each perturbed phase
    settle: float | None = None  # mean residual of free phases: their number of iterations follows it, up to free.iterations
    start: str = "carry"  # of free phases in training: carry (the end of the last batch's second phase) or zeros
    optimiser: Optimiser = field(default_factory=Optimiser)
    augment: bool = True  # random crops, and flips where the dataset's entry flips
    pad: int | None = None  # pixels of zeros around the images; None: as the dataset's entry says
    crop: int | None = None  # pixels a random crop may shift; None: as the dataset's entry says
    flip: bool | None = None  # random flips; None: as the dataset's entry says
    val: int = 0  # images held out of the training set for validation (stratified, seeded)
    test_batch_size: int = 500  # of the evaluation; the fused kernels take 1024
    residual_warning: float = 1e-3  # a free phase with a larger mean residual is reported as unsettled
    stop_on_collapse: bool = False  # end a run whose error stays at the majority class's

    def __post_init__(self) -> None:
        entry = self.entry
        RULES[choose("rule", self.rule, RULES)].check_beta(self.rule, self.beta, SquaredError())
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed = {self.seed}: use a whole number from 0 to 2^63 - 1")
        choose("start", self.start, STARTS)
        choose("precision", self.precision, PRECISIONS)
        if self.settle is not None and not 0 < self.settle < inf:
            raise InputError(f"settle = {self.settle}: use a small positive number such as 5e-4, or none")
        if self.settle is not None and self.free.tolerance is not None:
            raise InputError(f"settle = {self.settle:g} with free.tolerance = {self.free.tolerance:g}: give one of them")
        for name in ("epochs", "batch_size", "test_batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)}: use a positive number")
        for name in ("pad", "crop", "val"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{name} = {getattr(self, name)}: use 0 or a positive number")
        if not self.augment and (self.crop or self.flip):
            raise InputError(f"crop = {self.crop}, flip = {self.flip} without augmentation: add --augment, or leave them out")
        if entry.crop >= min(entry.size):
            raise InputError(
                f"crop = {entry.crop}: images of {entry.size[0]}×{entry.size[1]} can shift by less than their size"
            )
        per_layer("optimiser.rates", self.optimiser.rates, len(self.model.hidden) + 1)
        if self.model.kind == "conv":
            m = self.model
            conv_links(self.input_shape, m.hidden, entry.num_classes, m.kernel_size, m.padding, m.pool)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        e = self.entry
        return e.channels, e.size[0] + 2 * e.pad, e.size[1] + 2 * e.pad

    @property
    def entry(self) -> Spec:
        """The dataset's entry, with this config's own pad, crop and flip."""
        changed = {name: value for name in ("pad", "crop", "flip") if (value := getattr(self, name)) is not None}
        return dataclasses.replace(spec(self.dataset), **changed)


def check_new(config: Config) -> None:
    """What is refused of a run that begins; runs that began with it before go on."""
    o = config.optimiser
    if o.rate_min > min(o.rates):
        raise InputError(f"optimiser.rate_min = {o.rate_min}: rates fall to it from {min(o.rates)}; use less, or 0")
    if not config.residual_warning > 0:
        raise InputError(f"residual_warning = {config.residual_warning}: use a positive number such as 1e-3, or inf")


def build_network(config: Config) -> Hopfield:
    """The network a config describes, freshly initialised from its seed."""
    m, num_classes, shape = config.model, config.entry.num_classes, config.input_shape
    if m.kind == "dense":
        return DenseHopfield((prod(shape), *m.hidden, num_classes), gains=m.gains, seed=config.seed)
    return ConvHopfield(
        shape[0],
        shape[1:],
        m.hidden,
        num_classes,
        kernel_size=m.kernel_size,
        padding=m.padding,
        pool=m.pool,
        gains=m.gains,
        seed=config.seed,
    )


def to_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def read_config(path: Path, dataset: str | None = None) -> Config:
    """The config in a file; `dataset`: where its dataset is now."""
    try:
        return from_json(path.read_text(encoding="utf-8"), str(path), dataset)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it, or use another folder") from error


def from_json(text: str, name: str = "config.json", dataset: str | None = None) -> Config:
    """The config `to_json` wrote; an error for anything else."""
    try:
        values = json.loads(text)
        return _make(Config, values if dataset is None else {**values, "dataset": dataset})
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{name} is not a config of this version ({error}): remove it or use another folder") from error


def differences(a: Config, b: Config) -> list[str]:
    """What differs, each as `NAME a there, b now`."""
    flat_a, flat_b = _flatten(dataclasses.asdict(a)), _flatten(dataclasses.asdict(b))
    return [f"{name} {flat_a[name]} there, {flat_b[name]} now" for name in flat_a if flat_a[name] != flat_b[name]]


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _make(kind: Any, values: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    made = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            value = _make(hint, value)
        made[name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)
