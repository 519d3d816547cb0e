"""Files that are either whole or not there: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from ebl.errors import InputError


def write_atomically(path: Path, content: bytes) -> None:
    """A kill at any moment leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise _disk_error(path, error) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, values: dict[str, Any]) -> None:
    """One more JSON line."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
    except OSError as error:
        raise _disk_error(path, error) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _disk_error(path: Path, error: OSError) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(f"the disk is full: {path.name} could not be written; free some space, then continue with --resume")
    return InputError(f"{path} could not be written ({error.strerror}): check the folder's permissions and space")
