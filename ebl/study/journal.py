"""Files that several processes, also of several machines, write at once: appended JSON lines, and claims.

Both rest on flock, which the kernel gives back when a process ends, however it ends. On NFS, Linux makes it a lock of the
server, so that it holds between machines (unless mounted with local_lock). Without flock (Windows) nothing is locked.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ebl.atomic import disk_error
from ebl.errors import InputError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

PATIENCE = 20  # tries: whoever only looks whether a claim is held holds it for a moment


def append(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """More JSON lines, all or none. A line that a kill cut short is taken away first."""
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    try:
        with path.open("ab+") as file:
            _lock(file, path, wait=True)
            end = _end_of_whole_lines(file)
            try:
                file.truncate(end)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise
    except OSError as error:
        raise disk_error(path, error) from error


class Tail:
    """What is appended to a file from now on."""

    def __init__(self, path: Path):
        self.path = path
        self.position = path.stat().st_size if path.exists() else 0

    def news(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.position)
            whole, newline, _ = file.read().rpartition(b"\n")
        self.position += len(whole) + len(newline)
        return readable(whole)


def readable(content: bytes) -> list[dict[str, Any]]:
    """The JSON objects among the lines; what is none is left out."""
    found = []
    for line in content.split(b"\n"):
        with contextlib.suppress(ValueError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a claim as long as the block lasts; False if somebody else does."""
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise disk_error(path, error) from error
    with file:
        for _ in range(PATIENCE):
            if got := _lock(file, path):
                break
            time.sleep(0.05)
        if got:
            try:
                file.truncate(0)
                file.write(json.dumps(whoami()))
                file.flush()
            except OSError as error:
                raise disk_error(path, error) from error
        yield got


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a claim (host, pid, time); None if nobody does."""
    try:
        with path.open(encoding="utf-8") as file:
            if _lock(file, path, shared=True):
                return None
            found = readable(file.read().encode())
    except FileNotFoundError:
        return None
    return found[0] if found else {}


def whoami() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "time": now()}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _lock(file: IO[Any], path: Path, wait: bool = False, shared: bool = False) -> bool:
    """Whether the lock is ours. It ends with the file's closing."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise InputError(f"{path.parent} is on a file system without locks: put the store elsewhere (--store)") from error
        raise
    return True


def _end_of_whole_lines(file: IO[bytes]) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0
