"""Training: what it writes, that it learns, that a kill changes nothing, what it warns of."""

import dataclasses
import errno
import json
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import ebl
from ebl import atomic
from ebl.atomic import read_lines, write_atomically
from ebl.checkpoint import load_checkpoint, save_checkpoint
from ebl.config import Model, Optimiser, to_json
from ebl.data import Dataset, Split, load
from ebl.errors import InputError
from ebl.presets import preset
from ebl.relax import Schedule
from ebl.train import _Run, load_run, train

SMALL = dataclasses.replace(
    preset("quick"),
    rule="r-ep",
    epochs=3,
    batch_size=16,
    model=Model(hidden=(4, 6), gains=(0.8,)),
    optimiser=Optimiser(rates=(0.1, 0.06, 0.03), weight_decay=1e-4),
    free=Schedule(8, 1.4),
    nudged=Schedule(5, 1.4),
    augment=True,
)


def few(train: int = 40, test: int = 20) -> Dataset:
    data = load("fashion-mini")
    cut = [Split(s.images[:n], s.labels[:n]) for s, n in ((data.train, train), (data.test, test))]
    return dataclasses.replace(data, train=cut[0], test=cut[1])


def contents(out: Path) -> dict[str, bytes]:
    """All that must not depend on kills: config, data, metrics, the checkpoint."""
    names = ("config.json", "data.json", "metrics.jsonl", "checkpoint.safetensors")
    return {name: (out / name).read_bytes() for name in names}


def test_a_run_folder_holds_config_metrics_times_checkpoint_and_result(tmp_path):
    result = train(SMALL, tmp_path / "run", dataset=few())
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "config.json",
        "data.json",
        "metrics.jsonl",
        "times.jsonl",
        "checkpoint.safetensors",
        "result.json",
    }
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert result["final"] == lines[-1]
    assert result["best"]["test_error"] == min(line["test_error"] for line in lines)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    assert {"config", "commit", "hardware", "seconds", "version", "torch", "collapsed"} <= set(result)
    _, net = load_run(tmp_path / "run")
    saved, header = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    assert torch.equal(net.weights[1], saved["weights.1"])
    assert (header["epoch"], header["step"]) == (3, 0)
    assert train(SMALL, tmp_path / "run", dataset=few(), resume=True) == result  # done: nothing is trained again


def test_sgd_is_the_papers_with_cosine_rates_per_layer():
    run = _Run(dataclasses.replace(SMALL, rule="c-ep", augment=False), few(), torch.device("cpu"))
    x, y = next(run.training.epoch(0))
    net = run.net
    before = [p.detach().clone() for p in net.parameters()]
    velocity = [torch.zeros_like(p) for p in before]
    for step in range(2):
        for group, rate in zip(run.optimiser.param_groups, (0.1, 0.06, 0.03), strict=True):
            group["lr"] = rate
        run.stepper.carried = None
        run.stepper.step(x, y, SMALL.free.iterations, torch.Generator())
        for i, (p, v) in enumerate(zip(before, velocity, strict=True)):
            g = list(net.parameters())[i].grad + 1e-4 * p
            v.mul_(0.9).add_(g) if step else v.copy_(g)
            p -= (0.1, 0.06, 0.03)[i % 3] * v
    for p, q in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(p.detach(), q)
    run.epoch = 1
    fall = (1 + math.cos(math.pi / 3)) / 2
    assert run.epoch_rates() == pytest.approx([2e-6 + (r - 2e-6) * fall for r in (0.1, 0.06, 0.03)])


def test_the_state_is_carried_over_and_reset_when_the_batch_size_changes():
    run = _Run(dataclasses.replace(SMALL, rule="c-ep"), few(), torch.device("cpu"))  # batches of 16, 16, 8
    starts, ends = [], []
    import ebl.steps as module

    real = module.estimate_gradients

    def spy(*args, start, **options):
        estimate = real(*args, start=start, **options)
        starts.append(start)
        ends.append(estimate.state)
        return estimate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "estimate_gradients", spy)
        for x, y in run.training.epoch(0):
            run.stepper.step(x, y, SMALL.free.iterations, torch.Generator())
    assert starts[0] is None
    assert starts[1] is ends[0]
    assert starts[2] is None


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "r-ep"},
        {"rule": "tbp"},
        {"rule": "cl"},
        {"model": Model(hidden=(8,) * 5, gains=(0.8,)), "pad": 2, "optimiser": Optimiser(rates=(0.05,))},
        {"model": Model("dense", (21, 13), gains=(0.8,)), "val": 10},
        {"optimiser": Optimiser(rates=(0.05,), momentum=0.0), "start": "zeros"},
    ],
    ids=["r-ep", "tbp", "cl", "deep", "dense", "no momentum"],
)
def test_stopped_anywhere_and_resumed_a_run_ends_byte_for_byte_the_same(tmp_path, change):
    config = dataclasses.replace(SMALL, **change)
    train(config, tmp_path / "whole", dataset=few())

    def stopper(after: int):
        seen = []

        def watch(event):
            seen.append(event)
            if len(seen) == after:
                raise KilledError

        return watch

    for after in (1, 2, 4, 3, 5, 1):
        try:
            train(config, tmp_path / "cut", dataset=few(), resume=True, watch=stopper(after), checkpoint_seconds=0)
        except KilledError:
            continue
    train(config, tmp_path / "cut", dataset=few(), resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


SCRIPT = """
import dataclasses, os, signal, stat, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from test_train import SMALL, few
from ebl.train import train
{sabotage}
train(SMALL, {out!r}, dataset=few(), resume=True, checkpoint_seconds=0)
"""
IN_THE_WRITE = """
real, calls = os.fsync, []
def fsync(fd):
    calls.append(fd)
    if len(calls) == {call}:
        os.ftruncate(fd, os.fstat(fd).st_size // 2) if not stat.S_ISDIR(os.fstat(fd).st_mode) else None
        os.kill(os.getpid(), signal.SIGKILL)
    real(fd)
os.fsync = fsync
"""


def run_script(out: Path, sabotage: str = "", **options) -> subprocess.Popen:
    code = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parent), out=str(out), sabotage=sabotage)
    return subprocess.Popen([sys.executable, "-c", code], **options)


def test_killed_inside_checkpoint_writes_and_at_random_a_run_ends_byte_for_byte_the_same(tmp_path):
    train(SMALL, tmp_path / "whole", dataset=few())
    out = tmp_path / "killed"
    for call in (1, 3, 8, 9, 11, 14):  # half a config, half a data.json; then in the middle of later files and folders
        process = run_script(out, IN_THE_WRITE.format(call=call))
        assert process.wait(60) == -signal.SIGKILL
    for epochs in (1, 2):  # killed in training, as soon as so many epochs are told of
        process = run_script(out)
        while process.poll() is None and len(read_lines(out / "metrics.jsonl")) < epochs:
            time.sleep(0.01)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    assert run_script(out).wait(120) == 0
    assert contents(out) == contents(tmp_path / "whole")
    assert not list(out.glob(".*"))


def test_loaded_tensors_start_where_fresh_ones_do(tmp_path):
    save_checkpoint(tmp_path / "c", {"a": torch.ones(3), "b": torch.ones(5, 7), "c": torch.ones(2, 3, 5, 5)}, {})
    tensors, _ = load_checkpoint(tmp_path / "c")
    assert all(t.data_ptr() % 64 == 0 for t in tensors.values())


@pytest.mark.parametrize("calls_before", [14, 15, 16, 17])
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch, calls_before):
    train(dataclasses.replace(SMALL, epochs=3), tmp_path / "whole", dataset=few())
    calls = []

    def full(fd):
        calls.append(fd)
        if len(calls) > calls_before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(ebl.InputError, match=r"disk is full.*--resume"):
        train(SMALL, tmp_path / "full", dataset=few(), checkpoint_seconds=0)
    monkeypatch.undo()
    assert not list((tmp_path / "full").glob(".*"))
    load_checkpoint(tmp_path / "full" / "checkpoint.safetensors")
    train(SMALL, tmp_path / "full", dataset=few(), resume=True)
    assert contents(tmp_path / "full") == contents(tmp_path / "whole")


def test_diverging_training_stops_with_what_happened_and_what_to_try(tmp_path):
    config = dataclasses.replace(SMALL, optimiser=Optimiser(rates=(1e30,)))
    with pytest.raises(ebl.InputError, match=r"(nan|inf) at epoch 1, step \d of 3.*smaller --optimiser.rates"):
        train(config, tmp_path / "run", dataset=few())


def test_folders_of_other_runs_are_left_alone(tmp_path):
    train(SMALL, tmp_path / "run", dataset=few())
    before = contents(tmp_path / "run")
    with pytest.raises(ebl.InputError, match="--resume"):
        train(SMALL, tmp_path / "run", dataset=few())
    with pytest.raises(ebl.InputError, match="rule r-ep there, c-ep now"):
        train(dataclasses.replace(SMALL, rule="c-ep"), tmp_path / "run", dataset=few(), resume=True)
    assert contents(tmp_path / "run") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(ebl.InputError, match="other files"):
        train(SMALL, tmp_path / "mine", dataset=few())
    with pytest.raises(ebl.InputError, match="is a file"):
        train(SMALL, tmp_path / "mine" / "thesis.tex", dataset=few())


def test_bad_checkpoints_are_refused(tmp_path):
    train(SMALL, tmp_path / "run", dataset=few())
    path = tmp_path / "run" / "checkpoint.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(ebl.InputError, match="damaged or cut short"):
        load_run(tmp_path / "run")
    path.write_bytes(good)
    tensors, header = load_checkpoint(path)
    save_checkpoint(path, {**tensors, "weights.1": torch.zeros(2)}, header)
    with pytest.raises(ebl.InputError, match=r"another model: weights.1 needs shape \(6, 4, 3, 3\), the file has shape \(2,\)"):
        load_run(tmp_path / "run")
    del tensors["biases.0"]
    save_checkpoint(path, tensors, header)
    with pytest.raises(ebl.InputError, match="no such tensor"):
        load_run(tmp_path / "run")
    save_checkpoint(path, tensors, {**header, "format": 99})
    with pytest.raises(ebl.InputError, match="format 99"):
        load_run(tmp_path / "run")
    path.unlink()
    with pytest.raises(ebl.InputError, match="does not exist"):
        load_run(tmp_path / "run")
    with pytest.raises(ebl.InputError, match="not a run folder"):
        load_run(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def denied(fd):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(atomic.os, "fsync", denied)
    with pytest.raises(ebl.InputError, match="Permission denied"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


STUCK = dataclasses.replace(
    SMALL, rule="c-ep", epochs=5, model=Model(hidden=(4, 6), gains=(1e-9,)), optimiser=Optimiser(rates=(1e-12,), rate_min=0.0)
)


def balanced() -> Dataset:
    data = load("fashion-mini")
    rows = [torch.cat([(s.labels == c).nonzero()[:4, 0] for c in range(10)]) for s in (data.train, data.test)]
    splits = [Split(s.images[r], s.labels[r]) for s, r in zip((data.train, data.test), rows, strict=True)]
    return dataclasses.replace(data, train=splits[0], test=splits[1])


def test_a_collapse_is_a_warning_and_a_result(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="ebl"):
        result = train(STUCK, tmp_path / "run", dataset=balanced())
    assert [r.getMessage() for r in caplog.records if "collapse" in r.getMessage()] != []
    assert "90.00 %" in caplog.text
    assert "--stop-on-collapse" in caplog.text
    assert result["collapsed"]
    assert result["final"]["epoch"] == 5
    stopped = train(dataclasses.replace(STUCK, stop_on_collapse=True), tmp_path / "stopped", dataset=balanced())
    assert stopped["collapsed"]
    assert stopped["final"]["epoch"] == 3


def test_an_unsettled_free_phase_is_a_warning_with_a_remedy(tmp_path, caplog):
    config = dataclasses.replace(SMALL, free=Schedule(2), epochs=2, start="zeros")
    with caplog.at_level(logging.WARNING, logger="ebl"):
        train(config, tmp_path / "run", dataset=few())
    warnings = [r.getMessage() for r in caplog.records if "settle" in r.getMessage()]
    assert len(warnings) == 1
    assert "--free.iterations (now 2) or --omega 1.5" in warnings[0]


def test_free_phases_that_take_all_they_may_and_stay_above_the_wanted_residual_are_told_of(tmp_path, caplog):
    wants = dataclasses.replace(SMALL, epochs=1, start="zeros", residual_warning=1.0, settle=1e-9)
    with caplog.at_level(logging.WARNING, logger="ebl"):
        train(dataclasses.replace(wants, free=Schedule(40, 1.4)), tmp_path / "may", dataset=few())  # may take more yet
        assert not caplog.records
        train(wants, tmp_path / "run", dataset=few())
    (told,) = [r.getMessage() for r in caplog.records]
    assert "above 1e-09; use more --free.iterations (now 8)" in told
    assert "--omega" not in told  # it is over-relaxed already


def test_what_a_new_run_is_refused_for_does_not_end_one_that_began(tmp_path):
    """As runs made by an earlier version may be."""
    rising = dataclasses.replace(SMALL, epochs=1, optimiser=Optimiser(rates=(1e-6,)))
    with pytest.raises(InputError, match=r"optimiser.rate_min = 2e-06: rates fall to it from 1e-06"):
        train(rising, tmp_path / "new")
    began = tmp_path / "began"
    began.mkdir()
    (began / "config.json").write_text(to_json(rising))
    assert train(rising, began, resume=True)["final"]["epoch"] == 1
    assert load_run(began)[0] == rising


def test_a_layer_that_saturates_is_a_warning_once(tmp_path, caplog):
    model = dataclasses.replace(SMALL.model, gains=(0.8, 4.0, 4.0))  # the layers above drive each other up
    config = dataclasses.replace(
        SMALL, epochs=2, model=model, optimiser=Optimiser(rates=(1e-6,), rate_min=0.0), residual_warning=1e9
    )
    with caplog.at_level(logging.WARNING, logger="ebl"):
        result = train(config, tmp_path / "run", dataset=few())
    shares = result["final"]["saturation"]
    assert max(shares) > 0.5
    (told,) = [r.getMessage() for r in caplog.records]
    assert told.startswith(f"layer {shares.index(max(shares)) + 1} saturates: {100 * max(shares):.0f} % of its units")


@pytest.mark.slow
def test_c_ep_learns_the_embedded_data(tmp_path):
    config = dataclasses.replace(preset("quick"), epochs=1)
    result = train(config, tmp_path / "run")
    assert result["final"]["test_error"] < 0.25
    assert not result["collapsed"]


def test_results_do_not_depend_on_the_test_batch_size(tmp_path):
    a = train(dataclasses.replace(SMALL, epochs=1), tmp_path / "a", dataset=few())
    b = train(dataclasses.replace(SMALL, epochs=1, test_batch_size=7), tmp_path / "b", dataset=few())
    assert a["final"]["test_cost"] == pytest.approx(b["final"]["test_cost"], rel=1e-5)


def test_damaged_run_files_are_named(tmp_path):
    train(SMALL, tmp_path / "run", dataset=few())
    out = tmp_path / "run"
    (out / "result.json").write_text("{}")
    with pytest.raises(ebl.InputError, match=r"result.json is damaged"):
        train(SMALL, out, dataset=few(), resume=True)
    (out / "result.json").unlink()
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    for text, said in (
        ("".join(lines[:1]), "lost epochs"),
        ("", "lost epochs"),
        ("garbage\n", "metrics.jsonl is damaged"),
    ):
        (out / "metrics.jsonl").write_text(text)
        with pytest.raises(ebl.InputError, match=said):
            train(SMALL, out, dataset=few(), resume=True)
    (out / "metrics.jsonl").write_text("".join(lines))
    (out / "checkpoint.safetensors").rename(out / "moved")
    with pytest.raises(ebl.InputError, match=r"checkpoint.safetensors is gone"):
        train(SMALL, out, dataset=few(), resume=True)
    (out / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ebl.InputError, match=r"config.json cannot be read"):
        load_run(out)


def test_a_run_folder_is_for_one_process_at_a_time(tmp_path):
    def meanwhile(event):
        if event["epoch"] == 2:
            with pytest.raises(ebl.InputError, match="in use by another process"):
                train(SMALL, tmp_path / "run", dataset=few(), resume=True)

    train(SMALL, tmp_path / "run", dataset=few(), watch=meanwhile)


def test_wrong_data_are_refused_before_anything_is_written(tmp_path):
    data = few()
    wrong = dataclasses.replace(data, train=Split(data.train.images, data.train.labels + 5))
    with pytest.raises(ebl.InputError, match="out of range"):
        train(SMALL, tmp_path / "run", dataset=wrong)
    assert not (tmp_path / "run").exists()


def test_seconds_count_every_part_of_a_resumed_run(tmp_path):
    def stop(event):
        if event["epoch"] == 2 and event.get("step") == 2:
            raise KilledError

    with pytest.raises(KilledError):
        train(SMALL, tmp_path / "run", dataset=few(), watch=stop, checkpoint_seconds=0)
    train(SMALL, tmp_path / "run", dataset=few(), resume=True)
    times = read_lines(tmp_path / "run" / "times.jsonl")
    assert [(line["epoch"], line.get("step")) for line in times] == [(1, 1), (1, 2), (1, None), (2, 1), (2, None), (3, None)]


def test_a_watcher_is_told_of_all_of_an_epochs_seconds_however_often_it_was_saved(tmp_path):
    told: list[dict] = []
    out = tmp_path / "run"
    train(SMALL, out, dataset=few(), watch=told.append, checkpoint_seconds=0)
    for line in (each for each in told if "test_error" in each):
        seconds = [each["seconds"] for each in read_lines(out / "times.jsonl") if each["epoch"] == line["epoch"]]
        assert len(seconds) == 3  # two saves within, one at the end
        assert line["seconds"] == pytest.approx(sum(seconds))


def test_other_threads_and_batches_larger_than_the_data_are_told(tmp_path, caplog):
    config = dataclasses.replace(SMALL, batch_size=4096, epochs=2)
    with caplog.at_level(logging.INFO, logger="ebl"), pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", dataset=few(), watch=_interrupt)
    path = tmp_path / "run" / "checkpoint.safetensors"
    tensors, header = load_checkpoint(path)
    save_checkpoint(path, tensors, {**header, "threads": header["threads"] + 1})
    with caplog.at_level(logging.INFO, logger="ebl"):
        train(config, tmp_path / "run", dataset=few(), resume=True)
    told = " | ".join(r.getMessage() for r in caplog.records)
    assert f"batch_size = 4096: there are {len(few().train.labels)} training images, so each epoch is one step" in told
    assert "goes on after epoch 1, step 0 of 1 | on 1 instead of 2 threads: its last bits will be others" in told


def _interrupt(event):
    if "test_error" in event:
        raise KeyboardInterrupt
