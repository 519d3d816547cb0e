"""Files that are either whole or not there: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from ebl.errors import InputError

DISK_FULL = "the disk is full"


def write_atomically(path: Path, content: bytes) -> None:
    """A kill at any moment leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        if os.name != "nt":
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise disk_error(path, error) from error


def append_line(path: Path, values: dict[str, Any]) -> None:
    """One more JSON line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise disk_error(path, error) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        found = _all_at_once(lines)
        if len(found) != len(lines):  # one of them is none by itself
            found = [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or train again in another folder") from error
    return [line for line in found if isinstance(line, dict)]


def _all_at_once(lines: list[str]) -> list[Any]:
    """What the lines hold, half as long as one by one takes; empty if they are no JSON."""
    try:
        found: list[Any] = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        return []
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that `write_atomically` wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}): restore it, or train again in another folder") from error
    return found if isinstance(found, dict) else {}


def disk_error(path: Path, error: OSError) -> InputError:
    """What to tell the user of a write that failed."""
    if is_full(error):
        return InputError(
            f"{DISK_FULL}: {path.name} could not be written; free some space, then go on (the same command; train: --resume)"
        )
    return InputError(f"{path} could not be written ({error.strerror}): check the folder's permissions and space")


def is_full(error: Exception) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or str(error).startswith(DISK_FULL)
