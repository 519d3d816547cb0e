"""What a run was made with, in words, and which of the paper's tables it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

from ebl.config import Config
from ebl.presets import preset
from ebl.rules import RULES
from ebl.rules.contrast import Contrast

Setting = tuple[tuple[str, str], ...]
"""Words by name. Runs with equal words may be compared: they differ in rule, dataset and seed only."""

_ROWS = ("rule", "dataset", "beta", "seed")  # what a table's rows, columns and spreads show
_NEUTRAL = ("device", "test_batch_size", "residual_warning", "stop_on_collapse")
_LEFT_OUT = frozenset(_ROWS + _NEUTRAL)
_TRAINED = ("network", "gains", "rates", "optimiser")  # a table of the paper's is for these, and its beta
_PAPER = {"comparison": "table1", "svhn": "table6", "mnist": "mnist-sota", "cifar10": "cifar10-sota-100"} | {
    "cifar100": "cifar100-sota-100"
}

_seen: dict[str, Setting] = {}  # thousands of runs have a few settings


def setting(config: dict[str, Any]) -> Setting:
    own = {name: value for name, value in config.items() if name not in _LEFT_OUT}
    told = repr(own)
    if told not in _seen:
        _seen[told] = _words(own)
    return _seen[told]


def beta(config: dict[str, Any]) -> float | None:
    """The strength of the perturbation; None where the rule leaves no choice."""
    rule = RULES.get(config["rule"])
    given: float | None = config.get("beta")
    if isinstance(rule, Contrast):
        return None if rule.beta_is_fixed else rule.beta if given is None else given
    return given


@cache
def paper_setting(name: str) -> Setting:
    """Of a column of the paper's hyperparameters: comparison, svhn, or a dataset's best one."""
    return setting(asdict(preset(_PAPER[name])))


def belongs(config: dict[str, Any]) -> str | None:
    """comparison (Table 1), svhn (Table 6), best (Tables 2 and 3) or None: by what was trained, not how long or how settled."""
    mine, dataset, rule = dict(setting(config)), config["dataset"], config["rule"]
    if rule not in RULES:
        return None

    def is_as(name: str) -> bool:
        theirs, their_beta = dict(paper_setting(name)), preset(_PAPER[name]).beta
        return all(mine[part] == theirs[part] for part in _TRAINED) and beta(config) in (their_beta, None)

    if rule == "c-ep" and dataset in ("cifar10", "cifar100") and is_as(dataset):
        return "best"
    if dataset == "svhn" and is_as("svhn"):
        return "svhn"
    if dataset in ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100") and is_as("comparison"):
        return "comparison"
    return None


def unlike(mine: Setting, other: Setting, ignore: Iterable[str] = ()) -> str:
    """What differs from another setting, in this one's words; empty where nothing does."""
    theirs = dict(other)
    return ", ".join(words for name, words in mine if words and theirs.get(name) != words and name not in ignore)


def shared(settings: Iterable[Setting]) -> Setting:
    """The words that all have in common."""
    first, *rest = settings
    return tuple(pair for pair in first if all(pair in other for other in rest))


def described(words: Setting) -> str:
    """A setting in a sentence, without what goes without saying."""
    return ", ".join(said for _, said in words if said and said != "automatic precision")


def _words(config: dict[str, Any]) -> Setting:
    flat = _flatten(asdict(Config())) | _flatten(config)
    words: dict[str, str] = {}

    def take(name: str, *parts: str) -> None:
        words[name] = ", ".join(part for part in parts if part)

    hidden = "-".join(map(str, flat.pop("model.hidden")))
    kernel, padding = flat.pop("model.kernel_size"), flat.pop("model.padding")
    take(
        "network",
        f"{flat.pop('model.kind')} {hidden}",
        f"kernel {kernel}, padding {padding}",
        f"{flat.pop('model.pool')} pooling",
    )
    take("gains", f"gain {_few(flat.pop('model.gains'))}")
    take("rates", f"rate {_few(flat.pop('optimiser.rates'))}")
    names = ("momentum", "weight_decay", "rate_min")
    take("optimiser", *(f"{name.replace('_', ' ')} {_power(flat.pop(f'optimiser.{name}'))}" for name in names))
    take("epochs", f"{(epochs := flat.pop('epochs'))} epoch{'s' if epochs != 1 else ''}")
    take("batch", f"batch {flat.pop('batch_size')}")
    settle = flat.pop("settle")
    orders = [flat.pop(f"{phase}.order") for phase in ("free", "nudged")]
    take("order", *(("" if orders[0] == "odd-first" else orders[0],) if len(set(orders)) == 1 else (" and ".join(orders),)))
    take("free", *_schedule(flat, "free", "T", "≤" if settle else "="))
    take("settle", f"settle {_power(settle)}" if settle else "")
    take("nudged", *_schedule(flat, "nudged", "K", "="))
    take("start", {"carry": "carried start", "zeros": "zero start"}[flat.pop("start")])
    bits = {"auto": "automatic precision", "fp32": "32 bits", "fp16": "16 bits", "tf32": "TF32"}
    take("precision", bits[flat.pop("precision")])
    take("augmentation", "augmented" if flat.pop("augment") else "not augmented")
    take("validation", f"{val:,} images for validation" if (val := flat.pop("val")) else "")
    for name in _LEFT_OUT:
        flat.pop(name, None)
    for name, value in flat.items():  # pad, crop and flip where they are given; whatever a newer version adds
        take(name, "" if value is None else f"{name} {value}")
    return tuple(words.items())


def _schedule(flat: dict[str, Any], phase: str, symbol: str, sign: str) -> list[str]:
    iterations, omega, tolerance = (flat.pop(f"{phase}.{name}") for name in ("iterations", "omega", "tolerance"))
    factor = f"Chebyshev {omega.partition(':')[2]}" if isinstance(omega, str) else f"ω = {omega:g}"
    return [
        f"{symbol} {sign if tolerance is None else '≤'} {iterations}",
        "" if omega == 1 else factor,
        "" if tolerance is None else f"tolerance {_power(tolerance)}",
    ]


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _few(values: Iterable[float]) -> str:
    values = list(values)
    return " ".join(f"{v:g}" for v in (values[:1] if len(set(values)) == 1 else values))


def _power(value: float) -> str:
    """5e-4 rather than 0.0005; 0.9 as it is."""
    if value == 0 or value >= 0.01:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"
