"""Settings by their dotted keys, such as `free.iterations`: as a study's file and `--set` give them."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ebl.config import Config
from ebl.errors import InputError, choose
from ebl.presets import preset
from ebl.rules import RULES

RELAXATION = ("free", "nudged", "settle", "start")
"""What of a preset says how networks settle."""


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def flat_config(config: Any, prefix: str = "") -> dict[str, Any]:
    """A config's settings by dotted key."""
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        found |= flat_config(value, f"{prefix}{name}.") if dataclasses.is_dataclass(value) else {f"{prefix}{name}": value}
    return found


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with these settings (as `checked` gave them). A rule whose beta is fixed, or that has none, leaves it out."""
    rule = values.get("rule", config.rule)
    if rule in RULES and not has_beta(rule):
        values = {**values, "beta": None}
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        groups.setdefault(group, {})[name] = value
    own = groups.pop("", {})
    for group, new in groups.items():
        try:
            own[group] = replace(getattr(config, group), **new)
        except InputError as error:
            named = str(error).startswith(f"{group}.")
            raise InputError(str(error) if named else f"{group}.{error}") from error  # such as: free.iterations = 0: ...
    return replace(config, **own)


def checked(values: object, where: str) -> dict[str, Any]:
    """Settings from outside, by dotted key (or nested), each of its key's type; an error says where they were found."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: give settings as `key: value`, such as `epochs: 10`")
    try:
        settings = flat(values)
    except RecursionError:  # an alias of YAML within what it names
        raise InputError(f"{where}: the settings contain themselves; write them out") from None
    return {check_key(key, where): check_value(key, value, where) for key, value in settings.items()}


def check_key(key: object, where: str) -> str:
    return choose(f"{where}: setting", str(key), KINDS)


def check_value(key: str, value: object, where: str) -> Any:
    try:
        return _read(value, KINDS[key])
    except ValueError as error:
        raise InputError(f"{where}: {key} = {value!r}: give {error}") from None


def relaxation_of(name: str) -> dict[str, Any]:
    """The settings of a preset that say how networks settle."""
    settings = flat_config(preset(name))
    return {key: value for key, value in settings.items() if key.partition(".")[0] in RELAXATION}


def has_beta(rule: str) -> bool:
    """Whether a rule takes a beta of the user's."""
    try:
        RULES[rule].check_beta(rule, 0.125)
    except InputError:
        return False
    return True


def _kinds(kind: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        found |= _kinds(hint, f"{prefix}{name}.") if dataclasses.is_dataclass(hint) else {prefix + name: hint}
    return found


KINDS = _kinds(Config)
"""The type of each setting, by its dotted key."""

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


def _read(value: object, hint: Any) -> Any:
    """The value as the hint wants it; a ValueError says what that is."""
    if typing.get_origin(hint) is tuple:
        kind = typing.get_args(hint)[0]
        return tuple(_read(item, kind) for item in (value if isinstance(value, list | tuple) else [value]))
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in kinds and (value is None or (isinstance(value, str) and value.lower() == "none")):
        return None
    if isinstance(value, bool) == (bool in kinds):
        for kind in kinds:
            if kind is float and isinstance(value, int | float | str):  # YAML reads 3e-4 as text
                try:
                    return float(value)
                except ValueError:
                    continue
            if isinstance(value, kind):
                return value
    raise ValueError(" or ".join(_WORDS[kind] for kind in kinds))
