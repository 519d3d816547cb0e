"""ebl train"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ebl.cli.flags import console, parse, read_omega, typed
from ebl.config import Config
from ebl.data import load
from ebl.data.own import describe, is_own
from ebl.errors import InputError, choose
from ebl.parallel import Ranks, join
from ebl.presets import preset
from ebl.rules import RULES
from ebl.train import Watcher, train


@dataclass(frozen=True)
class Arguments:
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
    threads: int | None = None
    """Threads on a CPU; torch's default (a core each) unless given. The last bits of a run depend on them."""


def run(argv: list[str]) -> None:
    with join() as ranks:
        console.quiet = not ranks.first
        _run(argv, ranks)


def _run(argv: list[str], ranks: Ranks) -> None:
    base = preset(typed(argv, "--preset") or "quick")
    rule = typed(argv, "--rule") or base.rule
    if typed(argv, "--beta") is None and not _takes(rule, base.beta):
        base = replace(base, beta=None)  # the preset's beta is for EP and CpL
    args = parse(Arguments, "ebl train", argv, Arguments(config=base))
    config = args.config
    if args.threads is not None:
        if args.threads < 1:
            raise InputError(f"--threads {args.threads}: use a positive number, such as 1")
        torch.set_num_threads(args.threads)
    if not args.checkpoint_seconds >= 0:
        raise InputError(f"--checkpoint-seconds {args.checkpoint_seconds}: use 0 or more, such as 60")
    if args.omega is not None:
        omega = read_omega(args.omega)
        if typed(argv, "--free.omega") is None:
            config = replace(config, free=replace(config.free, omega=omega))
        if typed(argv, "--nudged.omega") is None:
            config = replace(config, nudged=replace(config.nudged, omega=omega))
    name = Path(config.dataset).stem if is_own(config.dataset) else config.dataset
    out = args.out or Path("runs") / f"{name}-{config.rule}-{config.seed}"
    if args.resume and not (out / "config.json").exists():
        console.print(f"{out} holds no run to resume: a new one begins", highlight=False, soft_wrap=True)
    if is_own(config.dataset):
        console.print(f"{config.dataset}: {describe(load(config.dataset))}", highlight=False, soft_wrap=True)
        if config.augment and not (config.crop or config.flip):
            console.print("nothing is augmented: say how, with --crop 4, --flip True or both", highlight=False, soft_wrap=True)
    with _Shown(config, out) as shown:
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
            ranks=ranks,
        )
    final, best = result["final"], result["best"]
    if not shown.began:
        console.print(f"{out} is done already, nothing was trained", highlight=False, soft_wrap=True)
    console.print(
        f"{config.rule} on {config.dataset}: test error {100 * final['test_error']:.2f} %, train error "
        f"{100 * final['train_error']:.2f} % after epoch {final['epoch']} (best test error {100 * best['test_error']:.2f} % in "
        f"epoch {best['epoch']}), {result['seconds']:.0f} s; {out}/result.json",
        highlight=False,
        soft_wrap=True,
    )


class _Shown:
    """A progress bar over the epochs, and a line for each one that is done."""

    def __init__(self, config: Config, out: Path):
        self.config, self.out = config, out
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
        self.began = False

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        if self.began:  # a bar that never was would leave an empty line
            self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        if not self.began and not console.is_terminal:  # where no bar moves
            goal = f"{self.config.rule} on {self.config.dataset}, {self.config.epochs} epochs, {self.config.device}"
            console.print(f"{goal}: a line for each epoch; {self.out}", highlight=False, soft_wrap=True)
        self.began = True
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


def _takes(rule: str, beta: float | None) -> bool:
    try:
        RULES[choose("rule", rule, RULES)].check_beta(rule, beta)
    except InputError:
        return rule not in RULES
    return True
