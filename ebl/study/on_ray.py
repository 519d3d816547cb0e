"""--on ray: the cells as tasks of a Ray cluster, one that is there or a fresh one on this machine."""

from __future__ import annotations

import importlib
import logging
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
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
    """GPUs of a run: 1, or 0.25 for four runs that share one; with 0 Ray hides them."""
    address: str | None = None
    """A cluster that is there: HOST:PORT, or auto for this machine's; unless given, a fresh one on this machine."""

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise InputError(f"ray.cpus = {self.cpus}: a run needs at least 1")
        if not isfinite(self.gpus) or not 0 <= self.gpus <= 1:
            raise InputError(f"ray.gpus = {self.gpus:g}: a run uses one GPU at most; use 1, a share such as 0.25, or 0 for none")
        if self.address == "":
            raise InputError("ray.address is empty: use auto, HOST:PORT, or leave it out for a fresh cluster on this machine")


class OnRay:
    """Ray's own retries are off: a lost task is told of, and whoever runs the study starts its cell again."""

    slots = None  # Ray queues what does not fit yet

    def __init__(self, settings: Ray, work: Callable[[Path, str], Any] | None = None):
        self.settings = settings
        self.ray = _import_ray()
        self.work = work or _run_cell
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, settings)
        _check_room(self.ray, settings)
        resources = {"num_cpus": settings.cpus, "num_gpus": settings.gpus}
        # a process for each cell: nothing of one, such as GPU memory, is left to the next
        self.task = self.ray.remote(max_retries=0, max_calls=1, **resources)(_in_worker)
        self.cells: dict[Any, str] = {}

    def start(self, store: Path, keys: Sequence[str]) -> None:
        for key in keys:
            self.cells[self.task.remote(self.work, str(store.resolve()), key, self.settings.cpus)] = key

    def ended(self) -> list[Ended]:
        if not self.cells:
            return []
        ready, _ = self.ray.wait(list(self.cells), num_returns=len(self.cells), timeout=0)
        return [Ended(self.cells.pop(task), self._error(task)) for task in ready]

    def stop(self) -> None:
        for task in self.cells:
            self.ray.cancel(task, force=True)
        if self.cells:
            self.ray.wait(list(self.cells), num_returns=len(self.cells), timeout=PATIENCE)
        self.cells.clear()
        if self.ours:
            self.ray.shutdown()  # leaves a cluster that was there, ends a fresh one

    def _error(self, task: Any) -> str:
        try:
            self.ray.get(task)
        except self.ray.exceptions.WorkerCrashedError:
            return "its worker was killed, or died, in mid-run"
        except self.ray.exceptions.NodeDiedError:
            return "the machine it ran on left the cluster"
        except self.ray.exceptions.RayTaskError as error:
            return _one_line(error.cause or error)
        except self.ray.exceptions.RayError as error:
            return _one_line(error)
        return ""


def _in_worker(work: Callable[[Path, str], Any], store: str, key: str, threads: int) -> None:
    if not Path(store).is_dir():
        raise InputError(f"{platform.node()} does not see the store {store}: put it in a folder that all machines share")
    torch.set_num_threads(threads)
    work(Path(store), key)


def _run_cell(store: Path, key: str) -> None:
    from ebl.study.cell import run_cell

    run_cell(store, key)


def _import_ray() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("ray")
    except ImportError as error:
        raise InputError('--on ray needs Ray: pip install "ebl[ray]"') from error


def _connect(ray: Any, settings: Ray) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    fresh = {"include_dashboard": False, "object_store_memory": 10**8} if settings.address is None else {}  # we send words only
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=settings.address or "local", log_to_driver=False, logging_level=logging.CRITICAL, **fresh)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        what = "a Ray cluster cannot be started here" if settings.address is None else f"no Ray cluster at {settings.address}"
        raise InputError(f"{what} ({_one_line(error)}): check with `ray status`, or give another --ray.address") from error
    ray._private.worker._worker_logs_enabled = False  # raylets' words reach the console past log_to_driver


def _check_room(ray: Any, settings: Ray) -> None:
    """A run that fits on no machine would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(node.get("CPU", 0) >= settings.cpus and node.get("GPU", 0) >= settings.gpus for node in nodes):
        return
    there = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
    short = f"a run with {settings.cpus} CPUs and {settings.gpus:g} GPUs fits on no machine of the cluster (there: {there})"
    if settings.address is None:
        raise InputError(f"{short}: use a smaller --ray.cpus or --ray.gpus")
    log.warning("%s: runs wait until one comes that it fits on", short)  # clusters may grow


def _one_line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    name = "" if isinstance(error, InputError) else type(error).__name__
    return ": ".join(filter(None, [name, *said[:1]]))
