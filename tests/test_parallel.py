"""Several processes train as one does: gradients, metrics, one run folder, resume on another number, errors and kills.

Ranks are forked from a server that has torch loaded already; torchrun itself is started where it is what is tested.
"""

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest
import torch
from test_engine import CONV
from test_train import SMALL, few

import ebl
from ebl.atomic import read_lines
from ebl.checkpoint import load_checkpoint
from ebl.cli import main
from ebl.data import SPECS, Split
from ebl.data.batches import Batches
from ebl.engine.captured import CapturedStep
from ebl.engine.step import Evaluator, FusedStep
from ebl.parallel import ALONE, Part, Ranks, join
from ebl.relax import Schedule
from ebl.steps import PlainStep
from ebl.train import _Run, train

CPU = torch.device("cpu")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["ebl.cli.train", "ebl.engine.captured", "ebl.engine.step", "torch._dynamo", "pytest"])
TINY = ["--model.hidden", "4", "6", "--free.iterations", "4", "--nudged.iterations", "3", "--batch-size", "500"]
AVERAGE = replace(SMALL, model=replace(SMALL.model, pool="average"))  # no near ties that rounding could decide


def world(size, job, *args, **options):
    """What job(ranks, *args) returned on each rank, and the exit codes."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun keeps one
    pipes = [FORKS.Pipe(duplex=False) for _ in range(size)]
    processes = [
        FORKS.Process(target=_rank, args=(rank, size, store.port, pipe[1], job, args), kwargs=options)
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, sending in pipes:
        sending.close()
    found = []
    for receiving, _ in pipes:
        try:
            found.append(receiving.recv())
        except EOFError:
            found.append(None)
    for process in processes:
        process.join(60)
    return found, [process.exitcode for process in processes]


def _rank(rank, size, port, sending, job, args, seconds=60, backend=None, joins=True):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    with join(timedelta(seconds=seconds), backend) if joins else nullcontext() as ranks:
        found = job(ranks, *args)
    sending.send(found)


# ---- parts of a batch


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_ranks_see_parts_of_the_very_batches_one_process_sees(num_ranks):
    """A batch of 7 and the last of 3, cropped and flipped; where a rank has none, it repeats one that counts for nothing."""
    split = Split(torch.randint(256, (10, 3, 8, 8), dtype=torch.uint8), torch.arange(10))
    spec = replace(SPECS["cifar10"], crop=2)
    one = Batches(split, spec, 7, augment=True)
    many = [Batches(split, spec, 7, augment=True, rank=r, num_ranks=num_ranks) for r in range(num_ranks)]
    for feed in (lambda b: b.epoch(3), lambda b: b.in_order(), lambda b: b.epoch(3, 1)):
        for step, ((x, y), *parts) in enumerate(zip(feed(one), *map(feed, many), strict=True), len(list(feed(one))) % 2):
            counts = [b.part(step).count for b in many]
            assert [b.part(step).whole for b in many] == [len(y)] * num_ranks
            assert max(counts) - min(counts) <= 1
            assert torch.equal(torch.cat([xs[:n] for (xs, _), n in zip(parts, counts, strict=True)]), x)
            assert torch.equal(torch.cat([ys[:n] for (_, ys), n in zip(parts, counts, strict=True)]), y)
            assert all(len(ys) == max(1, n) for (_, ys), n in zip(parts, counts, strict=True))


def test_an_examples_sign_follows_from_its_place():
    whole = torch.rand(11, generator=torch.Generator().manual_seed(5))
    for part in (Part.of(11, r, 4) for r in range(4)):
        mine = torch.rand(part.count, generator=part.generator(torch.Generator().manual_seed(5)))
        assert torch.equal(mine, whole[part.rows])


# ---- training steps: an epoch of batches of 3, 3, 3 and 2, the state carried over

TOLERANT = {"free": Schedule(60, 1.4, tolerance=1e-3), "nudged": Schedule(40, 1.4, tolerance=1e-4)}
EXACT = {
    "c-ep": {"rule": "c-ep"},
    "r-ep": {"rule": "r-ep"},
    "n-cpl, zeros": {"rule": "n-cpl", "start": "zeros"},
    "tbp": {"rule": "tbp"},
    "rbp": {"rule": "rbp", **TOLERANT},
    "tolerance": {"rule": "c-ep", **TOLERANT},
}
WHAT = ("test", "gradients", "moved", "carried", "sums")
FUSED = {
    "c-ep": {"rule": "c-ep"},
    "r-ep": {"rule": "r-ep"},
    "cl": {"rule": "cl", "beta": None},
    "tbp": {"rule": "tbp", "beta": None},
    "rbp": {"rule": "rbp", "beta": None, "start": "zeros"},
}


def epochs(ranks):
    """What epochs did, by path and rule: the plain ones in float64, the fused ones with their kernels' definitions."""
    found = {(path, name): epoch(ranks, path, change) for path in ("plain", "captured") for name, change in EXACT.items()}
    return found | {("fused", name): epoch(ranks, "fused", change) for name, change in FUSED.items()}


@cache
def data():
    return few(11, 9)


def epoch(ranks, path, change, device=CPU):
    """A test, the first step's gradients, all that the epoch moved, the whole carried states, and the sums."""
    config = replace(CONV if path == "fused" else AVERAGE, batch_size=3, **change)
    run = _Run(config, data(), device, ranks)
    run.optimiser.state.clear()  # on a GPU there is momentum in float32 already
    if path == "fused":
        run.stepper = FusedStep(config, run.net, run.optimiser, ranks)
        run.stepper.evaluator = Evaluator(run.stepper.fused, 4, ranks)
    elif path == "captured":
        run.net.double()
        run.stepper = CapturedStep(config, run.net, run.optimiser, False, ranks)
    else:
        run.net.double()
        run.stepper = PlainStep(config, run.net, run.optimiser, ranks)
    for group, rate in zip(run.optimiser.param_groups, run.epoch_rates(), strict=True):
        group["lr"] = rate
    tested = run.stepper.evaluate(run.tests["test"], config.free) if path == "fused" else {}
    start = [p.detach().clone() for p in run.net.parameters()]
    first, carried = [], []
    for x, y in run.training.epoch(0):
        run.train_step(x if path == "fused" else x.double(), y)
        carried.append([ranks.gather(s, run.part).clone() for s in run.stepper.carried or ()])
        first = first or [run.optimiser.state[p]["momentum_buffer"].clone() for p in run.net.parameters()]
    moved = [p.detach() - q for p, q in zip(run.net.parameters(), start, strict=True)]
    sums = list(ranks.total(run.stepper.totals))
    if path == "fused":
        del sums[4]  # residuals are down at the rounding of 16 bits
    test = [torch.tensor(value) for value in tested.values()]
    return [_arrays(found) for found in (test, first, moved, carried, sums)]


def _arrays(found):
    return [_arrays(one) for one in found] if isinstance(found, list) else found.cpu().numpy().copy()


def off(found, truth) -> float:
    """The largest distance of two arrays over the largest number in the second, of however nested lists of them."""
    if isinstance(truth, list):
        assert len(found) == len(truth)
        return max(map(off, found, truth), default=0.0)
    assert found.shape == truth.shape
    return float(abs(found - truth).max()) / max(float(abs(truth).max()), 1e-300)


@pytest.fixture(scope="module")
def alone():
    return epochs(ALONE)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_an_epoch_of_several_ranks_is_that_of_one_process(num_ranks, alone):
    """To rounding: uneven parts; a last batch of another size, of which some have as much and one of three has nothing."""
    found, codes = world(num_ranks, epochs)
    assert codes == [0] * num_ranks
    for (path, name), truth in alone.items():
        limits = (0, 1e-12, 1e-11, 1e-11, 1e-11) if path != "fused" else (1e-5, 1e-3, 5e-3, 5e-3, 1e-5)
        for rank in found:
            for what, limit, one, right in zip(WHAT, limits, rank[path, name], truth, strict=True):
                assert off(one, right) <= limit, (path, name, what)
            assert off(rank[path, name], found[0][path, name]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize(("path", "limit"), [("captured", 1e-9), ("fused", 2e-2)])
def test_two_ranks_on_one_gpu_train_as_one_process_does(path, limit):
    """Over gloo, which lets processes share a GPU; the steps are recorded in two halves."""
    gpu = torch.device("cuda")
    found, codes = world(2, epoch, path, {"rule": "c-ep"}, gpu, backend="gloo")
    assert codes == [0, 0]
    truth = epoch(ALONE, path, {"rule": "c-ep"}, gpu)
    assert off(found[1][WHAT.index("moved")], truth[WHAT.index("moved")]) < limit


# ---- whole runs


class StopError(Exception):
    pass


def training(ranks, config, out, stop_after=None):
    seen = []

    def watch(event):
        seen.append(event)
        if len(seen) == stop_after:
            raise StopError

    result = train(config, out, dataset=few(), resume=True, watch=watch, checkpoint_seconds=0, ranks=ranks)
    return result, len(seen)


RUN = replace(AVERAGE, val=5, test_batch_size=19)  # of 20: a batch of one at the end


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of one process that nobody disturbed."""
    out = tmp_path_factory.mktemp("one") / "run"
    training(ALONE, RUN, out)
    return out


def same_metrics(out, truth, rel=1e-4):
    lines, right = (read_lines(folder / "metrics.jsonl") for folder in (out, truth))
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for line, other in zip(lines, right, strict=True):
        assert line.keys() == other.keys()
        for name, value in other.items():
            assert line[name] == pytest.approx(value, rel=rel, abs=2e-6), name


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_run_of_several_processes_is_that_of_one(num_ranks, whole, tmp_path):
    found, codes = world(num_ranks, training, RUN, tmp_path / "run")
    assert codes == [0] * num_ranks
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in whole.iterdir()}
    same_metrics(tmp_path / "run", whole)
    for name in ("config.json", "data.json"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes()
    assert [result for result, _ in found] == [found[0][0]] * num_ranks
    assert [told for _, told in found] == [12] + [0] * (num_ranks - 1)  # 3 steps and a test in each of 3 epochs
    result, one = (json.loads((folder / "result.json").read_text()) for folder in (tmp_path / "run", whole))
    assert result == found[0][0]
    assert result.keys() == one.keys()
    assert (result["processes"], one["processes"]) == (num_ranks, 1)
    assert (result["config"], result["engine"], result["collapsed"]) == (one["config"], one["engine"], one["collapsed"])
    tensors, header = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors")
    right, its_header = load_checkpoint(whole / "checkpoint.safetensors")
    assert header == its_header
    assert tensors.keys() == right.keys()
    assert off([t.numpy() for t in tensors.values()], [right[name].numpy() for name in tensors]) < 1e-2


def test_a_run_goes_on_with_another_number_of_processes(whole, tmp_path):
    """Two are stopped within an epoch, one after a few more steps, three after those; each takes over all of the state."""
    out = tmp_path / "run"
    _, codes = world(2, training, RUN, out, 2)
    assert codes == [1, 2]
    assert load_checkpoint(out / "checkpoint.safetensors")[1]["step"] == 1
    with pytest.raises(StopError):
        training(ALONE, RUN, out, 2)
    assert load_checkpoint(out / "checkpoint.safetensors")[1]["step"] == 2
    _, codes = world(3, training, RUN, out, 4)
    assert codes == [1, 2, 2]
    position = load_checkpoint(out / "checkpoint.safetensors")[1]
    assert (position["epoch"], position["step"]) == (1, 1)
    result, _ = training(ALONE, RUN, out)
    same_metrics(out, whole)
    assert result["processes"] == 1


def test_stopped_and_resumed_on_as_many_processes_a_run_ends_byte_for_byte_the_same(tmp_path):
    config = replace(SMALL, settle=1e-3)
    world(2, training, config, tmp_path / "undisturbed")
    for stop in (6, None):
        world(2, training, config, tmp_path / "cut", stop)
    for name in ("config.json", "metrics.jsonl", "checkpoint.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


# ---- errors: one line of one rank, exit code 2


def command(_, words, of_rank=((),) * 3):
    """`ebl` with these words, and some for one rank alone: its exit code, and what it printed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([*words, *of_rank[int(os.environ["RANK"])]])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def refused(*args) -> str:
    found, codes = world(2, command, *args, joins=False)
    assert codes == [0, 0]
    assert [code for code, _, _ in found] == [2, 2]
    lines = "".join(err for _, _, err in found).splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("words", "of_rank", "line"),
    [
        (["--batch-size", "1"], ((), ()), "ebl: batch_size = 1 for 2 processes: each needs an example; start fewer processes"),
        (["--device", "cuda:0"], ((), ()), "ebl: device = 'cuda:0' with 2 processes: give cuda"),
        (["--seed", "3"], ((), ("--seed", "4")), "ebl: the 2 processes have other settings or other images"),
        (["--seed", "3"], ((), ("--dataset", "./gone.npz")), "gone.npz"),  # one rank's mistake ends the other
    ],
    ids=["batch", "device", "settings", "one rank"],
)
def test_bad_input_is_told_once_before_anything_is_written(words, of_rank, line, tmp_path):
    assert line in refused(["train", "--out", str(tmp_path / "run"), *words], of_rank)
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_told_once(tmp_path):
    def meanwhile(event):
        if event["epoch"] == 2 and event.get("step") == 1:
            found, codes = world(2, training, SMALL, tmp_path / "run")
            assert (found, codes) == ([None, None], [1, 2])

    train(SMALL, tmp_path / "run", dataset=few(), watch=meanwhile)


def test_fewer_images_than_processes_are_told_of():
    with pytest.raises(ebl.InputError, match="2 images for 3 processes"):
        _Run(SMALL, few(2), CPU, Ranks(0, 3))


def test_each_process_takes_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [Ranks(r, 4, r % 2).device("cuda") for r in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert ALONE.device("cuda") == "cuda"
    assert Ranks(1, 3, 1).device("cpu") == "cpu"
    with pytest.raises(ebl.InputError, match="more processes than GPUs here, 2: torchrun --nproc-per-node 2"):
        Ranks(2, 3, 2).device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert Ranks(1, 2, 1).device("cuda") == "cuda"  # which is told of as it always is


def waiting(ranks, done):
    if not ranks.first:
        while not done.exists():
            time.sleep(0.05)
        return None
    with pytest.raises(ebl.InputError, match="another process of this run has ended or does not answer"):
        ranks.all(True)
    done.touch()
    return "not for ever"


def test_a_rank_that_does_not_answer_is_not_waited_for_for_ever(tmp_path):
    assert world(2, waiting, tmp_path / "done", seconds=3)[0] == ["not for ever", None]


# ---- torchrun


def test_torchrun_ends_a_run_one_process_of_which_was_killed_and_another_number_goes_on(tmp_path):
    run = tmp_path / "run"
    words = ["train", *TINY, "--epochs", "3", "--rule", "r-ep", "--out", str(run), "--resume", "--checkpoint-seconds", "0"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "ebl", *words]
    with subprocess.Popen(launch, stderr=subprocess.PIPE, text=True) as torchrun:
        while torchrun.poll() is None and not read_lines(run / "metrics.jsonl"):
            time.sleep(0.02)
        ranks = ranks_of(torchrun.pid)
        assert sorted(ranks) == [0, 1]
        os.kill(ranks[1], signal.SIGKILL)
        _, err = torchrun.communicate(timeout=60)
    assert torchrun.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    assert len([line for line in err.splitlines() if line.startswith("ebl: ")]) <= 1
    done = len(read_lines(run / "metrics.jsonl"))
    assert done < 3
    found, codes = world(3, command, words, joins=False)
    assert codes == [code for code, _, _ in found] == [0, 0, 0]
    assert found[0][1].count("epoch   ") >= 3 - done  # or one more, if it was killed between a line and its checkpoint
    assert not any(out + err for _, out, err in found[1:])  # the first process alone shows its progress
    assert len(read_lines(run / "metrics.jsonl")) == 3
    assert json.loads((run / "result.json").read_text())["processes"] == 3


def ranks_of(parent: int) -> dict[int, int]:
    """The pid of each rank that a torchrun started."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it may just have ended
            if f"\nPPid:\t{parent}\n" in (folder / "status").read_text():
                environment = dict(word.partition("=")[::2] for word in (folder / "environ").read_text().split("\0"))
                found[int(environment["RANK"])] = int(folder.name)
    return found
