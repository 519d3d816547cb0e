"""The command line: ebl train | evaluate | presets | data | demo | bench | precision."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ebl.config import Config
from ebl.data import SPECS, load
from ebl.data.batches import Batches
from ebl.data.files import check, data_folder, find, whereabouts
from ebl.data.fingerprint import check_data
from ebl.data.own import describe, is_own
from ebl.data.sources import FORMS
from ebl.engine import evaluate_as
from ebl.errors import InputError, choose
from ebl.presets import PRESETS, preset
from ebl.relax import Schedule
from ebl.rules import RULES
from ebl.train import Watcher, check_device, load_run, test_schedule, train
from ebl.version import __version__

T = TypeVar("T")

console, errors = Console(), Console(stderr=True)


@dataclass(frozen=True)
class TrainArguments:
    """Train a network into a run folder."""

    preset: str = "quick"
    """Settings to start from (see `ebl presets`); every other flag overrides them."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)
    omega: str | None = None
    """Over-relaxation of both phases: a number in (0, 2), or chebyshev:0.95."""
    out: Path | None = None
    """The run folder; runs/DATASET-RULE-SEED unless given."""
    resume: bool = False
    """Continue a run that was killed; the numbers are those of an undisturbed one."""
    tensorboard: bool = False
    """Write TensorBoard logs into the run folder too (pip install "ebl[tensorboard]")."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    checkpoint_seconds: float = 60.0
    """How often to save within an epoch; each epoch's end is always saved."""


@dataclass(frozen=True)
class EvaluateArguments:
    """Test a trained network."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    iterations: int | None = None
    """Iterations of the relaxation, if not those of the run's own tests."""
    omega: str | None = None
    """Over-relaxation, if not the config's."""
    device: str = "cpu"
    """cpu or cuda"""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets and their main settings."""


@dataclass(frozen=True)
class DataArguments:
    """Datasets: list what there is, fetch one, or check the hashes of one (or all that are here) again."""

    action: tyro.conf.Positional[str]
    """list, fetch or check"""
    name: tyro.conf.Positional[str | None] = None
    """The dataset."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""


@dataclass(frozen=True)
class DemoArguments:
    """Train all nine rules on the embedded data and compare them: a table, two pictures. Killed, it goes on where it was."""

    out: Path = Path("runs/demo")
    """Where runs and pictures go."""
    epochs: int = 3
    """Epochs of each rule."""
    processes: int = 2
    """Rules trained at a time, with one thread each."""


@dataclass(frozen=True)
class BenchArguments:
    """Measure this machine: matmul ceiling, the presets' training steps, and the naive definition beside them."""

    device: str | None = None
    """cpu or cuda; cuda unless given, where there is a GPU."""
    repeats: int = 10
    """Steps to take the median of."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class PrecisionArguments:
    """Show how exact each precision's gradients are on a trained network: against float64, from one settled state."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    images: int = 128
    """Training images to take the gradient of."""
    device: str | None = None
    """cpu or cuda; cuda unless given, where there is a GPU."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    json: bool = False
    """Print JSON."""


COMMANDS = {
    "train": TrainArguments,
    "evaluate": EvaluateArguments,
    "presets": PresetsArguments,
    "data": DataArguments,
    "demo": DemoArguments,
    "bench": BenchArguments,
    "precision": PrecisionArguments,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command. Bad input: one line on stderr, exit code 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    commands: dict[str, Callable[[list[str]], None]] = {
        "train": train_command,
        "evaluate": evaluate_command,
        "presets": presets_command,
        "data": data_command,
        "demo": demo_command,
        "bench": bench_command,
        "precision": precision_command,
    }
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=errors, show_path=False, show_time=False)]
    )
    logging.getLogger("ebl").setLevel(logging.INFO)
    try:
        if not argv or argv[0] in ("-h", "--help"):
            print("usage: ebl COMMAND [--help]\n")
            for name, kind in COMMANDS.items():
                print(f"  {name:9s} {(kind.__doc__ or '').splitlines()[0]}")
        elif argv[0] == "--version":
            print(__version__)
        else:
            commands[choose("command", argv[0], commands)](argv[1:])
    except InputError as error:
        print(f"ebl: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"ebl: {where}{error.strerror or error}; check that it exists and may be read and written", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        again = "the same command with --resume goes on" if argv[0] == "train" else "the same command goes on"
        print(f"ebl: interrupted; {again} where it was", file=sys.stderr)
        sys.exit(130)


def train_command(argv: list[str]) -> None:
    base = preset(_typed(argv, "--preset") or "quick")
    rule = _typed(argv, "--rule") or base.rule
    if _typed(argv, "--beta") is None and not _takes(rule, base.beta):
        base = replace(base, beta=None)  # the preset's beta is for EP and CpL
    args = _parse(TrainArguments, "ebl train", argv, TrainArguments(config=base))
    config = args.config
    if args.omega is not None:
        omega = _omega(args.omega)
        if _typed(argv, "--free.omega") is None:
            config = replace(config, free=replace(config.free, omega=omega))
        if _typed(argv, "--nudged.omega") is None:
            config = replace(config, nudged=replace(config.nudged, omega=omega))
    name = Path(config.dataset).stem if is_own(config.dataset) else config.dataset
    out = args.out or Path("runs") / f"{name}-{config.rule}-{config.seed}"
    if is_own(config.dataset):
        console.print(f"{config.dataset}: {describe(load(config.dataset))}", highlight=False, soft_wrap=True)
    with _Shown(config) as shown:
        watchers: list[Watcher] = [shown]
        if args.tensorboard:
            watchers.append(_tensorboard(out))

        def watch(event: dict[str, Any]) -> None:
            for watcher in watchers:
                watcher(event)

        result = train(
            config,
            out,
            resume=args.resume,
            watch=watch,
            checkpoint_seconds=args.checkpoint_seconds,
            data_dir=args.data_dir,
        )
    final, best = result["final"], result["best"]
    console.print(
        f"{config.rule} on {config.dataset}: test error {100 * final['test_error']:.2f} %, train error "
        f"{100 * final['train_error']:.2f} % after epoch {final['epoch']} (best test error {100 * best['test_error']:.2f} % in "
        f"epoch {best['epoch']}), {result['seconds']:.0f} s; {out}/result.json",
        highlight=False,
        soft_wrap=True,
    )


def evaluate_command(argv: list[str]) -> None:
    args = _parse(EvaluateArguments, "ebl evaluate", argv)
    config, net = load_run(args.run, args.device)
    schedule = test_schedule(args.run, config)
    if args.iterations is not None:
        schedule = replace(schedule, iterations=args.iterations)
    if args.omega is not None:
        schedule = replace(schedule, omega=_omega(args.omega))
    data = load(config.dataset, args.data_dir)
    check_data(args.run, data)
    batches = Batches(data.test.to(args.device), config.entry, config.test_batch_size)
    found = evaluate_as(config.precision, net, batches, schedule)
    if args.json:
        print(json.dumps({"run": str(args.run), "dataset": config.dataset, "split": "test", **found}))
        return
    table = Table("test set of", "error %", "top-5 error %", "cost", "residual", "iterations")
    numbers = (100 * found["error"], 100 * found["top5_error"], found["cost"])
    table.add_row(config.dataset, *(f"{v:.4g}" for v in numbers), f"{found['residual']:.1e}", f"{found['iterations']:.4g}")
    console.print(table)


def presets_command(argv: list[str]) -> None:
    _parse(PresetsArguments, "ebl presets", argv)
    table = Table("preset", "dataset", "beta", "T", "K", "gains", "rates", "decay", "epochs", box=SIMPLE_HEAD)
    for name, (_, c) in PRESETS.items():
        row = (c.free.iterations, c.nudged.iterations, _few(c.model.gains), _few(c.optimiser.rates), c.optimiser.weight_decay)
        table.add_row(name, c.dataset, str(c.beta or "rule's"), *map(str, row), str(c.epochs))
    wide = console if console.is_terminal else Console(width=130)
    wide.print(table)
    for name, (what, _) in PRESETS.items():
        wide.print(f"{name:18s} {what}", highlight=False)


def data_command(argv: list[str]) -> None:
    args = _parse(DataArguments, "ebl data", argv)
    root = data_folder(args.data_dir)
    action = choose("action", args.action, ("list", "fetch", "check"))
    if args.name is not None:
        choose("dataset", args.name, SPECS)
    if action == "fetch":
        if args.name is None:
            raise InputError(f"ebl data fetch needs a dataset: one of {', '.join(FORMS)}")
        if args.name in FORMS:
            fetch_shown(args.name, root)
            return
        console.print(f"{args.name} comes with the package", highlight=False)
        return
    if action == "check":
        _check_data([args.name] if args.name else list(SPECS), root)
        return
    table = Table("dataset", "images", "classes", "files", box=SIMPLE_HEAD)
    for name, entry in SPECS.items():
        where = whereabouts(name, root) if name in FORMS else "in the package"
        table.add_row(name, f"{entry.channels}×{entry.size[0]}×{entry.size[1]}", str(entry.num_classes), where)
    console.print(table)


def _check_data(names: list[str], root: Path) -> None:
    """Check each set's hashes again, say what was found, and fail at the end if any was wrong."""
    wrong = []
    for name in names:
        try:
            if name in FORMS:
                lines = check(name, find(name, root), again=True)
            else:
                load(name)
                lines = [f"{name}: in the package, as it should be"]
        except InputError as error:
            lines = [str(error)]
            if len(names) == 1 or "no files in" not in lines[0]:
                wrong.append(name)
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if wrong:
        raise InputError(f"wrong or missing: {', '.join(wrong)}; fetch what is damaged again with `ebl data fetch NAME`")


def fetch_shown(name: str, root: Path) -> None:
    from ebl.data.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        paths = fetch(name, root, progress)
    console.print(f"{name}: {', '.join(map(str, paths))}", highlight=False, soft_wrap=True)


def demo_command(argv: list[str]) -> None:
    from ebl.demo import demo

    args = _parse(DemoArguments, "ebl demo", argv)
    demo(args.out, args.epochs, args.processes, console)


def bench_command(argv: list[str]) -> None:
    from ebl.bench import bench

    args = _parse(BenchArguments, "ebl bench", argv)
    if args.repeats < 1:
        raise InputError(f"--repeats {args.repeats}: use at least 1")
    found = bench(_device(args.device), args.repeats)
    if args.json:
        print(json.dumps(found))
        return
    title = f"{found['hardware']}: matmul ceiling {found['ceiling_tflops_per_second']:.3g} TFLOP/s"
    table = Table(
        "preset", "path", "batch", "T", "K", "ms a step", "TFLOP/s", "of ceiling", "naive ms", "ratio", box=SIMPLE_HEAD
    )
    for row in found["steps"]:
        counts = (row["batch"], row["free_iterations"], row["nudged_iterations"])
        speed = (f"{row['milliseconds']:.4g}", f"{row['tflops_per_second']:.3g}", f"{100 * row['share_of_ceiling']:.0f} %")
        beside = (f"{row['naive_milliseconds']:.4g}", f"{row['ratio']:.1f}")
        table.add_row(row["preset"], row["engine"], *map(str, counts), *speed, *beside)
    console.print(title, highlight=False, soft_wrap=True)
    (console if console.is_terminal else Console(width=130)).print(table)
    console.print(
        "random images (on a CPU two of them for the paper's network); naive: the definition in ebl/naive.py at the paper's "
        "T and K (quick: its own)",
        highlight=False,
        soft_wrap=True,
    )


def precision_command(argv: list[str]) -> None:
    from ebl.precision import compare

    args = _parse(PrecisionArguments, "ebl precision", argv)
    device = _device(args.device)
    config, net = load_run(args.run, str(device))
    data = load(config.dataset, args.data_dir)
    check_data(args.run, data)
    if not 0 < args.images <= len(data.train.labels):
        raise InputError(f"--images {args.images}: use 1 to {len(data.train.labels)}, the number of training images")
    batches = Batches(data.train.to(device), config.entry, args.images, config.seed, augment=False)
    x, y = next(batches.epoch(0))
    rows = compare(config, net, x, y)
    if args.json:
        print(json.dumps([{"precision": r.precision, "cosines": r.cosines, "sizes": r.sizes} for r in rows]))
        return
    table = Table("precision", *(f"layer {k + 1}" for k in range(len(net.links))), "largest size error", box=SIMPLE_HEAD)
    for row in rows:
        off = max(abs(size - 1) for size in row.sizes)
        table.add_row(row.precision, *(f"{value:.5f}" for value in row.cosines), f"{off:.1e}")
    console.print(f"cosine of each layer's weight gradient ({config.rule}) to float64, {args.images} images", highlight=False)
    console.print(table)


def _device(name: str | None) -> torch.device:
    return check_device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


class _Shown:
    """A progress bar over the epochs, and a line for each one that is done."""

    def __init__(self, config: Config):
        self.config = config
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
        )
        self.task = self.bar.add_task("epoch 1", total=config.epochs, news="")
        self.told = 0.0

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        self.bar.start()
        if "test_error" in event:
            self.bar.console.print(
                f"epoch {event['epoch']:3d}  train error {100 * event['train_error']:6.2f} %  test error "
                f"{100 * event['test_error']:6.2f} %  cost {event['train_cost']:.4f}  residual {event['free_residual']:.1e}  "
                f"{event['seconds']:.1f} s",
                highlight=False,
                soft_wrap=True,
            )
            return
        done = event["epoch"] - 1 + event["step"] / event["steps"]
        if time.monotonic() - self.told < 0.1 and event["step"] < event["steps"]:
            return
        self.told = time.monotonic()
        news = f"train error {100 * event['train_error']:.1f} %  cost {event['train_cost']:.3f}"
        news += f"  residual {event['free_residual']:.0e}"
        self.bar.update(self.task, completed=done, description=f"epoch {event['epoch']}/{self.config.epochs}", news=news)


def _tensorboard(out: Path) -> Watcher:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError('--tensorboard needs the tensorboard package: pip install "ebl[tensorboard]"') from error
    writers: list[Any] = []

    def write(event: dict[str, Any]) -> None:
        if "test_error" not in event:
            return
        if not writers:
            writers.append(SummaryWriter(str(out / "tensorboard")))
        for name in ("train_error", "test_error", "train_cost", "test_cost", "free_residual", "free_iterations"):
            writers[0].add_scalar(name.replace("_", "/", 1), event[name], event["epoch"])
        writers[0].flush()

    return write


def _parse(kind: type[T], prog: str, argv: list[str], default: T | None = None) -> T:
    """tyro's reading of the flags, with its boxed complaints made one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return (
                tyro.cli(kind, prog=prog, args=argv)
                if default is None
                else tyro.cli(kind, prog=prog, args=argv, default=default)
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = [line.strip("│|╭╮╰╯ ") for line in complaint.getvalue().splitlines()]
        lines = [line for line in lines if line.strip("─-")][1:]  # without rules and title
        hint = [line for line in lines if line.startswith("--")][:1]
        said = " ".join(itertools.takewhile(lambda line: not line.startswith(("Argument", "Perhaps", "For full")), lines))
        meant = f"; did you mean {hint[0].split()[0]}?" if hint and "nrecognized" in said else ""
        raise InputError(f"{said}{meant}; see {prog} --help") from None


def _typed(argv: list[str], flag: str) -> str | None:
    """The value of a flag as it was typed last, if it was."""
    found = None
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            found = argv[i + 1]
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def _takes(rule: str, beta: float | None) -> bool:
    try:
        RULES[choose("rule", rule, RULES)].check_beta(rule, beta)
    except InputError:
        return rule not in RULES
    return True


def _omega(text: str) -> float | str:
    Schedule(omega=text)
    return text if text.startswith("chebyshev") else float(text)


def _few(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:g}" for v in (values[:1] if len(set(values)) == 1 else values))
