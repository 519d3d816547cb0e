"""A store: what it says of each run, that it loses nothing, claims, merging."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from studies import tiny_cells

from ebl.errors import InputError
from ebl.study import journal
from ebl.study import store as store_module
from ebl.study.cell import run_cell
from ebl.study.grid import with_settings
from ebl.study.journal import Tail, append, claimed, holder, readable
from ebl.study.merge import merge
from ebl.study.record import read_run
from ebl.study.store import make_store, mark, open_store, records
from ebl.train import train

RESULTS = Path(__file__).parent.parent / "results"


def made(folder: Path, data: Path, **settings):
    store = make_store(folder, "tiny", "for tests")
    cells = tiny_cells(data, **settings)
    store.add(cells)
    return store, [cell.key for cell in cells]


def by_key(store) -> dict:
    return {record.key: record for record in store.records()}


class KilledError(Exception):
    pass


def partly(store, key: str, epochs: int) -> None:
    """A run that was killed after some epochs."""

    def watch(event):
        if event.get("epoch") == epochs + 1:
            raise KilledError

    with pytest.raises(KilledError):
        train(store.config(key), store.run_folder(key), watch=watch)


def test_a_store_says_what_is_done_running_failed_and_waiting(tmp_path):
    store, (first, second, third, _) = made(tmp_path / "store", tmp_path)
    assert [r.status for r in store.records()] == ["waiting"] * 4
    run_cell(store.folder, first)
    store.tell("failed", second, error="no luck", retry=True)
    with store.claim(third) as mine:
        assert mine
        seen = by_key(store)
    assert [r.status for r in seen.values()] == ["done", "failed", "running", "waiting"]
    assert seen[second].error == "no luck"
    done = seen[first]
    result = json.loads((store.run_folder(first) / "result.json").read_text())
    lines = [json.loads(line) for line in (store.run_folder(first) / "metrics.jsonl").read_text().splitlines()]
    assert done.final == lines[-1] == result["final"]
    assert done.curves["test_error"] == [line["test_error"] for line in lines]
    assert done.config == json.loads((store.run_folder(first) / "config.json").read_text())
    assert (done.epoch, done.seconds, done.collapsed) == (2, result["seconds"], result["collapsed"])
    assert [r.status for r in store.records()] == ["done", "failed", "waiting", "waiting"]


def test_records_are_read_from_one_file_which_may_be_lost_cut_damaged_or_stale(tmp_path, monkeypatch):
    store, keys = made(tmp_path / "store", tmp_path)
    for key in keys[:3]:
        run_cell(store.folder, key)
    truth = {key: read_run(store.run_folder(key)) for key in keys[:3]}
    index = store.folder / "records.jsonl"
    whole = index.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "read_run", lambda folder: pytest.fail(f"{folder} was opened"))
        assert {key: by_key(store)[key] for key in truth} == truth
    for content in (None, whole[:-30], b"{not json}\n" + whole.replace(b'"index": 1', b'"index": 0', 1), b"\xff\xfe\n"):
        index.unlink() if content is None else index.write_bytes(content)
        assert {key: by_key(store)[key] for key in truth} == truth
        assert len(readable(index.read_bytes())) >= 3  # mended
    path = store.run_folder(keys[0]) / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "seconds": 12345.0}))
    assert by_key(store)[keys[0]].seconds == 12345.0
    shutil.rmtree(store.run_folder(keys[1]))
    assert by_key(store)[keys[1]].status == "waiting"


def test_a_damaged_run_is_shown_as_failed_and_hides_no_other(tmp_path):
    store, keys = made(tmp_path / "store", tmp_path)
    for key in keys[:3]:
        run_cell(store.folder, key)
    partly(store, keys[3], epochs=1)
    (store.folder / "records.jsonl").unlink()
    (store.run_folder(keys[0]) / "result.json").write_text("{")
    (store.run_folder(keys[1]) / "result.json").write_text('{"final": null}')
    (store.run_folder(keys[3]) / "metrics.jsonl").write_text("no json\n")
    first, second, third, fourth = store.records()
    assert [r.status for r in (first, second, third, fourth)] == ["failed", "failed", "done", "failed"]
    assert "result.json is damaged" in first.error
    assert f"remove {store.run_folder(keys[1])} to train it anew" in second.error
    assert "metrics.jsonl is damaged" in fourth.error
    assert [r.config for r in (first, fourth)] == [store.cells()[key]["config"] for key in (keys[0], keys[3])]


def test_a_plain_folder_of_runs_and_one_that_cannot_be_written_are_read_too(tmp_path):
    found = records(RESULTS)
    truth = {path.parent.name: json.loads(path.read_text())["final"] for path in RESULTS.glob("*/result.json")}
    assert {record.key: record.final for record in found} == truth
    with pytest.raises(InputError, match="holds no runs"):
        records(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        records(tmp_path / "nowhere")


def test_what_is_no_store_or_a_newer_versions_is_refused_in_a_line(tmp_path):
    with pytest.raises(InputError, match="not a study's store"):
        open_store(tmp_path)
    store, _ = made(tmp_path / "store", tmp_path)
    about = store.folder / "study.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": 2}))
    with pytest.raises(InputError, match=r"made by a newer version of ebl \(format 2, this one reads 1\): update ebl"):
        records(store.folder)
    about.write_text("{}")
    with pytest.raises(InputError, match="damaged"):
        open_store(store.folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds other things"):
        make_store(other, "tiny")
    with pytest.raises(InputError, match="Not a directory"):
        make_store(other / "letter.txt", "tiny")


def test_lines_of_many_writers_are_all_there_and_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)

    def write(who: int) -> None:
        for i in range(25):
            append(path, [{"who": who, "i": i, "long": "x" * 3000}])

    threads = [threading.Thread(target=write, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    seen = tail.news()
    for thread in threads:
        thread.join()
    seen += tail.news()
    assert sorted((line["who"], line["i"]) for line in seen) == [(who, i) for who in range(6) for i in range(25)]


def test_a_line_that_a_kill_cut_short_is_taken_away_and_not_read(tmp_path):
    path = tmp_path / "lines.jsonl"
    append(path, [{"a": 1}])
    tail = Tail(path)
    with path.open("a") as file:
        file.write('{"a": 2, "cut": ' + "x" * 200_000)
    assert tail.news() == []
    append(path, [{"a": 3}])
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'
    assert tail.news() == [{"a": 3}]


def test_a_full_disk_leaves_the_lines_that_were_there(tmp_path, monkeypatch):
    path = tmp_path / "lines.jsonl"
    append(path, [{"a": 1}])

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", full)
        with pytest.raises(InputError, match=r"the disk is full: lines\.jsonl could not be written; free some space"):
            append(path, [{"a": 2}])
    assert path.read_text() == '{"a": 1}\n'


def test_a_claim_is_held_by_one_and_ends_with_its_process_however_that_ends(tmp_path):
    path = tmp_path / "claim"
    assert holder(path) is None
    with claimed(path) as mine:
        assert mine
        assert holder(path)["pid"] == os.getpid()
    assert holder(path) is None
    code = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, 2); print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    with claimed(path) as mine:
        assert not mine
    assert holder(path) is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert holder(path) is None


def test_a_cell_that_is_done_or_in_other_hands_is_left_alone(tmp_path):
    store, (first, second, *_) = made(tmp_path / "store", tmp_path)
    run_cell(store.folder, first)
    before = (store.folder / "events.jsonl").read_text()
    run_cell(store.folder, first)
    with store.claim(second):
        run_cell(store.folder, second)
    assert (store.folder / "events.jsonl").read_text() == before
    with pytest.raises(InputError, match="not a study's store"):
        run_cell(tmp_path, first)


def test_a_key_that_is_no_cell_fails_with_a_line(tmp_path):
    store, _ = made(tmp_path / "store", tmp_path)
    run_cell(store.folder, "nothing")
    events = readable((store.folder / "events.jsonl").read_bytes())
    assert "is no cell of" in events[-1]["error"]


def test_asking_again_for_the_same_runs_adds_nothing_and_for_more_adds_those(tmp_path):
    store, keys = made(tmp_path / "store", tmp_path)
    cells = tiny_cells(tmp_path)
    store.add(cells)
    assert len((store.folder / "cells.jsonl").read_text().splitlines()) == 4
    more = tiny_cells(tmp_path, "grid: {seed: [0, 5], rule: [cl, c-ep]}")
    store.add(more)
    assert list(store.cells()) == [*keys, *(c.key for c in more if c.config.seed == 5)]


def test_a_run_goes_on_with_the_config_it_was_begun_with(tmp_path):
    store, (key, *_) = made(tmp_path / "store", tmp_path)
    store.run_folder(key).mkdir(parents=True)
    begun = {**store.cells()[key]["config"], "residual_warning": 0.5}
    (store.run_folder(key) / "config.json").write_text(json.dumps(begun))
    store.add(with_settings(tiny_cells(tmp_path), {"device": "cuda"}))  # one key, wherever it is made
    run_cell(store.folder, key)
    assert "it was begun on cpu and goes on there" in store.events.read_text()
    assert by_key(store)[key].status == "done"
    assert by_key(store)[key].config["residual_warning"] == 0.5


def test_merging_copies_what_is_missing_overwrites_nothing_and_can_be_repeated(tmp_path):
    here, keys = made(tmp_path / "here", tmp_path)
    there, _ = made(tmp_path / "there", tmp_path)
    run_cell(here.folder, keys[0])
    run_cell(there.folder, keys[0])
    run_cell(there.folder, keys[1])
    partly(here, keys[1], epochs=1)  # begun here, done there
    partly(there, keys[2], epochs=1)  # begun there
    mine = (here.run_folder(keys[0]) / "result.json").read_bytes()
    begun = (here.run_folder(keys[1]) / "metrics.jsonl").read_bytes()
    with there.claim(keys[2]):
        assert merge(here.folder, [there.folder]) == {"already here": 1, "done": 1, "in use": 1}
    assert merge(here.folder, [there.folder]) == {"already here": 2, "begun": 1}
    assert (here.run_folder(keys[0]) / "result.json").read_bytes() == mine
    assert [r.status for r in here.records()] == ["done", "done", "waiting", "waiting"]
    aside = list((here.folder / "set-aside").iterdir())
    assert [(p / "metrics.jsonl").read_bytes() for p in aside] == [begun]
    assert by_key(here)[keys[2]].epoch == 1
    run_cell(here.folder, keys[2])
    run_cell(there.folder, keys[2])
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        assert (here.run_folder(keys[2]) / name).read_bytes() == (there.run_folder(keys[2]) / name).read_bytes()
    assert merge(tmp_path / "new", [here.folder, there.folder]) == {"done": 3, "already here": 3}
    assert [r.status for r in records(tmp_path / "new")] == ["done", "done", "done", "waiting"]
    assert open_store(tmp_path / "new").about["name"] == "tiny"


def test_merging_brings_failures_with_their_tracebacks_once(tmp_path):
    here, keys = made(tmp_path / "here", tmp_path)
    there, _ = made(tmp_path / "there", tmp_path)

    def fail(store, key, error, attempt=1, time="2026-01-01T00:00:00+00:00"):
        append(store.events, [{"event": "failed", "key": key, "attempt": attempt, "error": error, "retry": True, "time": time}])
        with (store.folder / "failures" / f"{key}.txt").open("a") as file:
            file.write(f"attempt {attempt}, {time}\nTraceback\n{error}\n\n")

    fail(there, keys[0], "no luck there")
    fail(there, keys[0], "no luck again", attempt=2, time="2026-01-02T00:00:00+00:00")
    partly(there, keys[0], epochs=1)
    fail(there, keys[1], "no machine")
    there.tell("again", keys[1], after=mark(there.failures()[keys[1]]))
    fail(there, keys[2], "failed there, done here")
    run_cell(here.folder, keys[2])
    fail(there, keys[3], "failed there on Thursday")
    fail(here, keys[3], "failed here on Friday", time="2026-01-02T00:00:00+00:00")
    fail(here, keys[0], "no luck here", time="2026-01-01T12:00:00+00:00")
    assert merge(here.folder, [there.folder]) == {"begun": 1, "failed": 1}
    seen = {key: (record.status, record.error) for key, record in by_key(here).items()}
    assert seen == {
        keys[0]: ("failed", "no luck again"),
        keys[1]: ("failed", "no machine"),
        keys[2]: ("done", ""),
        keys[3]: ("failed", "failed here on Friday"),
    }
    kept = (here.folder / "failures" / f"{keys[0]}.txt").read_text()
    assert [kept.count(f"Traceback\nno luck {word}") for word in ("here", "there", "again")] == [1, 1, 1]
    before = {path: path.read_bytes() for path in (here.events, *(here.folder / "failures").iterdir())}
    assert len(before) == 5
    assert merge(here.folder, [there.folder]) == {"already here": 1}
    assert {path: path.read_bytes() for path in before} == before
    run_cell(here.folder, keys[1])
    merge(here.folder, [there.folder])
    assert by_key(here)[keys[1]].status == "done"


def test_a_run_that_ends_while_it_is_merged_stays_as_it_is(tmp_path, monkeypatch):
    here, (key, *_) = made(tmp_path / "here", tmp_path)
    there, _ = made(tmp_path / "there", tmp_path)
    run_cell(there.folder, key)
    real = store_module.claimed

    def claimed(path):
        if path.parent == there.folder / "claims" and not here.is_done(key):
            run_cell(here.folder, key)  # by another process, just before the target's claim
            mine.append((here.run_folder(key) / "result.json").stat().st_ino)
        return real(path)

    mine: list[int] = []
    monkeypatch.setattr(store_module, "claimed", claimed)
    assert merge(here.folder, [there.folder]) == {"already here": 1}
    assert mine == [(here.run_folder(key) / "result.json").stat().st_ino]
    assert not (here.folder / "set-aside").exists()


@pytest.mark.parametrize("name", ["nothing", "folder"])
def test_merging_refuses_what_is_no_store(tmp_path, name):
    store, _ = made(tmp_path / "store", tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="not a study's store"):
        merge(store.folder, [tmp_path / name])
    with pytest.raises(InputError, match="cannot be merged into itself"):
        merge(store.folder, [store.folder])
