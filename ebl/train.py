"""Training: a config in, a run folder out. A run can be killed at any moment and resumed to the bit.

A run folder holds config.json, data.json (what the data were), metrics.jsonl (one line an epoch, the same whenever and however
often the run was killed), times.jsonl (wall-clock), checkpoint.safetensors (the newest) and, at the end, result.json.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ebl.atomic import append_line, read_json, read_lines, write_atomically
from ebl.checkpoint import fill, load_checkpoint, save_checkpoint
from ebl.config import Config, build_network, differences, read_config, to_json
from ebl.data import Dataset, checked_split, load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data, keep_data
from ebl.data.own import is_own
from ebl.data.splits import held_out, seeded
from ebl.engine import make_stepper
from ebl.errors import InputError
from ebl.models.hopfield import Hopfield, per_layer
from ebl.pace import LOOK, Pace
from ebl.provenance import provenance
from ebl.relax import Schedule
from ebl.steps import means_of

try:
    import fcntl
except ImportError:  # Windows: runs are not locked there
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("ebl")

COLLAPSE_EPOCHS = 3
COLLAPSE_MARGIN = 0.01
SATURATED = 0.5  # a layer with more of its units at 1 is reported

Watcher = Callable[[dict[str, Any]], None]
"""Told of every step (epoch, step, steps, train_error, train_cost, free_residual) and, with `test_error`, of every epoch."""


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    checkpoint_seconds: float = 60.0,
    data_dir: str | Path | None = None,
) -> dict[str, Any]:
    """Train as the config says into the folder `out` and return what result.json holds.

    With `resume`, a run that was killed goes on from its last checkpoint, and one that is done returns its result. The result's
    seconds leave out what a kill lost."""
    out = Path(out)
    device = check_device(config.device)
    data = load(config.dataset, data_dir) if dataset is None else dataset
    for split in (data.train, data.test):
        checked_split(data.name, config.entry, split)
    run = _Run(config, data, device)
    with _claim(out, config, resume):
        keep_data(out, data)
        return _train(run, out, watch, checkpoint_seconds)


def _train(run: _Run, out: Path, watch: Watcher | None, checkpoint_seconds: float) -> dict[str, Any]:
    config, data, result = run.config, run.data, out / "result.json"
    if result.exists():
        done = read_json(result)
        if "final" not in done:
            raise InputError(f"{result} is damaged: remove it and go on with --resume")
        return done
    lines = run.restore(out)
    collapsed = _collapsed(lines, data)
    while run.epoch < config.epochs and not (collapsed and config.stop_on_collapse):
        run.lap()
        before = run.pace.iterations
        run.train_epoch(out, watch, checkpoint_seconds)
        run.look()
        trained = run.lap()
        line = run.finish_epoch()
        append_line(out / "metrics.jsonl", line)
        run.save(out)
        seconds = round(trained + run.lap(), 3)
        times = {"epoch": line["epoch"], "seconds": seconds, "training_seconds": trained, "finished": _now()}
        append_line(out / "times.jsonl", times)
        lines.append(line)
        if run.pace.iterations != before:
            change = (run.pace.iterations, before, line["epoch"], line["free_residual"], config.settle)
            log.info("free phases take %d iterations from now on, %d when epoch %d began (residual %.1e, wanted %.1e)", *change)
        collapsed = _warn(config, lines, data, collapsed)
        if watch is not None:
            watch({**line, "seconds": seconds})
    final = {
        "final": lines[-1],
        "best": min(lines, key=lambda line: line["val_error" if config.val else "test_error"]),
        "collapsed": collapsed,
        "seconds": round(sum(line["seconds"] for line in read_lines(out / "times.jsonl")), 1),
        "config": json.loads(to_json(config)),
        "engine": run.stepper.name,
        **provenance(run.net.biases[0].device),
    }
    write_atomically(result, (json.dumps(final, indent=2) + "\n").encode())
    return final


def load_run(folder: str | Path, device: str = "cpu") -> tuple[Config, Hopfield]:
    """The config and the network of a run, as its newest checkpoint has it."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no config.json; give the --out of an `ebl train`")
    config = read_config(folder / "config.json")
    if is_own(config.dataset):  # the network's shape and the normalisation come from these data
        check_data(folder, load(config.dataset))
    net = build_network(config).to(check_device(device))
    path = folder / "checkpoint.safetensors"
    fill(path, dict(net.state_dict()), load_checkpoint(path)[0])
    return config, net


def test_schedule(folder: str | Path, config: Config) -> Schedule:
    """How the run settled its test images after its newest epoch."""
    _, header = load_checkpoint(Path(folder) / "checkpoint.safetensors")
    most = config.free.iterations
    return replace(config.free, iterations=Pace(**header["pace"]).for_test(config.settle, most))


def check_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # kernels and graphs go to the current one
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device = {name!r} cannot be used here: use cpu, or cuda where a GPU is set up") from error
    return device


class _Run:
    """All that changes while a run goes on: parameters, momentum, carried state, position, sums."""

    def __init__(self, config: Config, data: Dataset, device: torch.device):
        self.config, self.data = config, data
        self.net = build_network(config).to(device)
        self.rates = per_layer("optimiser.rates", config.optimiser.rates, len(self.net.links))
        self.optimiser = torch.optim.SGD(
            [{"params": [w, b]} for w, b in zip(self.net.weights, self.net.biases, strict=True)],
            lr=0.0,
            momentum=config.optimiser.momentum,
            weight_decay=config.optimiser.weight_decay,
        )
        self.tests: dict[str, Batches] = {}
        train = data.train
        if config.val:
            train, val = held_out(train, config.val / len(train.labels), config.seed)
            self.tests["val"] = Batches(val.to(device), config.entry, config.test_batch_size)
        self.training = Batches(train.to(device), config.entry, config.batch_size, config.seed, config.augment)
        self.tests["test"] = Batches(data.test.to(device), config.entry, config.test_batch_size)
        self.epoch, self.step = 0, 0
        self.clock = time.perf_counter()
        self.stepper = make_stepper(config, self.net, self.optimiser)
        self.pace = Pace.starting(config.settle, config.free.iterations)

    def train_epoch(self, out: Path, watch: Watcher | None, checkpoint_seconds: float) -> None:
        saved = time.monotonic()
        for group, rate in zip(self.optimiser.param_groups, self.epoch_rates(), strict=True):
            group["lr"] = rate
        means = means_of(self.stepper.totals)
        for x, y in self.training.epoch(self.epoch, self.step):
            signs = seeded(self.config.seed, "signs", self.epoch, self.step)
            self.stepper.step(x, y, self.pace.iterations, signs)
            self.step += 1
            if (
                self.step % LOOK == 0 or self.step == 1 or self.stepper.totals.device.type == "cpu"
            ):  # reading a GPU's sums makes it wait
                means = self.look()
            if watch is not None:
                position = {"epoch": self.epoch + 1, "step": self.step, "steps": self.training.steps}
                shown = {"train_error": means["error"], "train_cost": means["cost"], "free_residual": means["residual"]}
                watch(position | shown)
            if time.monotonic() - saved > checkpoint_seconds and self.step < self.training.steps:
                self.look()  # a run that diverged must not spoil its checkpoint
                self.save(out)
                line = {"epoch": self.epoch + 1, "step": self.step, "seconds": self.lap()}
                append_line(out / "times.jsonl", line)
                saved = time.monotonic()

    def look(self) -> dict[str, float]:
        """Read the sums, stop a run that diverged, and let the number of iterations follow the residual."""
        totals = self.stepper.totals.tolist()
        means = means_of(self.stepper.totals)
        if not math.isfinite(means["cost"] + means["residual"]):
            raise self.diverged("cost", means["cost"])
        if self.config.settle is not None and self.step % LOOK == 0:
            self.pace.look(totals[0], totals[4], self.config.settle, self.config.free.iterations)
        return means

    def lap(self) -> float:
        """Seconds since the last call."""
        before, self.clock = self.clock, time.perf_counter()
        return round(self.clock - before, 3)

    def finish_epoch(self) -> dict[str, Any]:
        """Test, and move on to the next epoch; what the epoch's line says."""
        train = self.look()
        c = self.config
        schedule = replace(c.free, iterations=self.pace.for_test(c.settle, c.free.iterations))
        tests = {name: self.stepper.evaluate(batches, schedule) for name, batches in self.tests.items()}
        test = tests["test"]
        if not math.isfinite(test["cost"]):
            raise self.diverged("test cost", test["cost"])
        self.epoch, self.step = self.epoch + 1, 0
        self.stepper.totals.zero_()
        self.pace.new_epoch()
        return {
            "epoch": self.epoch,
            "train_error": train["error"],
            "train_top5_error": train["top5_error"],
            "train_cost": train["cost"],
            **{f"{name}_{key}": found[key] for name, found in tests.items() for key in ("error", "top5_error", "cost")},
            "free_residual": train["residual"],
            "free_iterations": train["iterations"],
            "test_residual": test["residual"],
            "saturation": test["saturation"],
            "rates": [group["lr"] for group in self.optimiser.param_groups],
        }

    def diverged(self, what: str, value: float) -> InputError:
        return InputError(
            f"{what} = {value} at epoch {self.epoch + 1}, step {self.step} of {self.training.steps}: training "
            "diverged; try smaller --optimiser.rates or --beta, or more --free.iterations"
        )

    def epoch_rates(self) -> list[float]:
        low = self.config.optimiser.rate_min
        fall = (1 + math.cos(math.pi * self.epoch / self.config.epochs)) / 2
        return [low + (rate - low) * fall for rate in self.rates]

    def save(self, out: Path) -> None:
        tensors = dict(self.net.state_dict())
        if self.config.optimiser.momentum:
            tensors |= {f"momentum.{n}": self.optimiser.state[p]["momentum_buffer"] for n, p in self.net.named_parameters()}
        tensors |= {f"carried.{k}": s for k, s in enumerate(self.stepper.carried or ())}
        header = {"epoch": self.epoch, "step": self.step, "totals": self.stepper.totals.tolist(), "pace": asdict(self.pace)}
        save_checkpoint(out / "checkpoint.safetensors", tensors, header)

    def is_past(self, line: dict[str, Any]) -> bool:
        """Whether a line tells of something before the position of this run; times are told within epochs too."""
        within = line.get("epoch") == self.epoch + 1 and line.get("step", self.step + 1) <= self.step
        return line.get("epoch", 0) <= self.epoch or within

    def restore(self, out: Path) -> list[dict[str, Any]]:
        """Go back to the newest checkpoint, if there is one; the metrics up to there."""
        path = out / "checkpoint.safetensors"
        if path.exists():
            tensors, header = load_checkpoint(path)
            named = dict(self.net.named_parameters()) if self.config.optimiser.momentum else {}
            buffers = {f"momentum.{n}": torch.zeros_like(p) for n, p in named.items()}
            fill(path, dict(self.net.state_dict()) | buffers, tensors)
            for name, p in named.items():
                self.optimiser.state[p]["momentum_buffer"] = buffers[f"momentum.{name}"]
            carried = [
                tensors[f"carried.{k}"].to(self.net.biases[0].device)
                for k in range(len(self.net.links))
                if f"carried.{k}" in tensors
            ]
            self.stepper.carried = tuple(carried) or None
            self.epoch, self.step = header["epoch"], header["step"]
            self.stepper.totals.copy_(torch.tensor(header["totals"], dtype=torch.float64))
            self.pace = Pace(**header["pace"])
        kept: list[dict[str, Any]] = []
        for name in ("times.jsonl", "metrics.jsonl"):
            found = read_lines(out / name)
            if not path.exists() and len(found) > 1 and name == "metrics.jsonl":
                raise InputError(f"{path} is gone, {out / name} is not: restore it, or train again in another folder")
            kept = [line for line in found if self.is_past(line)]
            if name == "metrics.jsonl" and [line.get("epoch") for line in kept] != list(range(1, self.epoch + 1)):
                raise InputError(
                    f"{out / name} has lost epochs before {self.epoch}: restore it, or train again in another folder"
                )
            write_atomically(out / name, "".join(json.dumps(line) + "\n" for line in kept).encode())
        return kept


@contextlib.contextmanager
def _claim(out: Path, config: Config, resume: bool) -> Iterator[None]:
    """Make the run folder, or take over one that holds the same run; nobody else may write there meanwhile."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    path = out / "config.json"
    if path.exists():
        changed = differences(read_config(path), config)
        if changed:
            raise InputError(f"{out} holds a run with another config ({'; '.join(changed)}): choose another --out")
        if not resume:
            raise InputError(f"{out} holds this run already: continue it with --resume, or choose another --out")
    elif out.exists() and any(not p.name.endswith(".part") for p in out.iterdir()):
        raise InputError(f"{out} holds other files and no config.json: choose another --out")
    else:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{out} cannot be made ({error.strerror}): choose another --out") from error
        write_atomically(path, to_json(config).encode())
    with path.open(encoding="utf-8") as held:
        if fcntl is not None:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{out} is in use by another process: wait for it, or choose another --out") from error
        yield


def _collapsed(lines: list[dict[str, Any]], data: Dataset) -> bool:
    """Errors no better than naming the most frequent class, in the last epochs on end."""
    train, test = (split.majority_error() - COLLAPSE_MARGIN for split in (data.train, data.test))
    last = lines[-COLLAPSE_EPOCHS:]
    return len(last) == COLLAPSE_EPOCHS and all(line["train_error"] >= train and line["test_error"] >= test for line in last)


def _warn(config: Config, lines: list[dict[str, Any]], data: Dataset, collapsed_before: bool) -> bool:
    """Say once that free phases do not settle, once that the network collapsed; whether it has."""
    unsettled = [line["free_residual"] > config.residual_warning for line in lines]
    if unsettled[-1] and not any(unsettled[:-1]):
        log.warning(
            "free phases do not settle: mean residual %.2g in epoch %d, above %.2g; use more --free.iterations (now %d) "
            "or --omega 1.5",
            *(lines[-1]["free_residual"], lines[-1]["epoch"], config.residual_warning, config.free.iterations),
        )
    saturated = [max(line["saturation"], default=0.0) > SATURATED for line in lines]
    if saturated[-1] and not any(saturated[:-1]):
        shares = lines[-1]["saturation"]
        log.warning(
            "layer %d saturates: %.0f %% of its units are at 1 in epoch %d; a collapse may follow; try smaller "
            "--optimiser.rates, --optimiser.weight-decay 3e-4, or a smaller --settle",
            *(shares.index(max(shares)) + 1, 100 * max(shares), lines[-1]["epoch"]),
        )
    collapsed = _collapsed(lines, data)
    if collapsed and not collapsed_before:
        log.warning(
            "collapse: test error %.2f %% for %d epochs, no better than naming one class; saturated share of each layer: %s; "
            "%s",
            100 * lines[-1]["test_error"],
            COLLAPSE_EPOCHS,
            " ".join(f"{share:.2f}" for share in lines[-1]["saturation"]),
            "the run ends (--stop-on-collapse)" if config.stop_on_collapse else "the run goes on (see --stop-on-collapse)",
        )
    return collapsed


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
