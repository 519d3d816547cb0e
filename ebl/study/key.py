"""The name of a run within a store: the same for the same run, whatever version asks for it.

A key is readable in front and ends in a hash of the settings that decide the result:

    cifar10-c-ep-s0-1a2b3c4d5e6f

Settings are written in one way only (a beta that was left out is the rule's own, one gain stands for every layer), the settings
of `FIRST` always, others only where they differ from their default: a later version may add settings, and the keys of what is
there stay. So a default of a setting that is not in `FIRST` may never change. `NOT_IN` decides where a run is made and what is
reported, not what comes out: a study begun on a GPU can be looked at, and extended, anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from ebl.config import Config
from ebl.data.own import is_own
from ebl.models.hopfield import per_layer
from ebl.rules import RULES
from ebl.study.settings import flat_config, has_beta

NOT_IN = ("device", "residual_warning")
FIRST = (
    *("dataset", "rule", "beta", "epochs", "batch_size", "seed", "precision", "settle", "start", "augment"),
    *("pad", "crop", "flip", "val", "test_batch_size", "stop_on_collapse"),
    *(f"model.{name}" for name in ("kind", "hidden", "kernel_size", "padding", "pool", "gains")),
    *(f"{phase}.{name}" for phase in ("free", "nudged") for name in ("iterations", "omega", "order", "tolerance")),
    *(f"optimiser.{name}" for name in ("rates", "momentum", "weight_decay", "rate_min")),
)

DEFAULTS = flat_config(Config())


@cache
def key_of(config: Config) -> str:
    name = Path(config.dataset).stem if is_own(config.dataset) else config.dataset
    digest = hashlib.sha256(canonical(config).encode()).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:40]}-{config.rule}-s{config.seed}-{digest}"


def canonical(config: Config) -> str:
    """The settings that decide the result, as JSON that is the same for the same run."""
    values, layers = flat_config(config), len(config.model.hidden) + 1
    values["beta"] = RULES[config.rule].check_beta(config.rule, config.beta) if has_beta(config.rule) else None
    for name in ("model.gains", "optimiser.rates"):
        values[name] = per_layer(name, values[name], layers)
    kept = {name: v for name, v in values.items() if name not in NOT_IN and (name in FIRST or v != DEFAULTS[name])}
    return json.dumps({name: _plain(kept[name]) for name in sorted(kept)}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Whole numbers are written as such, whether they came as 1 or as 1.0."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
