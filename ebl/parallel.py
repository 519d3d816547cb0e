"""Several processes that train one network, each on its part of every batch: who they are, and how they agree.

torchrun starts them. A rank's sums are its share of what one process would have; summed over all ranks they are that, to
rounding. Numbers that ranks decide by are sums or the first rank's, so all decide alike. Only the first rank writes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ebl.errors import InputError

TIMEOUT = timedelta(minutes=5)  # a rank that is silent for longer is lost

log = logging.getLogger("ebl")


@dataclass(frozen=True)
class Part:
    """A rank's examples of a batch: `count` from place `first` on, of `whole`. The ranks' parts make up the batch."""

    first: int
    count: int
    whole: int

    @staticmethod
    def of(whole: int, rank: int = 0, num_ranks: int = 1) -> Part:
        first, end = whole * rank // num_ranks, whole * (rank + 1) // num_ranks
        return Part(first, end - first, whole)

    @property
    def rows(self) -> slice:
        """Where they are in the batch. A rank without any repeats another's, which then counts for nothing."""
        return slice(self.first, self.first + max(1, self.count))

    @property
    def share(self) -> float:
        return self.count / self.whole

    def generator(self, generator: torch.Generator) -> torch.Generator:
        """Past the numbers of the examples before: each example is drawn the same, however many ranks there are."""
        torch.rand(self.first, generator=generator)
        return generator


@dataclass(frozen=True)
class Ranks:
    """The processes of a run, seen from one of them. Every rank must call the methods that talk, in the same order."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def part(self, whole: int) -> Part:
        return Part.of(whole, self.rank, self.size)

    def device(self, name: str) -> str:
        """A GPU of its own for each process of a machine."""
        if self.alone or not name.startswith("cuda"):
            return name
        if name != "cuda":
            raise InputError(f"device = {name!r} with {self.size} processes: give cuda, each process takes a GPU of its own")
        count = torch.cuda.device_count()
        if not count:
            return name
        if self.local_rank >= count:
            raise InputError(f"device = 'cuda' with more processes than GPUs here, {count}: torchrun --nproc-per-node {count}")
        return f"cuda:{self.local_rank}"

    def add_up(self, t: Tensor) -> None:
        """t <- the sum of all ranks' t; on a GPU without waiting for it."""
        if not self.alone:
            with _talking():
                dist.all_reduce(t)

    def total(self, t: Tensor) -> Tensor:
        """The sum of all ranks' t, of a few numbers."""
        if self.alone:
            return t
        found = t.to("cpu", copy=True)
        self.add_up(found)
        return found

    def all(self, here: bool) -> bool:
        return here if self.alone else not int(self.total(torch.tensor(int(not here))))

    def share(self, value: Any) -> Any:
        """The first rank's value, of what JSON can say."""
        if self.alone:
            return value
        text = bytearray(json.dumps(value).encode())
        size = torch.tensor(len(text))
        with _talking():
            dist.broadcast(size, 0)
            sent = torch.frombuffer(text, dtype=torch.uint8) if self.first else torch.empty(int(size), dtype=torch.uint8)
            dist.broadcast(sent, 0)
        return value if self.first else json.loads(sent.numpy().tobytes())

    def share_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The first rank's tensors, on the CPU."""
        if self.alone:
            return tensors
        names = self.share({name: (list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()})
        found = {}
        for name, (shape, dtype) in names.items():
            t = tensors[name].detach().cpu().contiguous() if self.first else torch.empty(shape, dtype=getattr(torch, dtype))
            with _talking():
                dist.broadcast(t, 0)
            found[name] = t
        return found

    def gather(self, t: Tensor, part: Part) -> Tensor:
        """The whole batch's tensor of the ranks' parts."""
        if self.alone:
            return t
        whole = t.new_zeros(part.whole, *t.shape[1:])
        whole[part.first : part.first + part.count] = t[: part.count]
        self.add_up(whole)
        return whole

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Relaxations inside have a part of a batch each: see `everywhere`."""
        before = _sharing.set(self)
        try:
            yield
        finally:
            _sharing.reset(before)


ALONE = Ranks()
_sharing: ContextVar[Ranks] = ContextVar("sharing", default=ALONE)


def everywhere(here: bool) -> bool:
    """Whether something holds for the whole batch, and not only for the part of it that is here."""
    return _sharing.get().all(here)


class Shared:
    """The gradients of the ranks' parts, in one piece of memory that becomes their sum."""

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]):
        self.ranks = ranks
        self.memory = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
        pieces = self.memory.split([p.numel() for p in parameters])
        self.gradients = [piece.as_strided(p.shape, p.stride()) for piece, p in zip(pieces, parameters, strict=True)]

    @torch.no_grad()
    def put(self, gradients: Sequence[Tensor], share: float = 1.0) -> None:
        for to, g in zip(self.gradients, gradients, strict=True):
            to.copy_(g)
        if share != 1:
            self.memory.mul_(share)

    def add_up(self) -> list[Tensor]:
        self.ranks.add_up(self.memory)
        return self.gradients


@contextlib.contextmanager
def join(timeout: timedelta = TIMEOUT, backend: str | None = None) -> Iterator[Ranks]:
    """All processes of this run, if torchrun started it; otherwise this one alone.

    When one fails they all end, and the first that knows why says so. GPUs talk by NCCL, CPUs by gloo, unless `backend` is
    given: gloo takes GPUs too, but is slow there."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ:
        yield ALONE
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun may keep one store for all of them
        store = PrefixStore(f"ebl {attempt}", store)
        store.set_timeout(timeout)
        if backend is None:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes of this run do not find each other ({_line(error)}): start them with torchrun"
        ) from error
    if rank:
        log.setLevel(logging.CRITICAL)
    try:
        yield Ranks(rank, size, int(os.environ.get("LOCAL_RANK", rank)))
    except (Exception, KeyboardInterrupt) as error:
        if _told_before(store):
            sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
        raise
    time.sleep(0.05)  # torch 2.6: a thread of gloo lets go of the last tensor under the lock that destroying holds for ever
    dist.destroy_process_group()


def _told_before(store: Any) -> bool:
    try:
        return store.add("told", 1) > 1
    except RuntimeError:  # the store went with the process that kept it
        return False


@contextlib.contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise InputError(
            f"another process of this run has ended or does not answer ({_line(error)}): start all of them again, with --resume"
        ) from error


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
