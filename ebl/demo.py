"""The demo: all nine rules trained on the embedded data, side by side."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ebl.atomic import read_lines, write_atomically
from ebl.config import Config, build_network
from ebl.data import Dataset, load
from ebl.data.batches import Batches
from ebl.errors import InputError
from ebl.pictures import draw_error_curves, draw_relaxation
from ebl.presets import preset
from ebl.relax import Schedule, relax
from ebl.rules import estimate_gradients
from ebl.train import load_run, train

NINE = ("tbp", "rbp", "cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")


def demo(out: Path, epochs: int, processes: int, console: Console, dataset: Dataset | None = None) -> None:
    """Train, compare, draw. `dataset`: another one of the embedded data's kind."""
    if processes < 1:
        raise InputError(f"processes = {processes}: use a positive number, such as 2")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    configs = {rule: replace(preset("quick"), rule=rule, epochs=epochs) for rule in NINE}
    out.mkdir(parents=True, exist_ok=True)
    cosines = first_gradient_cosines(configs["rbp"])
    results = train_all(configs, out, processes, console, dataset)
    curves = {rule: [line["test_error"] for line in read_lines(out / rule / "metrics.jsonl")] for rule in NINE}
    table, markdown = Table("rule", "test error %", "train error %", "cosine to RBP", "seconds"), []
    for rule in NINE:
        final = results[rule]["final"]
        errors = [f"{100 * final[name]:.1f}" for name in ("test_error", "train_error")]
        row = (rule, *errors, f"{cosines[rule]:.3f}", f"{results[rule]['seconds']:.0f}")
        table.add_row(*row)
        markdown.append(f"| {' | '.join(row)} |")
    console.print(table)
    head = "| rule | test error % | train error % | cosine to RBP | seconds |\n|---|---|---|---|---|\n"
    write_atomically(out / "comparison.md", (head + "\n".join(markdown) + "\n").encode())
    pictures = [draw_error_curves(curves, out / "error_curves"), draw_relaxation(relaxations(out / "c-ep"), out / "relaxation")]
    console.print("cosine to RBP: of the rule's first gradient, on the first batch, to that of RBP", highlight=False)
    console.print(f"saved: {', '.join(map(str, [out / 'comparison.md', *pictures]))}", highlight=False, soft_wrap=True)


def train_all(
    configs: dict[str, Config], out: Path, processes: int, console: Console, dataset: Dataset | None
) -> dict[str, dict[str, Any]]:
    """Each rule in a process of its own, one thread each; what was done before is kept."""
    context = multiprocessing.get_context("spawn")
    news = context.Queue()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
    total = sum(config.epochs for config in configs.values())
    with bar, _ended_at_once(ProcessPoolExecutor(processes, context, _start_worker, (news, os.getpid()))) as pool:
        task = bar.add_task("training", total=total)
        waiting: dict[str, Future[dict[str, Any]]] = {
            rule: pool.submit(_work, config, out / rule, dataset) for rule, config in configs.items()
        }
        while not all(future.done() for future in waiting.values()):
            try:
                rule, event = news.get(timeout=0.2)
                if isinstance(event, str):
                    bar.console.print(f"{rule:6s} [yellow]warning[/]: {event}", highlight=False)
                    continue
            except Empty:
                for future in waiting.values():
                    if future.done():
                        future.result()
                continue
            bar.advance(task)
            errors = f"train error {100 * event['train_error']:5.1f} %  test error {100 * event['test_error']:5.1f} %"
            bar.console.print(f"{rule:6s} epoch {event['epoch']}  {errors}", highlight=False)
        bar.update(task, completed=total)
        return {rule: future.result() for rule, future in waiting.items()}


def first_gradient_cosines(config: Config) -> dict[str, float]:
    """How each rule's first gradient, on the first batch and the fresh network, is aligned with RBP's."""
    data = load(config.dataset)
    x, y = next(Batches(data.train, config.entry, config.batch_size, config.seed, config.augment).epoch(0))
    net = build_network(config)
    found = {}
    for rule in NINE:
        estimate_gradients(net, x, y, rule=rule, free=config.free, nudged=config.nudged)
        found[rule] = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    return {rule: float(torch.cosine_similarity(g, found["rbp"], dim=0)) for rule, g in found.items()}


def relaxations(run: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Mean energy (above its limit) and residual by iteration, for several schedules on one trained network."""
    config, net = load_run(run)
    data = load(config.dataset)
    x, _ = next(Batches(data.test, config.entry, 100).in_order())
    schedules = {
        "synchronous": Schedule(150, order="synchronous"),
        "asynchronous": Schedule(150),
        "asynchronous, ω = 1.4": Schedule(150, 1.4),
        "asynchronous, Chebyshev 0.8": Schedule(150, "chebyshev:0.8"),
    }
    found = {}
    for name, schedule in schedules.items():
        seen = relax(net, x, schedule, trajectory=True).trajectory
        assert seen is not None
        energy = seen.energy.double().mean(1)
        found[name] = ((energy - energy[-1])[:30].tolist(), seen.residual.mean(1)[:30].tolist())
    return found


@contextlib.contextmanager
def _ended_at_once(pool: ProcessPoolExecutor) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers are ended when anything goes wrong here, Ctrl-C included: their runs can be resumed."""
    try:
        yield pool
    except BaseException:
        workers = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        raise
    pool.shutdown()


_news: Any = None
_parent = 0


def _start_worker(news: Any, parent: int) -> None:
    global _news, _parent
    _news, _parent = news, parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    torch.set_num_threads(1)


class _ToParent(logging.Handler):
    """Warnings of a run, with its rule's name."""

    def __init__(self, rule: str):
        super().__init__(logging.WARNING)
        self.rule = rule

    def emit(self, record: logging.LogRecord) -> None:
        _news.put((self.rule, record.getMessage()))


def _work(config: Config, out: Path, dataset: Dataset | None) -> dict[str, Any]:
    def watch(event: dict[str, Any]) -> None:
        if os.getppid() != _parent:  # whoever started us was killed: stop, so that a second demo has the folder to itself
            os._exit(1)
        if "test_error" in event:
            _news.put((config.rule, event))

    log = logging.getLogger("ebl")
    log.handlers = [_ToParent(config.rule)]
    log.propagate = False
    return train(config, out, resume=True, watch=watch, dataset=dataset)
