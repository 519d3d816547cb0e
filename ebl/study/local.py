"""--on local: a process for each run, several at a time, on this machine's cores or sharing its GPUs."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ebl.atomic import disk_error
from ebl.errors import InputError
from ebl.study.executor import Ended
from ebl.train import check_device

PRELOAD = [__name__, "ebl.study.cell", "torch._dynamo"]  # the last is what torch imports when an optimiser is made
PATIENCE = 5.0  # seconds a worker is given to end before it is killed


@dataclass(frozen=True)
class Local:
    """Each run is a process on this machine."""

    processes: int | None = None
    """Runs at a time; one for each core's worth of threads unless given, on GPUs one for each of them."""
    threads: int = 1
    """Threads of a run. With 1 a CPU gives the same numbers whatever the number of runs at a time."""

    def __post_init__(self) -> None:
        for name in ("processes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} = {value}: use a positive number, such as 2")

    def check_device(self, device: str) -> None:
        if not device.startswith("cuda") or not torch.cuda.is_available():  # a GPU is left to the workers
            check_device(device)


class OnLocal:
    """Workers end with this process, however it ends. On CPUs they are forked off a server that has imported torch once."""

    def __init__(self, settings: Local, device: str = "cpu"):
        on_gpu = device.startswith("cuda")
        forks = not on_gpu and "forkserver" in multiprocessing.get_all_start_methods()  # CUDA, once set up, cannot be forked
        self.context = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            self.context.set_forkserver_preload(PRELOAD)
        self.threads = settings.threads
        self.gpus = _gpus() if device == "cuda" else []  # a device such as cuda:1 is taken as it is
        fit = max(1, len(self.gpus)) if on_gpu else max(1, _cores() // settings.threads)
        self.slots: int | None = settings.processes or fit
        self.workers: dict[str, _Worker] = {}

    def adopt(self, store: Path, keys: Sequence[str]) -> list[str]:
        return []  # workers end with the command that started them

    def start(self, store: Path, keys: Sequence[str]) -> None:
        for key in keys:
            gpu = self.least_used()
            environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {})}
            ours, theirs = self.context.Pipe(duplex=False)
            process = self.context.Process(  # type: ignore[attr-defined]
                target=_work, args=(store, key, self.threads, environment, theirs), name=key, daemon=True
            )
            process.start()
            theirs.close()
            self.workers[key] = _Worker(process, ours, gpu)

    def ended(self) -> list[Ended]:
        over = [key for key, worker in self.workers.items() if not worker.process.is_alive()]
        return [Ended(key, self.workers.pop(key).last_words()) for key in over]

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.process.join(PATIENCE)
            worker.process.kill()
        self.workers.clear()

    def least_used(self) -> str | None:
        """The GPU for the next run."""
        used = Counter(worker.gpu for worker in self.workers.values())
        return min(self.gpus, key=lambda gpu: used[gpu], default=None)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    gpu: str | None

    def last_words(self) -> str:
        """Why it ended, if it did not end well."""
        with self.pipe, contextlib.suppress(EOFError, OSError):
            if self.pipe.poll():
                return str(self.pipe.recv())
        code = self.process.exitcode or 0
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -9 else "")
        return f"its process ended with exit code {code}" if code else ""


def _work(store: Path, key: str, threads: int, environment: dict[str, str], pipe: Connection) -> None:
    """In the worker."""
    from ebl.study.cell import run_cell

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal: whoever started us ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    torch.set_num_threads(threads)
    try:
        with (store / "logs" / f"{key}.log").open("a", encoding="utf-8", buffering=1) as file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), stream.fileno())
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
            run_cell(store, key)
    except (Exception, SystemExit) as error:
        pipe.send(str(disk_error(store, error) if isinstance(error, OSError) else error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
