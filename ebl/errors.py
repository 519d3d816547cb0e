"""The one error a user's mistake raises, and the nearest-name hint its messages use."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(Exception):
    """Bad input: one line that gives the name, the value and the remedy. The command line shows it and exits 2."""


def choose(what: str, value: str, names: Iterable[str]) -> str:
    """`value` if it is one of `names`; otherwise an error that suggests the nearest."""
    names = list(names)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"{what} = {value!r} is unknown: {hint}use one of {', '.join(names)}")
