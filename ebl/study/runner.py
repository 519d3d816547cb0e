"""Running a study: cells go to an executor until each is done or has failed too often."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ebl.atomic import DISK_FULL
from ebl.data import EMBEDDED
from ebl.data.files import data_folder, find
from ebl.data.own import is_own
from ebl.errors import InputError
from ebl.study.executor import Ended, Executor
from ebl.study.grid import Cell
from ebl.study.journal import Tail
from ebl.study.store import Store, mark

Watcher = Callable[[dict[str, Any]], None]
"""Told of the store's events as they come (event, key, and what belongs to it) and, now and then, of `progress` (epochs by
key, and the keys that somebody works on: others wait in a queue)."""

LOOK = 1.0  # seconds between two looks at what runs, here and elsewhere
SILENT = 3  # a worker may end without a word when another one has the cell: not more often, though


@dataclass
class Outcome:
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # the last error, by key


def run_study(
    store: Store,
    cells: Iterable[Cell],
    executor: Executor,
    *,
    retries: int = 2,
    watch: Watcher | None = None,
    poll: float = 0.1,
) -> Outcome:
    """Bring every cell to its end. A cell that another process works on is waited for, and taken over if that ends without it.
    Failed ones are started again up to `retries` times, if that can help. Ended by Ctrl-C or an error, workers end too; the
    same call goes on."""
    cells = list(cells)
    store.add(cells)
    run = _Running(store, [cell.key for cell in cells], executor, retries, watch)
    try:
        while run.turn():
            time.sleep(poll)
    finally:
        executor.stop()
    return run.outcome


def check_data(cells: Iterable[Cell]) -> None:
    """An error that names every dataset that is not here, before anything starts. Own data were read for their config."""
    root, missing = data_folder(), []
    for name in dict.fromkeys(cell.config.dataset for cell in cells):
        if not is_own(name) and name not in EMBEDDED:
            try:
                find(name, root)
            except InputError:
                missing.append(name)
    if missing:
        commands = " && ".join(f"ebl data fetch {name}" for name in missing)
        raise InputError(f"{', '.join(missing)} not in {root}: run `{commands}`, or name another folder with --data-dir")


class _Running:
    """Where each cell is while a study runs: waiting, started here, or in the hands of another process."""

    def __init__(self, store: Store, keys: Sequence[str], executor: Executor, retries: int, watch: Watcher | None):
        self.store, self.executor, self.retries = store, executor, retries
        self.watch = watch or (lambda event: None)
        self.tail = Tail(store.events)
        self.outcome = Outcome()
        self.waiting: deque[str] = deque()
        for key in keys:
            (self.outcome.done if store.is_done(key) else self.waiting).append(key)
        self.started = dict.fromkeys(executor.adopt(store.folder, list(self.waiting)), 0)  # with its failures by then
        self.waiting = deque(key for key in self.waiting if key not in self.started)
        self.elsewhere: set[str] = set()
        self.failures: dict[str, list[dict[str, Any]]] = defaultdict(list)  # since we began, whoever told of them
        self.silent: Counter[str] = Counter()
        self.looked = 0.0

    def turn(self) -> bool:
        """See what has changed, start what can be started; False once nothing is left."""
        ended = self.executor.ended()
        self.hear()  # what they told before they ended
        for worker in ended:
            self.settle(worker)
        if time.monotonic() - self.looked > LOOK:
            self.look()
        self.start()
        return bool(self.waiting or self.started or self.elsewhere)

    def hear(self) -> None:
        for event in self.tail.news():
            if event.get("event") == "failed":
                self.failures[event["key"]].append(event)
            self.watch(event)

    def settle(self, worker: Ended) -> None:
        """What came of a worker that stopped."""
        key, error = worker.key, worker.error
        before = self.started.pop(key)
        if error.startswith(DISK_FULL):
            raise InputError(error)
        if self.store.is_done(key):
            self.outcome.done.append(key)
        elif self.store.holder(key) is not None:
            self.elsewhere.add(key)
        else:
            if len(self.failures[key]) == before:  # it did not tell of a failure itself
                self.silent[key] += 1
                if error or self.silent[key] > SILENT:
                    self.store.tell("failed", key, error=error or "its worker ended without a word", retry=True)
                    self.hear()
            self.again(key)

    def again(self, key: str) -> None:
        """Try a cell once more, if that can help."""
        failures = self.failures[key]
        if failures and not (len(failures) <= self.retries and failures[-1].get("retry")):
            self.outcome.failed[key] = failures[-1].get("error", "")
            return
        if failures:  # for whoever looks at the store
            self.store.tell("again", key, after=mark(failures[-1]))
        self.waiting.append(key)

    def look(self) -> None:
        """At what others work on, and how far everyone is."""
        self.looked = time.monotonic()
        for key in sorted(self.elsewhere):
            if self.store.is_done(key):
                self.outcome.done.append(key)
            elif self.store.holder(key) is None:
                self.again(key)
            else:
                continue
            self.elsewhere.discard(key)
        epochs = {key: self.store.epochs(key) for key in (*self.started, *self.elsewhere)}
        running = [key for key in epochs if self.store.holder(key) is not None]
        self.watch({"event": "progress", "epochs": epochs, "running": running})

    def start(self) -> None:
        """Give the executor as many cells as it takes."""
        room = len(self.waiting) if self.executor.slots is None else self.executor.slots - len(self.started)
        chosen: list[str] = []
        while self.waiting and len(chosen) < room:
            key = self.waiting.popleft()
            if self.store.is_done(key):
                self.outcome.done.append(key)
            elif self.store.holder(key) is not None:
                self.elsewhere.add(key)
            else:
                chosen.append(key)
        if chosen:
            self.started |= {key: len(self.failures[key]) for key in chosen}
            self.executor.start(self.store.folder, chosen)
