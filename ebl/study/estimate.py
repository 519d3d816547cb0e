"""How long the runs of a study will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import ceil
from statistics import mean
from typing import Any

import torch

from ebl.bench import matmul_ceiling, step_flops, step_seconds
from ebl.config import Config, build_network
from ebl.data import load
from ebl.data.own import is_own
from ebl.errors import InputError
from ebl.pace import Pace
from ebl.study.grid import Cell
from ebl.study.record import Record
from ebl.study.settings import flat, flat_config

SIZES = {  # images for training and testing
    "fashion-mini": (5_000, 1_000),
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "kmnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
}
SHAPE = (
    *("dataset", "batch_size", "device", "precision", "settle", "val", "model.kind", "model.hidden", "model.kernel_size"),
    *("model.padding", "model.pool", "pad", *(f"{p}.{n}" for p in ("free", "nudged") for n in ("iterations", "tolerance"))),
)
"""The settings that decide how long an epoch takes, beside the rule."""

BUDGET = 20e9  # operations of the step that is measured, about


def estimates(cells: Sequence[Cell], records: Sequence[Record]) -> tuple[dict[str, float], list[str]]:
    """Seconds each run still takes, one at a time, by key (where that can be said); and where they come from."""
    known = {record.key: record for record in records}
    seen = _seen(records)
    found: dict[str, float] = {}
    said: dict[str, None] = {}
    for cell in cells:
        record = known.get(cell.key)
        if record is not None and record.status == "done":
            continue
        left = cell.config.epochs - (record.epoch if record is not None else 0)
        shape = _shape(flat_config(cell.config))
        seconds: float | None
        measured = seen.get((cell.config.rule, shape)) or seen.get(("", shape))
        if measured:
            seconds, source = mean(measured), "seconds an epoch of runs of the same shape in the store"
        else:
            speed, source = _speed(cell.config.device, _plain(cells[0].config))
            seconds = _epoch_flops(_plain(cell.config)) / speed if speed else None
        said[source] = None
        if seconds is not None:
            found[cell.key] = left * seconds
    return found, list(said)


def _seen(records: Sequence[Record]) -> dict[tuple[str, str], list[float]]:
    """Seconds an epoch, by rule (also "", any) and shape."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.status == "done" and record.epoch:
            shape = _shape(flat(record.config))
            for rule in ("", record.config["rule"]):
                found.setdefault((rule, shape), []).append(record.seconds / record.epoch)
    return found


def _shape(settings: dict[str, Any]) -> str:
    return repr([list(v) if isinstance(v, tuple) else v for v in (settings.get(name) for name in SHAPE)])


def _plain(config: Config) -> Config:
    """One config for all that take the same time, or nearly."""
    return replace(config, rule="c-ep", beta=None, seed=0, epochs=1)


@cache
def _epoch_flops(config: Config) -> float:
    """Operations of an epoch and its test, as `ebl bench` counts them: those of a rule with two phases."""
    if is_own(config.dataset):
        data = load(config.dataset)
        images, tests = len(data.train.labels), len(data.test.labels)
    elif config.dataset in SIZES:
        images, tests = SIZES[config.dataset]
    else:
        raise InputError(
            f"dataset = {config.dataset!r}: its number of images is not known to ebl/study/estimate.py; add it there"
        )
    net = build_network(config)
    free = _free_iterations(config)
    steps = ceil(max(images - config.val, 1) / config.batch_size)
    return steps * step_flops(net, config.batch_size, free, config.nudged.iterations) + step_flops(net, tests, free, 0)


def _free_iterations(config: Config) -> int:
    return Pace.starting(config.settle, config.free.iterations).iterations


@cache
def _speed(device: str, config: Config) -> tuple[float, str]:
    """Operations a second, and how they were measured; 0 if they cannot be."""
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            return 0.0, "no estimate for cuda: there is no GPU here to measure, and no such run in the store"
        ceiling = matmul_ceiling(torch.device(device))
        return (
            ceiling,
            f"at least: operations at this GPU's 16-bit matmul speed, {ceiling / 1e12:.0f} TFLOP/s, which no run reaches",
        )
    short = replace(config, device="cpu", settle=None, free=replace(config.free, iterations=min(12, config.free.iterations)))
    short = replace(short, nudged=replace(config.nudged, iterations=min(8, config.nudged.iterations)))
    one = step_flops(build_network(short), 1, short.free.iterations, short.nudged.iterations)
    short = replace(short, batch_size=max(1, min(config.batch_size, int(BUDGET / one))))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds, _ = step_seconds(short, torch.device("cpu"), 1)
    finally:
        torch.set_num_threads(threads)
    speed = one * short.batch_size / seconds
    return speed, f"operations at {speed / 1e9:.0f} GFLOP/s, measured on a short step of {short.rule} on one thread"
