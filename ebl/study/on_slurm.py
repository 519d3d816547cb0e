"""--on slurm: the cells as job arrays of SLURM, sent by submitit.

submitit hands a job what to call as a pickle. Each array has a new folder of its own under STORE/slurm, open to its user alone, that
holds nothing but what was just written: no job reads another pickle, results are never read back, and pickles go when a job ends.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ebl.errors import InputError
from ebl.study.executor import Ended

log = logging.getLogger("ebl")

LARGEST_ARRAY = 1000  # SLURM's own limit unless a site sets another
POLL = 5.0  # seconds between looks at the queue
PATIENCE = 10.0  # seconds that cancelled jobs are waited for
NOTICE = 30  # seconds before its time is up that a job hears of it
GOING_ON = {
    *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING", "RESIZING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
STUCK = re.compile("held|Partition(Time|Node|Config)|BadConstraints|Never|Invalid|NotAllowed|PerJob", re.IGNORECASE)
"""Reasons to wait that time alone does not end."""
REMEDIES = {
    "OUT_OF_MEMORY": "give more --slurm.memory",
    "TIMEOUT": "give more --slurm.time",
    "CANCELLED": "somebody cancelled it",
    "NODE_FAIL": "its machine failed",
}


@dataclass(frozen=True)
class Slurm:
    """Each run is a job of SLURM, in arrays (pip install "ebl[slurm]")."""

    partition: str | None = None
    """The partition; SLURM's default unless given."""
    time: int = 240
    """Minutes a job may take. A run that needs more goes back into the queue and then goes on where it was."""
    requeues: int = 100
    """How often a run may go back into the queue because its time was up."""
    gpus: int = 0
    """GPUs of a run: 0 or 1."""
    cpus: int = 1
    """CPUs of a run, and its threads."""
    memory: float | None = None
    """GB of memory of a run; SLURM's default unless given."""
    at_once: int = 256
    """Jobs of an array that may run at the same time."""
    extra: tuple[str, ...] = ()
    """More options of sbatch, without dashes: account=NAME constraint=a100 exclusive."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", tuple(self.extra))
        for name, least in (("time", 2), ("requeues", 0), ("cpus", 1), ("at_once", 1)):
            if getattr(self, name) < least:
                raise InputError(f"slurm.{name} = {getattr(self, name)}: use at least {least}")
        if self.gpus not in (0, 1):
            raise InputError(f"slurm.gpus = {self.gpus}: a run uses one GPU at most; use 0 or 1")
        if self.memory is not None and not 0.01 <= self.memory < 1e6:
            raise InputError(f"slurm.memory = {self.memory:g}: give GB, such as 8")
        for option in self.extra:
            if option.startswith("-") or not option.partition("=")[0].strip() or not option.isprintable():
                raise InputError(f"slurm.extra = {option!r}: write NAME=VALUE, or NAME, as sbatch knows it without its dashes")


class OnSlurm:
    slots = None  # SLURM queues

    def __init__(self, settings: Slurm, work: Callable[[Path, str], Any] | None = None):
        self.settings = settings
        self.submitit = _import_submitit()
        self.work = work or _run_cell
        self.cells: dict[str, tuple[str, Any]] = {}  # by job: key and submitit's job
        self.looked = 0.0
        self.told: set[str] = set()  # kinds of trouble that were told of

    def start(self, store: Path, keys: Sequence[str]) -> None:
        """One array for every thousand cells."""
        store = store.resolve()
        for i in range(0, len(keys), LARGEST_ARRAY):
            part = keys[i : i + LARGEST_ARRAY]
            jobs = self._submit(store, part)
            self.cells |= {job.job_id: (key, job) for key, job in zip(part, jobs, strict=True)}

    def ended(self) -> list[Ended]:
        if not self.cells or time.monotonic() - self.looked < POLL:
            return []
        return [self._close(job, state) for job, state in self._look().items() if state not in GOING_ON]

    def stop(self) -> None:
        if not self.cells:
            return
        subprocess.run(["scancel", *_arrays(self.cells)], capture_output=True, timeout=60)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(state in GOING_ON for state in self._look().values()):
            time.sleep(0.5)
        for job in list(self.cells):
            self._close(job, "CANCELLED")

    def _submit(self, store: Path, keys: Sequence[str]) -> list[Any]:
        (store / "slurm").mkdir(exist_ok=True)
        folder = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=store / "slurm")  # new, and its user's alone
        s, said = self.settings, io.StringIO()
        extra = {name: value if equals else True for name, equals, value in (option.partition("=") for option in s.extra)}
        try:
            with contextlib.redirect_stderr(said):
                executor = self.submitit.SlurmExecutor(folder, max_num_timeout=s.requeues)
                executor.update_parameters(
                    job_name=f"ebl-{store.name}",
                    wckey=None,  # submitit's own, which not every site takes
                    **({"partition": s.partition} if s.partition else {}),
                    **({"gpus_per_node": s.gpus} if s.gpus else {}),
                    **({"mem": f"{round(1024 * s.memory)}M"} if s.memory else {}),
                    time=s.time,
                    nodes=1,
                    ntasks_per_node=1,
                    cpus_per_task=s.cpus,
                    array_parallelism=s.at_once,
                    signal_delay_s=NOTICE,
                    srun_args=[f"--cpus-per-task={s.cpus}"],  # which srun does not take over from sbatch
                    additional_parameters={"requeue": True, **extra},
                )
                return executor.map_array(_Cell(self.work, s.cpus), [str(store)] * len(keys), keys)
        except (self.submitit.core.utils.FailedJobError, RuntimeError, OSError) as error:
            line = " ".join((said.getvalue() or str(error)).replace("sbatch: error: ", "").split())
            raise InputError(f"SLURM does not take the runs: {line}; mend --slurm.partition, --slurm.time, ... or see `sinfo`") from error

    def _look(self) -> dict[str, str]:
        """The state of each job that we know of."""
        self.looked = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%r", f"--jobs={','.join(_arrays(self.cells))}"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            found = subprocess.CompletedProcess(command, 1, "", "squeue: no answer for a minute")
        if found.returncode and "Invalid job id" not in found.stderr:
            self._tell("squeue", f"SLURM's queue cannot be read ({' '.join(found.stderr.split())}); trying on")
            return {}
        states = {}
        for line in found.stdout.splitlines():
            job, state, reason = line.strip().split("|", 2)
            states[job] = state
            if job in self.cells and state in GOING_ON and STUCK.search(reason):
                trouble = f"SLURM jobs wait for good ({reason}): see `scontrol show job {job}`, or stop and change --slurm.time ..."
                self._tell(reason, trouble)
        return {job: states.get(job, "GONE") for job in self.cells}

    def _close(self, job: str, state: str) -> Ended:
        key, sent = self.cells.pop(job)
        for pickle in (sent.paths.submitted_pickle, sent.paths.result_pickle):
            pickle.unlink(missing_ok=True)
        if state == "COMPLETED":
            return Ended(key)
        if state == "GONE":
            return Ended(key, f"SLURM no longer knows job {job}: see `sacct -j {job}` and {sent.paths.stderr}")
        if state == "FAILED" and not sent.paths.stderr.exists():
            return Ended(key, f"SLURM job {job} FAILED without a log: do its machines see the folder {sent.paths.folder}?")
        said = REMEDIES.get(state) or _last_line(sent.paths.stderr)
        return Ended(key, f"SLURM job {job} {state}{f': {said}' if said else ''} (log: {sent.paths.stderr})")

    def _tell(self, kind: str, trouble: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            log.warning("%s", trouble)


class _Cell:
    """What a job does. For the sake of `checkpoint` submitit puts a job back into the queue when its time is up."""

    def __init__(self, work: Callable[[Path, str], Any], threads: int):
        self.work, self.threads = work, threads

    def __call__(self, store: str, key: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit waits for SIGKILL, but nothing more is to be saved
        torch.set_num_threads(self.threads)
        self.work(Path(store), key)

    def checkpoint(self, store: str, key: str) -> Any:
        """The same again: training goes on from its last checkpoint."""
        return importlib.import_module("submitit").helpers.DelayedSubmission(self, store, key)


def _run_cell(store: Path, key: str) -> None:
    from ebl.study.cell import run_cell

    run_cell(store, key)


def _import_submitit() -> Any:
    try:
        submitit = importlib.import_module("submitit")
    except ImportError as error:
        raise InputError('--on slurm needs submitit: pip install "ebl[slurm]"') from error
    missing = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if missing:
        raise InputError(f"--on slurm needs SLURM's {', '.join(missing)}: run on a machine from which jobs are submitted")
    logging.getLogger("submitit").setLevel(logging.ERROR)
    return submitit


def _arrays(jobs: Iterable[str]) -> list[str]:
    """Array jobs are called ARRAY_TASK."""
    return sorted({job.partition("_")[0] for job in jobs})


def _last_line(path: Path) -> str:
    """Of a job's log; srun's own words only where there are no others, such as of a process that was killed."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("srun: ")]
    srun = [line for line in lines if line.startswith("srun: error: ")]
    return (own or srun or [""])[-1][:300]
