"""--on ray: each run is a task of a Ray cluster, one that is there or a fresh one on this machine."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ebl.errors import InputError
from ebl.study.executor import Ended

log = logging.getLogger("ebl")

PATIENCE = 5.0  # seconds that cancelled tasks are waited for


@dataclass(frozen=True)
class Ray:
    """Each run is a task of a Ray cluster (pip install "ebl[ray]")."""

    cpus: int = 1
    """CPUs of a run, and its threads."""
    gpus: float = 0.0
    """GPUs of a run: 1, or 0.25 for four runs that share one."""
    address: str | None = None
    """A cluster that is there: HOST:PORT, or auto for this machine's; unless given, a fresh one on this machine."""

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise InputError(f"ray.cpus = {self.cpus}: a run needs at least 1")
        if not 0 <= self.gpus <= 1:
            raise InputError(f"ray.gpus = {self.gpus:g}: a run uses one GPU at most; use 1, a share such as 0.25, or 0")
        host, _, port = (self.address or "").rpartition(":")
        if self.address not in (None, "auto") and not (host and port.isdecimal() and "/" not in host):
            raise InputError(f"ray.address = {self.address}: use auto, HOST:PORT, or leave it out for a fresh cluster")

    def check_device(self, device: str) -> None:
        if device.startswith("cuda") and self.gpus == 0:
            raise InputError("ray.gpus = 0, but the runs want cuda: give --ray.gpus 1, or a share such as 0.25")


class OnRay:
    """Ray's own retries are off: a task that is lost is told of, and whoever runs the study starts its cell again."""

    slots: int | None = None  # Ray queues what does not fit yet

    def __init__(self, settings: Ray, device: str = "cpu", *, work: Callable[[Path, str], None] | None = None):
        settings.check_device(device)
        self.settings, self.work = settings, work or _run_cell
        self.ray = _import_ray()
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, settings)
        _check_room(self.ray, settings)
        # a process for each run: nothing of it, such as GPU memory, is left to the next
        task = self.ray.remote(num_cpus=settings.cpus, num_gpus=settings.gpus, max_retries=0, max_calls=1)
        self.task = task(_in_worker)
        self.cells: dict[Any, str] = {}  # by task

    def adopt(self, store: Path, keys: Sequence[str]) -> list[str]:
        return []  # Ray ends the tasks of a command that ends

    def start(self, store: Path, keys: Sequence[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith("EBL_")}
        here = (str(store.resolve()), self.settings.cpus, str(Path.cwd()), environment)
        self.cells |= {self.task.remote(self.work, key, *here): key for key in keys}

    def ended(self) -> list[Ended]:
        tasks = list(self.cells)
        over = self.ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
        return [Ended(self.cells.pop(task), _error(self.ray, task)) for task in over]

    def stop(self) -> None:
        tasks = list(self.cells)
        self.cells.clear()
        for task in tasks:
            self.ray.cancel(task, force=True)
        if tasks:
            self.ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)
        if self.ours:
            self.ray.shutdown()  # ends a cluster of our own, only leaves another


def _in_worker(
    work: Callable[[Path, str], None], key: str, store: str, threads: int, folder: str, environment: dict[str, str]
) -> None:
    if not Path(store).is_dir():
        raise InputError(f"{socket.gethostname()} does not see the store {store}: put it in a folder that all machines share")
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        os.chdir(folder)  # own data may be named from there
    torch.set_num_threads(threads)
    logs = Path(store) / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / f"{key}.log").open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    work(Path(store), key)


def _error(ray: Any, task: Any) -> str:
    """Why a task ended, if it did not end well."""
    try:
        ray.get(task)
    except ray.exceptions.WorkerCrashedError:
        return "its worker was killed, or died, in mid-run"
    except ray.exceptions.NodeDiedError:
        return "the machine it ran on left the cluster"
    except ray.exceptions.RayTaskError as error:
        return _line(error.cause or error)
    except ray.exceptions.RayError as error:
        return _line(error)
    return ""


def _run_cell(store: Path, key: str) -> None:
    from ebl.study.cell import run_cell

    run_cell(store, key)


def _import_ray() -> Any:
    try:
        with _hushed():
            return importlib.import_module("ray")
    except ImportError as error:
        raise InputError('--on ray needs Ray: pip install "ebl[ray]"') from error


def _connect(ray: Any, settings: Ray) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    fresh = {"include_dashboard": False, "object_store_memory": 10**8}  # we hand over words only
    where = {"address": settings.address} if settings.address else {"address": "local", **fresh}
    try:
        if settings.address not in (None, "auto"):
            host, _, port = settings.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()  # Ray itself would try for minutes
        with _hushed():
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, **where)
    except (OSError, OverflowError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        said = getattr(error, "strerror", None) or _line(error)
        if settings.address is None:
            raise InputError(f"no Ray cluster can be started on this machine: {said}; use --on local") from error
        raise InputError(
            f"ray.address = {settings.address}: {said}; start a cluster there (`ray start --head`), set RAY_AUTH_MODE=token "
            "if it wants a token, or leave the address out for a fresh one"
        ) from error
    ray._private.worker._worker_logs_enabled = False  # what the nodes say would reach the console past log_to_driver


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Ray complains by warnings and, past Python's streams, on stderr; what matters comes as an exception too."""
    stderr = os.dup(2)
    try:
        with warnings.catch_warnings(), Path(os.devnull).open("wb") as nowhere:
            warnings.simplefilter("ignore")
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _check_room(ray: Any, settings: Ray) -> None:
    """A run that fits on no machine would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= settings.cpus and node.get("GPU", 0) >= settings.gpus for node in nodes):
        return
    there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    wanted = f"ray.cpus = {settings.cpus}, ray.gpus = {settings.gpus:g}: no machine has as much ({there})"
    if settings.address is None:
        raise InputError(f"{wanted}: use less")
    log.warning("%s; runs wait until one comes that has", wanted)  # clusters may grow


def _line(error: BaseException) -> str:
    said = " ".join(str(error).strip().partition("\n")[0].split())
    return said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"
