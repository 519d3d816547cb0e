"""Running a study: what is retried, what is not, that nothing is lost, on one executor and for real."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from studies import Inline, tiny_cells, tiny_yaml

from ebl import atomic
from ebl.data import SPECS
from ebl.errors import InputError
from ebl.study import cell as cell_module
from ebl.study import estimate, local
from ebl.study.cell import run_cell
from ebl.study.grid import read_study
from ebl.study.journal import readable
from ebl.study.local import Local, OnLocal
from ebl.study.runner import check_data, run_study
from ebl.study.store import make_store


def events(store) -> list[dict]:
    return readable(store.events.read_bytes())


def counts(store, kind: str) -> Counter:
    return Counter(event["key"] for event in events(store) if event["event"] == kind)


def test_every_cell_is_done_once_and_a_second_call_and_an_extension_train_only_what_is_new(tmp_path):
    cells = tiny_cells(tmp_path)
    store = make_store(tmp_path / "store", "tiny")
    first = Inline()
    outcome = run_study(store, cells, first, poll=0)
    assert (sorted(outcome.done), outcome.failed) == (sorted(c.key for c in cells), {})
    assert first.begun == [c.key for c in cells]
    assert first.stopped
    again, more = Inline(), Inline(slots=None)
    run_study(store, cells, again, poll=0)
    assert again.begun == []
    wider = tiny_cells(tmp_path, "grid: {seed: [0, 1, 2], rule: [cl, c-ep]}")
    run_study(store, wider, more, poll=0)
    assert more.begun == [c.key for c in wider if c.config.seed == 2]
    assert set(counts(store, "done").values()) == {1}


def test_a_failed_cell_is_retried_so_many_times_keeps_its_tracebacks_and_does_not_stop_the_others(tmp_path, monkeypatch):
    cells = tiny_cells(tmp_path)
    store = make_store(tmp_path / "store", "tiny")
    tries: Counter = Counter()
    real = cell_module.train

    def train(config, *args, **options):
        tries[config.rule, config.seed] += 1
        if config.rule == "cl" and (config.seed == 0 or tries[config.rule, config.seed] < 3):
            raise RuntimeError(f"no luck\nin try {tries[config.rule, config.seed]}")
        return real(config, *args, **options)

    monkeypatch.setattr(cell_module, "train", train)
    outcome = run_study(store, cells, Inline(), retries=2, poll=0)
    assert tries == {("cl", 0): 3, ("cl", 1): 3, ("c-ep", 0): 1, ("c-ep", 1): 1}
    assert outcome.failed == {cells[0].key: "RuntimeError: no luck in try 3"}
    assert len(outcome.done) == 3
    kept = (store.folder / "failures" / f"{cells[0].key}.txt").read_text()
    assert [kept.count(f"no luck\nin try {i}") for i in (1, 2, 3)] == [1, 1, 1]
    assert "Traceback" in kept
    assert [r.status for r in store.records()] == ["failed", "done", "done", "done"]
    monkeypatch.setattr(cell_module, "train", real)
    assert run_study(store, cells, Inline(), retries=0, poll=0).failed == {}  # asked again: tried again
    assert [r.status for r in store.records()] == ["done"] * 4


def test_what_no_retry_can_mend_is_not_retried(tmp_path):
    cells = tiny_cells(
        tmp_path, "grid: {rule: [c-ep, n-ep]}\noverrides: [{match: {rule: n-ep}, set: {optimiser.rates: 1.0e+30}}]"
    )
    store = make_store(tmp_path / "store", "tiny")
    outcome = run_study(store, cells, Inline(), retries=5, poll=0)
    assert outcome.done == [cells[0].key]
    assert "training diverged" in outcome.failed[cells[1].key]
    assert counts(store, "failed")[cells[1].key] == 1


def test_a_collapsed_run_is_a_result_that_is_marked_and_never_tried_again(tmp_path):
    cells = tiny_cells(tmp_path, "grid: {rule: [c-ep]}", **{"epochs": 4, "optimiser.rates": 1e-12, "optimiser.rate_min": 0})
    store = make_store(tmp_path / "store", "tiny")
    assert run_study(store, cells, Inline(), poll=0).done == [cells[0].key]
    (record,) = store.records()
    assert (record.status, record.collapsed, record.epoch) == ("done", True, 4)
    again = Inline()
    run_study(store, cells, again, poll=0)
    assert again.begun == []
    (done,) = (event for event in events(store) if event["event"] == "done")
    assert done["collapsed"] is True
    assert any("collapse" in event["message"] for event in events(store) if event["event"] == "warning")


def test_a_full_disk_ends_the_study_with_a_line_and_the_same_call_goes_on(tmp_path, monkeypatch):
    cells = tiny_cells(tmp_path)
    store = make_store(tmp_path / "store", "tiny")
    real, calls = os.fsync, []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) > 40:
            raise OSError(28, os.strerror(28))
        real(fd)

    executor = Inline()
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", fsync)
        with pytest.raises(InputError, match=r"the disk is full: .* free some space, then go on"):
            run_study(store, cells, executor, poll=0)
    assert executor.stopped
    assert counts(store, "failed") == {}
    before = len(counts(store, "done"))
    assert before < 4
    assert len(run_study(store, cells, Inline(), poll=0).done) == 4
    undisturbed = make_store(tmp_path / "undisturbed", "tiny")
    run_study(undisturbed, cells, Inline(), poll=0)
    for cell in cells:
        for name in ("metrics.jsonl", "checkpoint.safetensors"):
            assert (store.run_folder(cell.key) / name).read_bytes() == (undisturbed.run_folder(cell.key) / name).read_bytes()


def test_workers_that_are_lost_count_as_failures_and_silent_ones_do_not_go_round_for_ever(tmp_path):
    cells = tiny_cells(tmp_path, "grid: {rule: [c-ep, n-ep]}")
    store = make_store(tmp_path / "store", "tiny")

    def lost(folder, key):
        if key == cells[0].key:
            raise ConnectionError("the machine is gone")

    outcome = run_study(store, cells, Inline(work=lost), retries=1, poll=0)
    assert outcome.failed == {cells[0].key: "the machine is gone", cells[1].key: "its worker ended without a word"}
    assert counts(store, "failed")[cells[0].key] == 2


def test_a_failed_cell_that_will_be_tried_again_is_waiting_until_the_last_attempt_has_failed(tmp_path):
    cells = tiny_cells(tmp_path, "grid: {rule: [c-ep, n-ep]}")
    store, seen = make_store(tmp_path / "store", "tiny"), []

    def lost(folder, key):
        seen.append([(record.status, record.error) for record in store.records()])
        if key == cells[0].key:
            raise ConnectionError("the machine is gone")
        run_cell(folder, key)

    run_study(store, cells, Inline(work=lost), retries=1, poll=0)
    at_first, again = ("waiting", ""), ("waiting", "the machine is gone")
    assert seen == [[at_first, at_first], [again, at_first], [again, ("done", "")]]
    assert [(record.status, record.error) for record in store.records()] == [("failed", "the machine is gone"), ("done", "")]


def test_a_cell_in_other_hands_is_waited_for_and_taken_over_when_those_let_go(tmp_path, monkeypatch):
    from ebl.study import runner

    monkeypatch.setattr(runner, "LOOK", 0.02)
    cells = tiny_cells(tmp_path, "grid: {rule: [c-ep, n-ep]}")
    store = make_store(tmp_path / "store", "tiny")
    executor = Inline()
    seen = []
    with store.claim(cells[0].key) as mine:
        assert mine
        thread = threading.Thread(target=lambda: seen.append(run_study(store, cells, executor, poll=0.01)))
        thread.start()
        until(lambda: store.is_done(cells[1].key))
        time.sleep(0.1)
        assert thread.is_alive()
        assert executor.begun == [cells[1].key]
    thread.join(20)
    assert sorted(seen[0].done) == sorted(c.key for c in cells)
    assert executor.begun == [cells[1].key, cells[0].key]


def test_progress_tells_the_runs_that_somebody_works_on_from_those_that_a_queue_keeps(tmp_path, monkeypatch):
    from ebl.study import runner

    monkeypatch.setattr(runner, "LOOK", -1)
    cells = tiny_cells(tmp_path, "grid: {rule: [c-ep, n-ep]}")
    store = make_store(tmp_path / "store", "tiny")
    first, second = (cell.key for cell in cells)

    class Queue(Inline):
        held = None

        def start(self, store_folder, keys):
            self.queued = list(keys)
            self.held = store.claim(first)
            assert self.held.__enter__()

        def ended(self):
            if self.held is None or not told or not told[-1]["epochs"]:
                return super().ended()
            self.held.__exit__(None, None, None)
            self.held = None
            super().start(store.folder, self.queued)
            return super().ended()

    told: list[dict] = []
    run_study(store, cells, Queue(slots=None), watch=lambda e: told.append(e) if e["event"] == "progress" else None, poll=0)
    busy = next(event for event in told if event["epochs"])
    assert busy == {"event": "progress", "epochs": {first: 0, second: 0}, "running": [first]}
    assert told[-1]["running"] == []


def test_all_missing_datasets_are_named_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("EBL_DATA", str(tmp_path))
    with pytest.raises(InputError) as caught:
        check_data(read_study("table2").cells)
    said = str(caught.value)
    assert said.startswith(
        f"mnist, cifar10, cifar100 not in {tmp_path}: run `ebl data fetch mnist && ebl data fetch cifar10 && "
    )
    check_data([*read_study("quick").cells, *tiny_cells(tmp_path)])


def test_an_estimate_counts_the_operations_of_an_epoch_and_its_test(tmp_path):
    assert set(estimate.SIZES) == set(SPECS)
    (cell,) = tiny_cells(tmp_path, "grid: {seed: [0]}")  # 4 hidden units, 2 outputs, T=5, K=3; 4 batches of 10, 10 for the test
    step, test = 2 * 2 * 10 * (4 * 2) * (5 + 2 * 3), 2 * 2 * 10 * (4 * 2) * 5
    assert estimate._epoch_flops(cell.config) == 4 * step + test


def test_runs_are_spread_over_the_gpus_and_over_the_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    one_each, shared = OnLocal(Local(), "cuda"), OnLocal(Local(processes=6), "cuda")
    assert (one_each.slots, shared.slots) == (2, 6)
    given = []
    for i in range(6):
        given.append(shared.least_used())
        shared.workers[str(i)] = SimpleNamespace(gpu=given[-1])
    assert Counter(given) == {"4": 3, "6": 3}
    del shared.workers["1"], shared.workers["3"]
    assert shared.least_used() == given[1] == given[3]
    monkeypatch.setattr(local, "_cores", lambda: 8)
    assert OnLocal(Local()).slots == 8
    assert OnLocal(Local(threads=3)).slots == 2
    assert OnLocal(Local(threads=16)).slots == 1


# for real: processes


@pytest.mark.slow
def test_runs_that_share_a_gpu_are_fresh_processes_side_by_side(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    cells = tiny_cells(tmp_path, "grid: {seed: [0, 1]}")  # on the CPU, where those of a GPU would be
    executor, seen = OnLocal(Local(processes=2), "cuda"), []
    assert executor.context.get_start_method() == "spawn"
    watch = lambda event: seen.append([worker.gpu for worker in executor.workers.values()])  # noqa: E731
    outcome = run_study(make_store(tmp_path / "store", "tiny"), cells, executor, watch=watch)
    assert (sorted(outcome.done), outcome.failed) == (sorted(c.key for c in cells), {})
    assert ["0", "0"] in seen


def test_killed_workers_are_started_again_and_two_studies_share_one_store_each_cell_done_once(tmp_path):
    cells = tiny_cells(tmp_path, "grid: {seed: [0, 1, 2], rule: [cl, c-ep]}", epochs=15)
    store = make_store(tmp_path / "store", "tiny")
    killed, outcomes = [], []

    def kill_the_first(event):
        if event["event"] == "claimed" and not killed:
            killed.append(event["key"])
            os.kill(event["pid"], signal.SIGKILL)

    threads = [
        threading.Thread(target=lambda w=w: outcomes.append(run_study(store, cells, OnLocal(Local(1)), watch=w, poll=0.01)))
        for w in (kill_the_first, None)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [(len(o.done), o.failed) for o in outcomes] == [(6, {}), (6, {})]
    assert counts(store, "done") == {c.key: 1 for c in cells}
    assert counts(store, "claimed") == {c.key: 1 + (c.key in killed) for c in cells}
    (failed,) = (event for event in events(store) if event["event"] == "failed")
    assert failed["key"] == killed[0]
    assert "killed by SIGKILL" in failed["error"]
    alone = make_store(tmp_path / "alone", "tiny")
    run_cell_of(alone, cells, killed[0])
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        assert (store.run_folder(killed[0]) / name).read_bytes() == (alone.run_folder(killed[0]) / name).read_bytes()


def run_cell_of(store, cells, key: str) -> None:
    store.add(cells)
    run_cell(store.folder, key)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_workers_end_at_once_with_the_study_and_the_same_command_goes_on(tmp_path, how):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path, "grid: {seed: [0, 1, 2]}", epochs=5000))
    command = [sys.executable, "-m", "ebl", "study", "run", "mine.yaml", "--processes", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    store = tmp_path / "runs" / "studies" / "mine"
    claims = lambda: [e for e in readable((store / "events.jsonl").read_bytes()) if e["event"] == "claimed"]  # noqa: E731
    until(lambda: (store / "events.jsonl").exists() and len(claims()) == 2)
    until(lambda: all((store / "runs" / e["key"] / "checkpoint.safetensors").exists() for e in claims()))
    process.send_signal(how)
    _, said = process.communicate(timeout=20)
    until(lambda: not any(alive(e["pid"]) for e in claims()), seconds=5)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert said.strip() == "ebl: interrupted; the same command goes on where it was"
    assert len(claims()) == 2  # what was waiting was not begun
    kept = make_store(store, "mine")
    key = claims()[0]["key"]
    assert kept.records()[0].epoch >= 1
    assert kept.holder(key) is None
    with kept.claim(key) as mine:
        assert mine


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
