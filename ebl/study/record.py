"""What a study knows of one run: enough for every table and picture, without opening its folder again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebl.atomic import read_json, read_lines
from ebl.errors import InputError

CURVES = ("train_error", "test_error", "train_top5_error", "test_top5_error", "free_iterations", "free_residual")
PROVENANCE = ("version", "commit", "hardware", "threads", "python", "torch", "engine", "processes")


@dataclass(frozen=True)
class Record:
    key: str  # of the config; the run folder's name
    config: dict[str, Any]  # as config.json has it
    status: str  # done, running, failed or waiting
    epoch: int = 0  # epochs finished
    final: dict[str, Any] | None = None  # the last epoch's line; None until done
    best: dict[str, Any] | None = None  # the line of the epoch with the lowest test (validation) error
    collapsed: bool = False
    seconds: float = 0.0  # wall-clock of the training, evaluation included
    error: str = ""  # of a failed run, or one that waits to be tried again: the last line of its traceback
    curves: dict[str, list[float]] = field(default_factory=dict)  # by epoch: CURVES and seconds
    provenance: dict[str, Any] = field(default_factory=dict)  # PROVENANCE
    label: str = ""  # the row of its study's table, where the rule does not say it (see `ebl.study.rows`)


def read_run(folder: Path) -> Record:
    """The record of a run folder that `ebl train` made, finished or not (`running` and `failed` are for the store to tell)."""
    config = read_json(folder / "config.json")
    if "rule" not in config:
        raise InputError(f"{folder} is not a run folder: its config.json has no rule")
    lines = read_lines(folder / "metrics.jsonl")
    times = read_lines(folder / "times.jsonl")
    curves = {name: [line[name] for line in lines] for name in CURVES if all(name in line for line in lines)}
    curves["seconds"] = [line["seconds"] for line in times if "training_seconds" in line]
    if not (folder / "result.json").exists():
        return Record(folder.name, config, "waiting", len(lines), curves=curves, seconds=sum(curves["seconds"]))
    result = read_json(folder / "result.json")
    return Record(
        folder.name,
        config,
        "done",
        len(lines),
        result["final"],
        result["best"],
        result["collapsed"],
        result["seconds"],
        curves=curves,
        provenance={name: result.get(name) for name in PROVENANCE},
    )
