"""A worker: one cell of a study, claimed, trained and told of. `python -m ebl.study.cell STORE KEY` does it too."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from ebl.atomic import is_full, write_atomically
from ebl.config import Config
from ebl.errors import InputError
from ebl.study.journal import now
from ebl.study.store import Store, open_store
from ebl.train import train

log = logging.getLogger("ebl")


def run_cell(store: Path, key: str) -> None:
    """Train a cell, or go on where it was; what came of it is in the store. A cell that is done, or that another process works
    on, is left alone. Raises only what the store could not be told, such as a full disk."""
    kept = open_store(store)
    with kept.claim(key) as mine:
        if not mine or kept.is_done(key):
            return
        attempt = 1 + kept.attempts(key)
        kept.tell("claimed", key, attempt=attempt)
        with _warnings_told(kept, key):
            try:
                train(_config(kept, key), kept.run_folder(key), resume=True)
                record = kept.finish(key)
            except Exception as error:
                if is_full(error):
                    raise
                kept.tell("failed", key, attempt=attempt, error=_line(error), retry=not isinstance(error, InputError))
                _keep_traceback(kept, key, attempt)
            else:
                errors = {name: (record.final or {}).get(name) for name in ("test_error", "train_error")}
                kept.tell("done", key, attempt=attempt, **errors, collapsed=record.collapsed, seconds=record.seconds)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m ebl.study.cell STORE KEY")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    store, key = Path(sys.argv[1]), sys.argv[2]
    try:
        run_cell(store, key)
        sys.exit(0 if open_store(store).is_done(key) else f"{key} is not done: see `ebl study show {store}`")
    except InputError as error:
        sys.exit(f"ebl: {error}")


def _config(store: Store, key: str) -> Config:
    """What the run was begun with, if it was; a run stays on its kind of device."""
    config = store.config(key)
    asked = store.cells().get(key, {}).get("config", {}).get("device", config.device)
    if config.device != asked:
        message = "it was begun on %s and goes on there; to train it anew on %s, remove %s"
        log.warning(message, config.device, asked, store.run_folder(key))
    return config


class _ToStore(logging.Handler):
    """A run's warnings, as events."""

    def __init__(self, store: Store, key: str):
        super().__init__(logging.WARNING)
        self.store, self.key = store, key

    def emit(self, record: logging.LogRecord) -> None:
        self.store.tell("warning", self.key, message=record.getMessage())


@contextlib.contextmanager
def _warnings_told(store: Store, key: str) -> Iterator[None]:
    handler = _ToStore(store, key)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _keep_traceback(store: Store, key: str, attempt: int) -> None:
    path = store.folder / "failures" / f"{key}.txt"
    before = path.read_bytes() if path.exists() else b""
    write_atomically(path, before + f"attempt {attempt}, {now()}\n{traceback.format_exc()}\n".encode())


def _line(error: Exception) -> str:
    """The error in a line."""
    text = str(error) if isinstance(error, InputError) else "".join(traceback.format_exception_only(error))
    return " ".join(text.split())[:500]


if __name__ == "__main__":
    main()
