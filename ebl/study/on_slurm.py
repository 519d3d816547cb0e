"""--on slurm: each run is a job of SLURM, sent by submitit in arrays.

submitit hands a job what to call as a pickle. Each array has a folder of its own under STORE/slurm, new and open to its user
alone, that holds nothing but what was just written: so no job reads another pickle. Results are never read, and pickles are
removed when a job ends. Its sent.json says what its jobs are, so that a later command takes over from one that was killed.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ebl.atomic import read_json, write_atomically
from ebl.errors import InputError
from ebl.study.executor import Ended

log = logging.getLogger("ebl")

LARGEST_ARRAY = 1000  # SLURM's own limit unless a site sets another
POLL = 5.0  # seconds between looks at the queue
PATIENCE = 10.0  # seconds that cancelled jobs are waited for
MINUTES = 240  # of a job, unless the user or the partition sets another limit
SENT = "sent.json"  # in an array's folder: the cell of each of its jobs, and the options they were sent with
NOTICE = 30  # seconds before its time is up that a job hears of it
GOING_ON = {
    *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING", "RESIZING"),
    *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
}
STUCK = re.compile("held|Partition(Time|Node|Config)|BadConstraints|Never|Invalid|NotAllowed|PerJob", re.IGNORECASE)
"""Reasons to wait that time alone does not end."""
CHANGES = (
    ("[Hh]eld", "release them with `scontrol release`, or change --slurm.extra"),
    ("Time|Wall", "give less --slurm.time, or another --slurm.partition"),
    ("Mem", "give less --slurm.memory"),
    ("Gres|GRES|GPU", "change --slurm.gpus"),
    ("Cpu", "give less --slurm.cpus"),
    ("Account|QOS|Qos|Reservation|License", "give account=, qos= ... in --slurm.extra, or another --slurm.partition"),
    ("", "change --slurm.partition, --slurm.time, --slurm.memory, --slurm.cpus, --slurm.gpus or --slurm.extra"),
)
"""What ends such a wait: of the patterns the first that is in the reason."""
MEMORY = re.compile("oom-kill|memory limit", re.IGNORECASE)
"""In SLURM's words of a run that took too much: the job itself is often no more than FAILED."""
REMEDIES = {
    "OUT_OF_MEMORY": "its memory did not suffice: give more --slurm.memory",
    "TIMEOUT": "its time was up: give more --slurm.time",
    "CANCELLED": "it was cancelled",
    "NODE_FAIL": "its machine failed",
    "PREEMPTED": "it had to make room for another job",
}


@dataclass(frozen=True)
class Slurm:
    """Each run is a job of SLURM, in arrays (pip install "ebl[slurm]")."""

    partition: str | None = None
    """The partition; SLURM's default unless given."""
    time: int | None = None
    """Minutes a job may take; unless given, 240, or as many as the partition allows. A run that needs more goes back into the
    queue and then goes on where it was."""
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
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"slurm.{name} = {value}: use at least {least}")
        if self.gpus not in (0, 1):
            raise InputError(f"slurm.gpus = {self.gpus}: a run uses one GPU at most; use 0 or 1")
        if self.memory is not None and not 0.01 <= self.memory < 1e6:
            raise InputError(f"slurm.memory = {self.memory:g}: give GB, such as 8")
        for option in self.extra:
            if option.startswith("-") or not option.partition("=")[0].strip() or not option.isprintable():
                raise InputError(f"slurm.extra = {option!r}: write NAME=VALUE, or NAME, as sbatch knows it without its dashes")

    def check_device(self, device: str) -> None:
        if device.startswith("cuda") and self.gpus == 0 and not any("gpu" in option for option in self.extra):
            raise InputError("slurm.gpus = 0, but the runs want cuda: give --slurm.gpus 1")


class OnSlurm:
    slots: int | None = None  # SLURM queues

    def __init__(self, settings: Slurm, device: str = "cpu", *, work: Callable[[Path, str], None] | None = None):
        settings.check_device(device)
        self.settings, self.work = settings, work or _run_cell
        self.submitit = _import_submitit()
        self.jobs: dict[str, _Job] = {}  # by SLURM's name for them
        self.looked = 0.0
        self.told: set[str] = set()  # what was warned of

    def adopt(self, store: Path, keys: Sequence[str]) -> list[str]:
        """Jobs of an earlier command are watched as if they were ours. Those that have not begun are cancelled where it gave
        other options, so that they are sent anew."""
        store = store.resolve()
        if not any((store / "slurm").glob(f"*/{SENT}")):
            return []
        jobs, stale = self._earlier(store, set(keys))
        until = time.monotonic() + PATIENCE
        if stale:
            _scancel("--state=PENDING", *stale)
            while (found := self._earlier(store, set(keys)))[1] and time.monotonic() < until:
                time.sleep(0.5)
            jobs = found[0]  # with those that began in the meantime
            for name in stale.keys() - jobs.keys() - found[1].keys():
                stale[name].remove_pickles()
        if jobs:
            log.info("%d of an earlier command's SLURM jobs go on", len(jobs))
        self.jobs |= jobs
        return [job.key for job in jobs.values()]

    def start(self, store: Path, keys: Sequence[str]) -> None:
        """One array, or as many as SLURM wants for thousands of cells."""
        store = store.resolve()
        if "%" in str(store):
            raise InputError(f"{store}: SLURM reads % in a path as a sign of its own; choose another --store")
        for i in range(0, len(keys), LARGEST_ARRAY):
            self.jobs |= self._submit(store, keys[i : i + LARGEST_ARRAY])

    def ended(self) -> list[Ended]:
        if not self.jobs or time.monotonic() - self.looked < POLL:
            return []
        return [self._close(name, state) for name, state in self._look().items() if state not in GOING_ON]

    def stop(self) -> None:
        if not self.jobs:
            return
        _scancel(*sorted({job.cancel for job in self.jobs.values()}))
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(state in GOING_ON for state in self._look().values()):
            time.sleep(0.5)
        for name in list(self.jobs):
            self._close(name, "CANCELLED")

    def _submit(self, store: Path, keys: Sequence[str]) -> dict[str, _Job]:
        (store / "slurm").mkdir(exist_ok=True)
        folder = tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=store / "slurm")  # new, and its user's alone
        sent_as = {"keys": list(keys), "settings": asdict(self.settings)}
        write_atomically(Path(folder) / SENT, json.dumps(sent_as).encode())  # first: we may be killed as soon as they are sent
        s, said = self.settings, io.StringIO()
        extra = {name: value if equals else True for name, equals, value in (option.partition("=") for option in s.extra)}
        try:
            with contextlib.redirect_stderr(said):
                executor = self.submitit.SlurmExecutor(folder, max_num_timeout=s.requeues)
                executor.update_parameters(
                    job_name=f"ebl-{store.name}",
                    wckey=None,  # submitit's own, which not every site takes
                    partition=s.partition,
                    time=s.time or _minutes(extra.get("partition", s.partition)),
                    nodes=1,
                    ntasks_per_node=1,
                    cpus_per_task=s.cpus,
                    gpus_per_node=s.gpus or None,
                    mem=f"{round(1024 * s.memory)}M" if s.memory else None,
                    array_parallelism=s.at_once,
                    signal_delay_s=NOTICE,
                    srun_args=[f"--cpus-per-task={s.cpus}"],  # which srun does not take over from sbatch
                    additional_parameters={"requeue": True, **extra},
                )
                sent = executor.map_array(_Cell(self.work, s.cpus), [str(store)] * len(keys), keys)
        except (RuntimeError, OSError) as error:
            line = " ".join((said.getvalue() or str(error)).replace("sbatch: error: ", "").split())
            raise InputError(f"SLURM does not take the runs: {line}; change --slurm.partition, --slurm.time ...") from error
        names = [job.job_id for job in sent]
        return {name: _job(name, key, Path(folder), _array(name)) for key, name in zip(keys, names, strict=True)}

    def _earlier(self, store: Path, wanted: set[str]) -> tuple[dict[str, _Job], dict[str, _Job]]:
        """This store's jobs in the queue, one for each of the wanted cells; and those that wait there to no purpose. They are
        known by their script, which lies in the store: SLURM may give a job's number again."""
        found = _squeue("%i|%T|%o", f"--user={os.getuid()}")
        if found.returncode:
            said = " ".join(found.stderr.split())
            raise InputError(f"SLURM's queue cannot be read ({said}), but {store} may have jobs in it: try again later")
        mine = json.loads(json.dumps(asdict(self.settings)))
        sent: dict[Path, dict[str, Any]] = {}
        jobs: dict[str, _Job] = {}
        stale: dict[str, _Job] = {}
        taken: set[str] = set()
        for line in sorted(found.stdout.splitlines(), key=lambda line: "|PENDING|" in line):
            name, state, script = line.strip().split("|", 2)
            folder = Path(script).parent
            if folder.parent != store / "slurm" or state not in GOING_ON:
                continue
            if folder not in sent:
                sent[folder] = read_json(folder / SENT) if (folder / SENT).exists() else {}  # an older version's
            if not sent[folder]:
                continue
            key = sent[folder]["keys"][int(name.partition("_")[2] or 0)]
            if state == "PENDING" and key in wanted and (key in taken or sent[folder]["settings"] != mine):
                stale[name] = _job(name, key, folder, name)
            elif key in wanted and key not in taken:
                taken.add(key)
                jobs[name] = _job(name, key, folder, name)
        return jobs, stale

    def _look(self) -> dict[str, str]:
        """The state of each of our jobs."""
        self.looked = time.monotonic()
        found = _squeue("%i|%T|%r", f"--jobs={','.join(sorted(set(map(_array, self.jobs))))}")
        if found.returncode and "Invalid job id" not in found.stderr:  # which means that it has forgotten all of them
            self._warn("squeue", f"SLURM's queue cannot be read: {' '.join(found.stderr.split())}; trying on")
            return {}
        states = {}
        for line in found.stdout.splitlines():
            name, state, reason = line.strip().split("|", 2)
            states[name] = state
            if name in self.jobs and state in GOING_ON and STUCK.search(reason):
                remedy = next(change for pattern, change in CHANGES if re.search(pattern, reason))
                self._warn(reason, f"SLURM jobs will not start: {reason}; {remedy} (see `scontrol show job {name}`)")
        # of jobs that were cancelled before they began SLURM tells by their array alone
        return {name: states.get(name) or states.get(_array(name), "GONE") for name in self.jobs}

    def _close(self, name: str, state: str) -> Ended:
        job = self.jobs.pop(name)
        job.remove_pickles()
        if state == "COMPLETED":
            return Ended(job.key)
        if state == "GONE":
            said = f"SLURM no longer knows what came of it: see `sacct -j {name}`"
        elif state == "FAILED" and not job.log.exists():
            said = f"it left no log: do SLURM's machines see {job.log.parent}?"
        else:
            words = _last_line(job.log)
            said = REMEDIES.get("OUT_OF_MEMORY" if MEMORY.search(words) else state) or words or "no reason was given"
        return Ended(job.key, f"{said} (SLURM job {name}, {state}; log: {job.log})")

    def _warn(self, kind: str, trouble: str) -> None:
        if kind not in self.told:
            self.told.add(kind)
            log.warning("%s", trouble)


@dataclass(frozen=True)
class _Job:
    key: str
    log: Path
    pickles: tuple[Path, ...]
    cancel: str  # what scancel is given to end it: the whole array, where that is ours

    def remove_pickles(self) -> None:
        for pickle in self.pickles:
            pickle.unlink(missing_ok=True)


class _Cell:
    """What a job does. For the sake of `checkpoint` submitit puts a job back into the queue when its time is up."""

    def __init__(self, work: Callable[[Path, str], None], threads: int):
        self.work, self.threads = work, threads

    def __call__(self, store: str, key: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # submitit waits for SIGKILL, but nothing more is to be saved
        torch.set_num_threads(self.threads)
        try:
            self.work(Path(store), key)
        except InputError as error:
            sys.exit(str(error))  # the log's last line

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


def _job(name: str, key: str, folder: Path, cancel: str) -> _Job:
    """With the files that submitit makes for it."""
    return _Job(key, folder / f"{name}_0_log.err", (folder / f"{name}_submitted.pkl", folder / f"{name}_0_result.pkl"), cancel)


def _array(job: str) -> str:
    """Array jobs are called ARRAY_TASK."""
    return job.partition("_")[0]


def _minutes(partition: str | bool | None) -> int:
    """What a job may take unless the user says it: the partition's limit, if that is less than MINUTES."""
    which = [f"--partition={partition}"] if partition else []
    try:
        found = subprocess.run(["sinfo", "--noheader", "--format=%P|%l", *which], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return MINUTES  # sbatch refuses it, or a warning comes, where it is too much
    limits = [line.strip().split("|") for line in found.stdout.splitlines()]
    return min([MINUTES, *(_as_minutes(limit) for name, limit in limits if partition or name.endswith("*"))])


def _as_minutes(limit: str) -> int:
    """SLURM writes [DAYS-]HOURS:MINUTES:SECONDS, MINUTES:SECONDS, or words such as infinite."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+)+", limit):
        return MINUTES
    days, _, clock = limit.rpartition("-")
    hours, minutes, _ = map(int, clock.split(":") if clock.count(":") == 2 else f"0:{clock}".split(":"))
    return max(1, 60 * (24 * int(days or 0) + hours) + minutes)


def _squeue(form: str, *which: str) -> subprocess.CompletedProcess[str]:
    """What SLURM knows of jobs, also of those that ended a short while ago."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--format={form}", *which]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "squeue gave no answer for a minute")


def _scancel(*which: str) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(["scancel", *which], capture_output=True, timeout=60)


def _last_line(path: Path) -> str:
    """Of a job's log; srun's own words only where there are no others, such as of a process that was killed."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("srun: ")]
    srun = [line for line in lines if line.startswith("srun: error: ")]
    return (own or srun or [""])[-1][:300]
