"""Downloads: official address first, then the mirror; hash checked; a broken download goes on where it stopped."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebl.data.files import find_right, where_to_put
from ebl.data.sources import FORMS
from ebl.errors import InputError

Progress = Callable[[str, int, int | None], None]
"""Told of a file's name, the bytes that are there, and how many there will be (None: not known)."""

TIMEOUT = 30.0


def fetch(name: str, root: Path, progress: Progress | None = None) -> list[Path]:
    """Bring a dataset's files into `root`, as torchvision lays them out; what is there and right is kept."""
    try:
        import pooch
    except ImportError as error:
        raise InputError('fetching needs the pooch package: pip install "ebl[data]"') from error
    pooch.utils.get_logger().setLevel("ERROR")
    try:
        return list(find_right(name, root, again=True).paths)
    except InputError:
        pass  # not here, or not right: fetched below
    form = FORMS[name][0]
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{root} cannot be made ({error.strerror}): choose another --data-dir") from error
    files = [form.archive] if form.archive is not None else [*form.train, *form.test]
    folder = root if form.archive is not None else root / form.folders[0]
    paths = []
    for file in files:
        path, failures = folder / file.name, []
        if not (path.exists() and hashlib.md5(path.read_bytes()).hexdigest() == file.md5):
            for base in form.urls:
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    resume = _Resuming(folder / f".{file.name}.part", file.name, progress)
                    pooch.retrieve(base + file.name, f"md5:{file.md5}", file.name, folder, downloader=resume)
                    break
                except (OSError, http.client.HTTPException, ValueError) as error:  # no network, no server, wrong hash
                    failures.append(f"{base}: {_brief(error)}")
            else:
                raise InputError(f"{file.name} could not be fetched ({'; '.join(failures)}): {where_to_put(name, root)}")
        paths.append(path)
    find_right(name, root)
    return paths


class _Resuming:
    """A downloader for pooch that keeps what came in `part` and asks only for the rest."""

    def __init__(self, part: Path, name: str, progress: Progress | None):
        self.part, self.name, self.progress = part, name, progress

    def __call__(self, url: str, output_file: str, _: Any) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            response = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != 416:  # nothing is left to send: all of it is here
                raise
        else:
            with response, self.part.open("ab" if response.status == 206 else "wb") as file:
                have = have if response.status == 206 else 0
                length = response.headers.get("Content-Length")
                total = have + int(length) if length else None
                while chunk := response.read(1 << 18):
                    file.write(chunk)
                    have += len(chunk)
                    if self.progress is not None:
                        self.progress(self.name, have, total)
                if total is not None and have < total:
                    raise OSError(f"the connection broke after {have} of {total} bytes")
        shutil.move(self.part, output_file)


def _brief(error: Exception) -> str:
    return str(getattr(error, "reason", error)).splitlines()[0][:120]
