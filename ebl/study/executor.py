"""Where the cells of a study are worked on: each executor is a file with a class like this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Ended:
    """A worker that stopped. Whether its cell is done or failed is for the store to tell."""

    key: str
    error: str = ""  # why the worker was lost, in a line, where it did not end by itself


class Executor(Protocol):
    """Starts workers, each `ebl.study.cell.run_cell(store, key)` in a process of its own, and tells when they stop."""

    slots: int | None  # how many workers at a time; None: take all, something else queues them

    def adopt(self, store: Path, keys: Sequence[str]) -> list[str]: ...  # cells whose workers outlived an earlier command

    def start(self, store: Path, keys: Sequence[str]) -> None: ...

    def ended(self) -> list[Ended]: ...  # since the last call; returns at once

    def stop(self) -> None: ...  # end all workers now; their cells can be resumed
