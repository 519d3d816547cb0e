"""Where dataset files are, and whether they are what they should be. A hash is checked once, remembered, and checked
again on request or when the file has changed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ebl.atomic import write_atomically
from ebl.data.formats import gunzip, read_idx
from ebl.data.sources import FORMS, File, Form
from ebl.errors import InputError

log = logging.getLogger("ebl")


def data_folder(chosen: str | Path | None = None) -> Path:
    """--data-dir, else EBL_DATA, else the user's cache folder."""
    if chosen is not None:
        return Path(chosen).expanduser()
    if os.environ.get("EBL_DATA"):
        return Path(os.environ["EBL_DATA"]).expanduser()
    return cache_folder() / "data"


def cache_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ebl"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "ebl"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ebl"


@dataclass(frozen=True)
class Found:
    """A dataset's files on the disk, each with a function that reads it."""

    form: Form
    paths: tuple[Path, ...]
    readers: dict[File, Callable[[], bytes]]

    def read(self, file: File) -> bytes:
        return self.readers[file]()

    @property
    def archive(self) -> File | None:
        """The archive that holds the files, if one does."""
        archive = self.form.archive
        return archive if archive is not None and self.paths[0].name == archive.name else None

    @property
    def has_hashes(self) -> bool:
        return self.archive is not None or all(file.md5 for file in self.form.train + self.form.test)


def find(name: str, root: Path) -> Found:
    """The first form of a dataset that is whole."""
    for found in _whole_forms(name, root):
        return found
    _, needs = _part(name, root)
    if needs:
        raise InputError(f"{name}: {', '.join(map(str, needs))} missing; fetch the rest with `ebl data fetch {name}`")
    raise InputError(f"{name}: no files in {root}; run `ebl data fetch {name}`, or {where_to_put(name, root)}")


def find_right(name: str, root: Path, again: bool = False) -> Found:
    """The first form of a dataset that is whole and right, known hashes first; a warning names what was passed over."""
    find(name, root)  # an error if none is whole
    wrong: list[InputError] = []
    for found in sorted(_whole_forms(name, root), key=lambda found: not found.has_hashes):
        try:
            check(name, found, again)
        except InputError as error:
            wrong.append(error)
            continue
        if wrong:
            log.warning("%s; until then %s is used", wrong[0], found.paths[0])
        return found
    raise wrong[0]


def is_here(name: str, root: Path) -> bool:
    try:
        find(name, root)
    except InputError:
        return False
    return True


def whereabouts(name: str, root: Path) -> str:
    """In a few words: in a folder, incomplete or not here."""
    if is_here(name, root):
        return f"in {root}"
    has, needs = (", ".join(path.name for path in paths) for paths in _part(name, root))
    return f"incomplete (has {has}, needs {needs})" if has else "not here"


def where_to_put(name: str, root: Path) -> str:
    form = FORMS[name][0]
    files = [form.archive] if form.archive is not None else [*form.train, *form.test]
    folder = root if form.archive is not None else root / form.folders[0]
    return f"put {', '.join(f.name for f in files)} into {folder}, or name another folder with --data-dir or EBL_DATA"


def check(name: str, found: Found, again: bool = False) -> list[str]:
    """Compare every file with its hash; what was checked, a line each. An error names the first that differs."""
    said, unsure = [], []
    members = found.form.train + found.form.test
    if found.archive is not None:
        path = found.paths[0]
        if _remembered(path, name) and not again:
            return [f"{path}: checked before"]
        if _md5(path) == found.archive.md5:
            said.append(f"{path}: as distributed")
        else:  # packed anew: its files decide
            for file in members:
                if file.md5 is None or hashlib.md5(found.read(file)).hexdigest() != file.md5:
                    raise InputError(f"{path}: {file.name} inside is not {name}'s (its MD5 differs); fetch it again")
            said.append(f"{path}: packed anew, its content as distributed")
        _remember(path, name)
        return said
    for file, path in zip(members, found.paths, strict=True):
        if _remembered(path, f"{name}/{file.name}") and not again:
            said.append(f"{path}: checked before")
            continue
        digest = _md5(path)
        raw = gunzip(path.read_bytes(), str(path)) if digest != file.md5 else b""
        if digest == file.md5:
            said.append(f"{path}: as distributed")
        elif file.content is not None and hashlib.md5(raw).hexdigest() == file.content:
            said.append(f"{path}: content as distributed")
        elif file.md5 is None:
            said.append(f"{path}: no hash is known for this form; its structure is checked when it is read")
        elif _has_structure(file, raw, path):
            said.append(f"{path}: of the right structure; no hash of its content is known")
            unsure.append(path.name)
        else:
            raise InputError(
                f"{path} is not {name}'s file (MD5 {digest}, expected {file.md5}): remove it and run `ebl data fetch {name}`"
            )
        _remember(path, f"{name}/{file.name}")
    if unsure:
        log.warning("%s: no hash of their content is known, only the structure was checked: %s", name, ", ".join(unsure))
    return said


def _has_structure(file: File, raw: bytes, path: Path) -> bool:
    """Whether an idx file has the right shape, labels 0 to 9 equally often, and not the content of another set."""
    known = {f.content for forms in FORMS.values() for form in forms for f in form.train + form.test}
    if file.shape is None or hashlib.md5(raw).hexdigest() in known:
        return False
    x = read_idx(raw, str(path))
    return x.shape == file.shape and (x.ndim > 1 or bool((10 * np.bincount(x, minlength=10) == len(x)).all()))


def _whole_forms(name: str, root: Path) -> Iterator[Found]:
    """Each form of a dataset that is whole, as loose files or as an archive; torchvision's layouts included."""
    for form in FORMS[name]:
        files = form.train + form.test
        for folder in _folders(form, root, name):
            whole = [path for path in (_either(folder, file) for file in files) if path is not None]
            if len(whole) == len(files):
                yield Found(form, tuple(whole), dict(zip(files, (path.read_bytes for path in whole), strict=True)))
        for folder in (root, root / name):
            if form.archive is not None and (folder / form.archive.name).is_file():
                yield _open_archive(form, folder / form.archive.name)


def _folders(form: Form, root: Path, name: str) -> list[Path]:
    """Where loose files may be. A bare root only where every file's content has a known hash: names alone tell no set."""
    known = all(file.content or not file.name.endswith(".gz") for file in form.train + form.test)
    return [*(root / folder for folder in form.folders), root / name, *([root] if known else [])]


def _part(name: str, root: Path) -> tuple[list[Path], list[Path]]:
    """The files that are here and those that are missing, in the folder that lacks least; two empty lists if none is here."""
    parts = []
    for form in FORMS[name]:
        for folder in _folders(form, root, name):
            paths = [(folder / file.name, _either(folder, file)) for file in form.train + form.test]
            has = [path for _, path in paths if path is not None]
            if has:
                parts.append((has, [path for path, found in paths if found is None]))
    return min(parts, key=lambda part: len(part[1]), default=([], []))


def _either(folder: Path, file: File) -> Path | None:
    """The file as distributed, or unpacked beside."""
    for candidate in (folder / file.name, folder / file.name.removesuffix(".gz")):
        if candidate.is_file():
            return candidate
    return None


def _open_archive(form: Form, path: Path) -> Found:
    @cache
    def contents() -> dict[str, bytes]:
        wanted, found = {f"{form.inside}/{file.name}" for file in form.train + form.test}, {}
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.name in wanted else None
                    if stream is not None:
                        found[member.name] = stream.read()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise InputError(f"{path} is damaged or cut short ({error}): fetch it again") from error
        absent = sorted(wanted - set(found))
        if absent:
            raise InputError(f"{path} has no {absent[0]}: fetch it again")
        return found

    def reader(file: File) -> Callable[[], bytes]:
        return lambda: contents()[f"{form.inside}/{file.name}"]

    return Found(form, (path,), {file: reader(file) for file in form.train + form.test})


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _memory() -> Path:
    return cache_folder() / "checked.json"


def _load_memory() -> dict[str, list[int | str]]:
    try:
        found = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _stamp(path: Path, meaning: str) -> list[int | str]:
    """Changes with the file, and with what it was checked to be."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, meaning]


def _remembered(path: Path, meaning: str) -> bool:
    return _load_memory().get(str(path.resolve())) == _stamp(path, meaning)


def _remember(path: Path, meaning: str) -> None:
    memory = _load_memory() | {str(path.resolve()): _stamp(path, meaning)}
    try:
        _memory().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(_memory(), (json.dumps(memory, indent=1) + "\n").encode())
    except (OSError, InputError) as error:
        log.info("the check of %s could not be remembered (%s)", path, error)
