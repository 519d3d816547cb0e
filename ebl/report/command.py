"""The command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from ebl.presets import PRESETS
from ebl.study.settings import flat, has_beta


def command(config: Mapping[str, Any], threads: int | None = None) -> str:
    """`ebl train` with the preset that leaves the fewest flags to give; its flags in the order of the settings.

    `threads`: on a CPU the last bits of a run depend on them."""
    wanted = _plain(config)
    if wanted["beta"] is None and not _takes_beta(wanted["rule"]):
        del wanted["beta"]  # the command line leaves it out by itself
    differing = {name: [key for key, value in wanted.items() if value != given.get(key)] for name, given in _presets().items()}
    name = min(differing, key=lambda name: len(differing[name]))
    flags = [word for key in differing[name] for word in _flag(key, wanted[key], _presets()[name].get(key))]
    if threads is not None and wanted["device"] == "cpu":
        flags += ["--threads", str(threads)]
    return shlex.join(["ebl", "train", "--preset", name, *flags])


def _flag(key: str, value: Any, given: Any) -> list[str]:
    name = key.replace("_", "-")
    if isinstance(value, bool) and isinstance(given, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in flat(config).items()}


@cache
def _presets() -> dict[str, dict[str, Any]]:
    return {name: _plain(asdict(config)) for name, (_, config) in PRESETS.items()}


@cache
def _takes_beta(rule: str) -> bool:
    return has_beta(rule)
