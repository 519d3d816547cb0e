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
from torch import Tensor

from ebl.atomic import append_line, read_json, read_lines, write_atomically
from ebl.checkpoint import fill, image_layout, load_checkpoint, save_checkpoint
from ebl.config import Config, build_network, check_new, differences, read_config, to_json
from ebl.data import Dataset, Split, checked_split, load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data, fingerprint, keep_data
from ebl.data.own import MissingError, is_own
from ebl.data.splits import held_out, seeded
from ebl.engine import make_stepper
from ebl.errors import InputError
from ebl.models.hopfield import Hopfield, per_layer
from ebl.pace import LOOK, Pace
from ebl.parallel import ALONE, Part, Ranks
from ebl.provenance import provenance
from ebl.relax import Schedule
from ebl.steps import means_of
from ebl.types import State

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
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Train as the config says into the folder `out` and return what result.json holds.

    With `resume`, a run that was killed goes on from its last checkpoint, and one that is done returns its result. The result's
    seconds leave out what a kill lost. Several processes (see `ebl.parallel.join`) call this alike, each with its own `ranks`:
    they have a part of each batch, and the first one alone writes, and tells `watch`."""
    out = Path(out)
    if not (out / "config.json").exists():
        check_new(config)
    device = check_device(ranks.device(config.device))
    data = load(config.dataset, data_dir) if dataset is None else dataset
    for split in (data.train, data.test):
        checked_split(data.name, config.entry, split)
    run = _Run(config, data, device, ranks)
    _check_alike(ranks, config, data)  # and wait for all of them, before anything is written
    with _claim(out, config, resume) if ranks.first else contextlib.nullcontext():
        if ranks.first:
            keep_data(out, data)
        return _train(run, out, watch if ranks.first else None, checkpoint_seconds)


def _train(run: _Run, out: Path, watch: Watcher | None, checkpoint_seconds: float) -> dict[str, Any]:
    config, data, ranks = run.config, run.data, run.ranks
    done = ranks.share(_result(out) if ranks.first else None)
    if done is not None:
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
        if ranks.first:
            append_line(out / "metrics.jsonl", line)
        run.save(out)
        seconds = round(trained + run.lap(), 3)
        if ranks.first:
            times = {"epoch": line["epoch"], "seconds": seconds, "training_seconds": trained, "finished": _now()}
            append_line(out / "times.jsonl", times)
        lines.append(line)
        if run.pace.iterations != before:
            change = (run.pace.iterations, before, line["epoch"], line["free_residual"], config.settle)
            log.info("free phases take %d iterations from now on, %d when epoch %d began (residual %.1e, wanted %.1e)", *change)
        collapsed = _warn(config, lines, data, collapsed)
        if watch is not None:
            told = [each["seconds"] for each in read_lines(out / "times.jsonl") if each["epoch"] == line["epoch"]]
            watch({**line, "seconds": sum(told)})
    return ranks.share(_finish(run, out, lines, collapsed) if ranks.first else None)


def _check_alike(ranks: Ranks, config: Config, data: Dataset) -> None:
    """All ranks are here, and train the same on the same."""
    if ranks.alone:
        return
    mine = [to_json(config), fingerprint(data)]
    if not ranks.all(mine == ranks.share(mine)):
        raise InputError(
            f"the {ranks.size} processes have other settings or other images of {config.dataset}: give all of them the same"
        )


def _result(out: Path) -> dict[str, Any] | None:
    """Of a run that is done."""
    path = out / "result.json"
    if not path.exists():
        return None
    done = read_json(path)
    if "final" not in done:
        raise InputError(f"{path} is damaged: remove it and go on with --resume")
    return done


def _finish(run: _Run, out: Path, lines: list[dict[str, Any]], collapsed: bool) -> dict[str, Any]:
    result = {
        "final": lines[-1],
        "best": min(lines, key=lambda line: line["val_error" if run.config.val else "test_error"]),
        "collapsed": collapsed,
        "seconds": round(sum(line["seconds"] for line in read_lines(out / "times.jsonl")), 1),
        "config": json.loads(to_json(run.config)),
        "engine": run.stepper.name,
        **provenance(run.net.biases[0].device, run.ranks.size),
    }
    write_atomically(out / "result.json", (json.dumps(result, indent=2) + "\n").encode())
    return result


def load_run(folder: str | Path, device: str = "cpu", dataset: str | None = None) -> tuple[Config, Hopfield]:
    """The config and the network of a run, as its newest checkpoint has it. `dataset`: where data of your own are now."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no config.json; give the --out of an `ebl train`")
    if dataset is not None and not (is_own(dataset) and (folder / "data.json").exists()):
        raise InputError(f"--dataset {dataset}: it is for data of your own, a file or a folder, of a run that has a data.json")
    try:
        config = read_config(folder / "config.json", dataset)
    except MissingError as error:
        raise InputError(f"{error}; those of {folder} may have moved: --dataset names them") from error
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

    def __init__(self, config: Config, data: Dataset, device: torch.device, ranks: Ranks = ALONE):
        self.config, self.data, self.ranks = config, data, ranks
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
            have, kinds = len(train.labels), len(train.labels.unique())
            if config.val > have - kinds:
                least = f"of {have} training images each of {kinds} classes keeps one"
                raise InputError(f"val = {config.val}: {least}; use at most {have - kinds}")
            train, val = held_out(train, config.val / have, config.seed)
            self.tests["val"] = self.batches(val, config.test_batch_size)
        self.training = self.batches(train, config.batch_size, seed=config.seed, augment=config.augment)
        self.tests["test"] = self.batches(data.test, config.test_batch_size)
        if config.batch_size > len(train.labels) and ranks.first:
            have = len(train.labels)
            log.warning("batch_size = %d: there are %d training images, so each epoch is one step", config.batch_size, have)
        if ranks.size > min(config.batch_size, len(train.labels)):
            what = f"batch_size = {config.batch_size}" if config.batch_size < ranks.size else f"{len(train.labels)} images"
            raise InputError(f"{what} for {ranks.size} processes: each needs an example; start fewer processes")
        self.epoch, self.step = 0, 0
        self.part: Part | None = None  # of the batch whose state is carried over
        self.threads = torch.get_num_threads()
        self.clock = time.perf_counter()
        self.stepper = make_stepper(config, self.net, self.optimiser, ranks)
        self.pace = Pace.starting(config.settle, config.free.iterations)

    def batches(self, split: Split, batch_size: int, **options: Any) -> Batches:
        device = self.net.biases[0].device
        rank, size = self.ranks.rank, self.ranks.size
        return Batches(split.to(device), self.config.entry, batch_size, rank=rank, num_ranks=size, **options)

    def train_epoch(self, out: Path, watch: Watcher | None, checkpoint_seconds: float) -> None:
        saved = time.monotonic()
        for group, rate in zip(self.optimiser.param_groups, self.epoch_rates(), strict=True):
            group["lr"] = rate
        means = means_of(self.stepper.totals)
        for x, y in self.training.epoch(self.epoch, self.step):
            self.train_step(x, y)
            looks = self.step % LOOK == 0 or self.step == 1 or self.stepper.totals.device.type == "cpu"
            if looks:  # reading a GPU's sums makes it wait
                means = self.look()
            if watch is not None:
                position = {"epoch": self.epoch + 1, "step": self.step, "steps": self.training.steps}
                shown = {"train_error": means["error"], "train_cost": means["cost"], "free_residual": means["residual"]}
                watch(position | shown)
            asks = (looks or self.ranks.alone) and self.step < self.training.steps
            if asks and not self.ranks.all(time.monotonic() - saved <= checkpoint_seconds):  # one clock is enough
                self.look()  # a run that diverged must not spoil its checkpoint
                self.save(out)
                if self.ranks.first:
                    line = {"epoch": self.epoch + 1, "step": self.step, "seconds": self.lap()}
                    append_line(out / "times.jsonl", line)
                saved = time.monotonic()

    def train_step(self, x: Tensor, y: Tensor) -> None:
        """A step on this rank's part of the next batch."""
        part = self.training.part(self.step)
        if self.part is not None and self.part.whole != part.whole:  # as the paper's simulations: all start at zero again
            self.stepper.carried = None
        signs = part.generator(seeded(self.config.seed, "signs", self.epoch, self.step))
        with self.ranks.together():
            self.stepper.step(x, y, self.pace.iterations, signs, part)
        self.part = part
        self.step += 1

    def look(self) -> dict[str, float]:
        """Read the sums, stop a run that diverged, and let the number of iterations follow the residual."""
        sums = self.ranks.total(self.stepper.totals)
        totals, means = sums.tolist(), means_of(sums)
        if not math.isfinite(means["cost"] + means["residual"]):
            raise self.diverged("cost", means["cost"])
        if self.config.settle is not None and self.step % min(LOOK, self.training.steps) == 0:
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
        with self.ranks.together():
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
        if self.stepper.carried is not None and self.part is not None:
            whole = [self.ranks.gather(s, self.part) for s in self.stepper.carried]
            tensors |= dict(zip(self.carried_names(), whole, strict=True))
        totals = self.ranks.total(self.stepper.totals).tolist()
        header = {"epoch": self.epoch, "step": self.step, "totals": totals, "pace": asdict(self.pace)}
        header["threads"] = self.threads
        if self.ranks.first:
            save_checkpoint(out / "checkpoint.safetensors", tensors, header)

    def is_past(self, line: dict[str, Any]) -> bool:
        """Whether a line tells of something before the position of this run; times are told within epochs too."""
        within = line.get("epoch") == self.epoch + 1 and line.get("step", self.step + 1) <= self.step
        return line.get("epoch", 0) <= self.epoch or within

    def restore(self, out: Path) -> list[dict[str, Any]]:
        """Go back to the newest checkpoint, if there is one; the metrics up to there."""
        path = out / "checkpoint.safetensors"
        tensors, header = load_checkpoint(path) if self.ranks.first and path.exists() else (dict(self.net.state_dict()), {})
        tensors, header = self.ranks.share_tensors(tensors), self.ranks.share(header)
        fill(path, dict(self.net.state_dict()), tensors)  # ranks start alike, on whatever machines
        if header:
            self.go_to(path, tensors, header)
        else:
            self.stepper.carried = None  # and what the stepper keeps of the parameters is theirs
        return self.ranks.share(self.lines_so_far(out) if self.ranks.first else None)

    def go_to(self, path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take over what a checkpoint holds beside the parameters."""
        named = dict(self.net.named_parameters()) if self.config.optimiser.momentum else {}
        buffers = {f"momentum.{n}": torch.zeros_like(p) for n, p in named.items()}
        fill(path, buffers, tensors)
        for name, p in named.items():
            self.optimiser.state[p]["momentum_buffer"] = buffers[f"momentum.{name}"]
        self.stepper.carried = self.my_part([tensors[name] for name in self.carried_names() if name in tensors])
        self.epoch, self.step = header["epoch"], header["step"]
        if self.ranks.first:  # the sums of all ranks together count
            self.stepper.totals.copy_(torch.tensor(header["totals"], dtype=torch.float64))
        self.pace = Pace(**header["pace"])
        if self.ranks.first and self.epoch < self.config.epochs:
            log.info("goes on after epoch %d, step %d of %d", self.epoch, self.step, self.training.steps)
            before = header.get("threads")
            if before not in (None, self.threads) and self.net.biases[0].device.type == "cpu":
                log.info("on %s instead of %s threads: its last bits will be others", self.threads, before)

    def carried_names(self) -> list[str]:
        return [f"carried.{k}" for k in range(len(self.net.links))]

    def my_part(self, carried: list[Tensor]) -> State | None:
        """This rank's part of a whole batch's state."""
        if not carried:
            return None
        self.part = self.ranks.part(len(carried[0]))
        if not self.ranks.alone:
            carried = [image_layout(s[self.part.rows]) for s in carried]
        return tuple(s.to(self.net.biases[0].device) for s in carried)

    def lines_so_far(self, out: Path) -> list[dict[str, Any]]:
        """The metrics up to the position of this run; what the files tell of later is dropped."""
        kept: list[dict[str, Any]] = []
        gone = out / "checkpoint.safetensors"
        for name in ("times.jsonl", "metrics.jsonl"):
            found = read_lines(out / name)
            if not gone.exists() and len(found) > 1 and name == "metrics.jsonl":
                raise InputError(f"{gone} is gone, {out / name} is not: restore it, or train again in another folder")
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
    unsettled = [line["free_residual"] > _unsettled_above(config, line) for line in lines]
    if unsettled[-1] and not any(unsettled[:-1]):
        log.warning(
            "free phases do not settle: mean residual %.2g in epoch %d, above %.2g; use more --free.iterations (now %d)%s",
            *(lines[-1]["free_residual"], lines[-1]["epoch"], _unsettled_above(config, lines[-1]), config.free.iterations),
            " or --omega 1.5" if config.free.omega == 1 else "",
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


def _unsettled_above(config: Config, line: dict[str, Any]) -> float:
    """The mean residual above which an epoch's free phases did not settle: the wanted one where they took all they may."""
    if config.settle is None or line["free_iterations"] < config.free.iterations:
        return config.residual_warning
    return min(config.residual_warning, config.settle)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
