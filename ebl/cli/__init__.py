"""The command line: one file a command."""

from __future__ import annotations

import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich.logging import RichHandler

from ebl.cli.flags import errors
from ebl.errors import InputError, choose
from ebl.version import __version__

COMMANDS = {
    "train": "Train a network into a run folder.",
    "evaluate": "Test a trained network.",
    "presets": "List the presets and their main settings.",
    "data": "Datasets: list what there is, fetch one, or check hashes again.",
    "study": "Run, show and merge studies: the paper's tables, or a grid of your own.",
    "report": "Write a report of a study: tables beside the paper's, its lessons, curves, provenance.",
    "theory": "Check the theorems on an energy: losses, gradients, counter-examples.",
    "bench": "Measure this machine: ceiling, training steps, the naive definition.",
    "precision": "Show how exact each precision's gradients are on a trained network.",
}
"""Each is a module of this package, with its flags (`Arguments`) and what it does (`run`)."""


GOES_ON = {
    "train": "; the same command with --resume goes on from the last checkpoint, if there was one already",
    "study run": "; the same command goes on where it was",
    "data fetch": "; the same command goes on where it was",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command. Bad input: one line on stderr, exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False, show_time=False)]
    )
    logging.getLogger("ebl").setLevel(logging.INFO)
    try:
        try:
            _run(argv)
        except SystemExit:
            _flush()
            raise
        _flush()
    except InputError as error:
        _leave(2, f"ebl: {error}")
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():  # such as head, which has seen enough
            _leave(1)
        where = f"{error.filename}: " if error.filename else ""
        _leave(2, f"ebl: {where}{error.strerror or error}; check that it exists and may be read and written")
    except KeyboardInterrupt:
        _leave(130, f"ebl: interrupted{GOES_ON.get(' '.join(argv[:2]), GOES_ON.get(''.join(argv[:1]), ''))}")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _leave(code: int, said: str | None = None) -> NoReturn:
    """Say what went wrong, whatever became of standard output, and end."""
    if said is not None:
        print(said, file=sys.stderr)
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at the end
    sys.exit(code)


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print("usage: ebl COMMAND [--help]\n")
        for name, what in COMMANDS.items():
            print(f"  {name:9s} {what}")
    elif argv[0] == "--version":
        print(__version__)
    else:
        importlib.import_module(f"ebl.cli.{choose('command', argv[0], COMMANDS)}").run(argv[1:])


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    if sys.stdout is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)  # errors are told unasked
    except (OSError, ValueError):  # closed, or no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))
