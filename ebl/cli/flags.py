"""What commands share: consoles, and reading flags."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import typing
from typing import TypeVar

import torch
import tyro
from rich.console import Console

from ebl.errors import InputError
from ebl.relax import Schedule
from ebl.study.settings import KINDS
from ebl.train import check_device

T = TypeVar("T")

console, errors = Console(), Console(stderr=True)

MAY_BE_NONE = {f"--{key.replace('_', '-')}" for key, kind in KINDS.items() if type(None) in typing.get_args(kind)}


def parse(kind: type[T], prog: str, argv: list[str], default: T | None = None) -> T:
    """tyro's reading of the flags, with its boxed complaints made one line. `none` may be written as everywhere else."""
    argv = [_with_none(word, before) for word, before in zip(argv, ["", *argv], strict=False)]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return (
                tyro.cli(kind, prog=prog, args=argv)
                if default is None
                else tyro.cli(kind, prog=prog, args=argv, default=default)
            )
    except InputError as error:  # of a group of settings, which does not know its name
        raise InputError(f"{_group(str(error), argv)}{error}") from error
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = [line.strip("│|╭╮╰╯ ") for line in complaint.getvalue().splitlines()]
        lines = [line for line in lines if line.strip("─-")][1:]  # without rules and title
        hint = [line for line in lines if line.startswith("--")][:1]
        said = " ".join(itertools.takewhile(lambda line: not line.startswith(("Argument", "Perhaps", "For full")), lines))
        meant = f"; did you mean {hint[0].split()[0]}?" if hint and "nrecognized" in said else ""
        meant = "" if meant and hint[0].split()[0] in argv else meant  # of another action
        if wrong := re.match(r"Error parsing (\S+?): .*?\['(.*?)'\]", said):
            said = f"{wrong[1]} {wrong[2]}: give {'a number, or none' if 'FLOAT' in said else 'what this flag takes'}"
        for number, words in (
            ("whole ", "invalid literal for int\\(\\) with base 10"),
            ("", "could not convert string to float"),
        ):
            if wrong := re.match(rf"Error parsing (\S+?): {words}: '(.*?)'", said):
                said = f"{wrong[1]} {wrong[2]}: give a {number}number"
        actions = itertools.takewhile(lambda word: re.fullmatch("[a-z]+", word), argv[: 1 if prog == "ebl study" else 0])
        raise InputError(f"{said}{meant}; see {' '.join([prog, *actions])} --help") from None


def _with_none(word: str, before: str) -> str:
    """tyro wants None where a setting may be none."""
    flag, equals, value = word.partition("=")
    if equals and flag in MAY_BE_NONE and value.lower() == "none":
        return f"{flag}=None"
    return "None" if before in MAY_BE_NONE and word.lower() == "none" else word


def _group(complaint: str, argv: list[str]) -> str:
    """`free.` for a complaint such as `iterations = 0: ...`, where --free.iterations 0 was typed."""
    wrong = re.match(r"(\w+) = (.+?)( is unknown)?:", complaint)
    if wrong is None:
        return ""
    flags = {word.partition("=")[0] for word in argv if re.fullmatch(rf"--\w+\.{wrong[1].replace('_', '[_-]')}(=.*)?", word)}
    found = [flag for flag in flags if len(flags) == 1 or _same(typed(argv, flag), wrong[2])]
    return found[0][2:].partition(".")[0] + "." if len(found) == 1 else ""


def _same(text: str | None, value: str) -> bool:
    try:
        return float(text or "") == float(value)
    except ValueError:
        return text == value.strip("'")


def typed(argv: list[str], flag: str) -> str | None:
    """The value of a flag as it was typed last, if it was."""
    found = None
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            found = argv[i + 1]
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def read_omega(text: str) -> float | str:
    Schedule(omega=text)
    return text if text.startswith("chebyshev") else float(text)


def pick_device(name: str | None) -> torch.device:
    return check_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
