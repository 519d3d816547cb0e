"""--on slurm: with commands that stand in for SLURM's, and for real where SLURM is (see tests/slurm_node.sh)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from studies import tiny_cells

from ebl.errors import InputError
from ebl.study import on_slurm
from ebl.study.executor import Ended
from ebl.study.journal import readable
from ebl.study.on_slurm import OnSlurm, Slurm
from ebl.study.runner import run_study
from ebl.study.store import make_store
from ebl.train import train


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"time": 1}, "slurm.time = 1: use at least 2"),
        ({"cpus": 0}, "slurm.cpus = 0"),
        ({"requeues": -1}, "slurm.requeues = -1"),
        ({"at_once": 0}, "slurm.at_once = 0"),
        ({"gpus": 2}, "slurm.gpus = 2: a run uses one GPU at most"),
        ({"memory": 0.0}, "slurm.memory = 0: give GB"),
        ({"extra": ("--account=a",)}, "slurm.extra = '--account=a': write NAME=VALUE"),
        ({"extra": ("account=a\nrm x",)}, "slurm.extra = "),
        ({"extra": ("=a",)}, "slurm.extra = '=a'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        Slurm(**settings)


def test_without_submitit_or_slurm_the_error_says_what_is_missing(monkeypatch, tmp_path):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        InputError, match=r"--on slurm needs SLURM's sbatch, squeue, scancel, srun: run on a machine from which"
    ):
        OnSlurm(Slurm())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r'--on slurm needs submitit: pip install "ebl\[slurm\]"'):
        OnSlurm(Slurm())


def test_runs_that_want_cuda_need_a_gpu():
    with pytest.raises(InputError, match=r"give --slurm.gpus 1"):
        OnSlurm(Slurm(), "cuda")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Commands in place of SLURM's: arrays get a `number`, `queue` is what squeue prints, `calls` is how they were called."""
    pytest.importorskip("submitit")
    there = tmp_path / "commands"
    there.mkdir()
    refuse = f"[ -f {there}/refuse ] && cat {there}/refuse >&2 && exit 1"
    lines = {
        "sbatch": f'{refuse}; cp "$1" {there}/script; echo Submitted batch job $(cat {there}/number)',
        "squeue": f"{refuse}; cat {there}/queue",
        "scancel": "",
        "scontrol": "",
        "sinfo": f"cat {there}/limits",
        "srun": "",
    }
    for name, line in lines.items():
        (there / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{there}/calls\n{line}\n')
        (there / name).chmod(0o755)
    (there / "number").write_text("7")
    (there / "limits").write_text("main*|infinite\n")
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    monkeypatch.setattr(on_slurm, "POLL", 0)
    monkeypatch.setattr(on_slurm, "PATIENCE", 0)
    return there


def nothing(store: Path, key: str) -> None:
    pass


def test_an_array_is_sent_once_with_what_was_asked_for_from_a_folder_open_to_us_alone(stand_in, tmp_path):
    settings = Slurm("long", time=90, gpus=1, cpus=3, memory=1.5, at_once=2, extra=("account=me", "exclusive"))
    executor = OnSlurm(settings, "cuda", work=nothing)
    executor.start(tmp_path, ["a", "b", "c"])
    options = {line.removeprefix("#SBATCH --") for line in (stand_in / "script").read_text().splitlines()}
    wanted = {"partition=long", "time=90", "gpus-per-node=1", "cpus-per-task=3", "mem=1536M", "array=0-2%2", "requeue"}
    assert (
        wanted | {"account=me", "exclusive", "open-mode=append", "signal=USR2@30", f"job-name=ebl-{tmp_path.name}"} <= options
    )
    assert not any(option.startswith("wckey") for option in options)
    assert (stand_in / "calls").read_text().count("sbatch") == 1
    (folder,) = (tmp_path / "slurm").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.glob("*.pkl"))) == 3
    executor.stop()
    assert "scancel 7\n" in (stand_in / "calls").read_text()
    assert list(folder.glob("*.pkl")) == []


def test_thousands_of_cells_are_several_arrays_and_one_is_a_job(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(on_slurm, "LARGEST_ARRAY", 2)
    executor = OnSlurm(Slurm(), work=nothing)
    executor.start(tmp_path, ["a", "b", "c"])
    assert [job.key for job in executor.jobs.values()] == ["a", "b", "c"]
    assert (stand_in / "calls").read_text().count("sbatch") == 2
    assert "array" not in (stand_in / "script").read_text()


def test_what_became_of_jobs_is_read_from_the_queue(stand_in, tmp_path):
    states = {"done": "COMPLETED", "failed": "FAILED", "unseen": "FAILED", "slow": "TIMEOUT", "big": "OUT_OF_MEMORY"}
    states |= {"lost": "NODE_FAIL", "ended": "CANCELLED", "begun": "RUNNING", "waits": "PENDING", "again": "REQUEUED"}
    executor = OnSlurm(Slurm(), work=nothing)
    executor.start(tmp_path, [*states, "gone", "full", "eater"])
    (folder,) = (tmp_path / "slurm").iterdir()
    for i in (0, 1, 3, 4, 5, 6):
        (folder / f"7_{i}_0_log.err").write_text("first words\nsrun: error: task 0: Killed\n")
    (folder / "7_11_0_log.err").write_text("the disk is full: free some space\nsrun: error: task 0: Exited with exit code 1\n")
    (folder / "7_6_0_log.err").write_text("")
    (folder / "7_12_0_log.err").write_text(
        "slurmstepd-vm: error: Detected 1 oom-kill event(s) in StepId=1.0.\nsrun: error: x\n"
    )
    queue = [f"7_{i}|{state}|None\n" for i, state in enumerate(states.values())]
    queue += ["7_11|FAILED|NonZeroExitCode\n", "7_12|FAILED|NonZeroExitCode\n", "8|FAILED|None\n"]
    (stand_in / "queue").write_text("".join(queue))
    found = {ended.key: ended.error for ended in executor.ended()}
    assert found.pop("done") == ""
    assert found.pop("gone") == (
        f"SLURM no longer knows what came of it: see `sacct -j 7_10` (SLURM job 7_10, GONE; log: {folder}/7_10_0_log.err)"
    )
    assert {key: error.partition(" (SLURM job")[0] for key, error in found.items()} == {
        "failed": "first words",
        "unseen": f"it left no log: do SLURM's machines see {folder}?",
        "slow": "its time was up: give more --slurm.time",
        "big": "its memory did not suffice: give more --slurm.memory",
        "eater": "its memory did not suffice: give more --slurm.memory",
        "lost": "its machine failed",
        "ended": "it was cancelled",
        "full": "the disk is full: free some space",
    }
    assert sorted(job.key for job in executor.jobs.values()) == ["again", "begun", "waits"]
    assert len(list(folder.glob("*.pkl"))) == 3
    (stand_in / "refuse").write_text("slurm_load_jobs error: Invalid job id specified\n")  # all are forgotten
    assert sorted(ended.key for ended in executor.ended()) == ["again", "begun", "waits"]


def test_jobs_that_were_cancelled_before_they_began_are_told_of_by_their_array(stand_in, tmp_path):
    executor = OnSlurm(Slurm(), work=nothing)
    executor.start(tmp_path, ["a", "b", "c"])
    (stand_in / "queue").write_text("7|CANCELLED|JobArrayTaskLimit\n7_0|RUNNING|None\n")  # as SLURM 22.05 has it
    found = {ended.key: ended.error.partition(" (SLURM job")[0] for ended in executor.ended()}
    assert found == {"b": "it was cancelled", "c": "it was cancelled"}


def test_a_queue_that_cannot_be_read_and_jobs_that_will_not_start_are_told_of_once(stand_in, tmp_path, caplog):
    executor = OnSlurm(Slurm(), work=nothing)
    executor.start(tmp_path, ["a", "b"])
    (stand_in / "refuse").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    assert [executor.ended(), executor.ended()] == [[], []]
    (stand_in / "refuse").unlink()
    (stand_in / "queue").write_text("7_0|PENDING|PartitionTimeLimit\n7_1|PENDING|PartitionTimeLimit\n")
    assert executor.ended() == []
    assert [record.message for record in caplog.records] == [
        "SLURM's queue cannot be read: slurm_load_jobs error: Unable to contact slurm controller; trying on",
        "SLURM jobs will not start: PartitionTimeLimit; give less --slurm.time, or another --slurm.partition (see `scontrol "
        "show job 7_0`)",
    ]


@pytest.mark.parametrize(
    ("reason", "option"),
    [
        ("AssocMaxWallDurationPerJobLimit", "less --slurm.time"),
        ("QOSMaxMemoryPerJob", "less --slurm.memory"),
        ("QOSMaxCpuPerJobLimit", "less --slurm.cpus"),
        ("QOSMaxGRESPerJob", "--slurm.gpus"),
        ("InvalidAccount", "account=, qos= ... in --slurm.extra"),
        (
            "BadConstraints",
            "change --slurm.partition, --slurm.time, --slurm.memory, --slurm.cpus, --slurm.gpus or --slurm.extra",
        ),
        ("JobHeldUser", "`scontrol release`"),
    ],
)
def test_a_warning_of_jobs_that_will_not_start_names_the_option_to_change(stand_in, tmp_path, caplog, reason, option):
    executor = OnSlurm(Slurm(), work=nothing)
    executor.start(tmp_path, ["a"])
    (stand_in / "queue").write_text(f"7|PENDING|{reason}\n")
    executor.ended()
    assert option in caplog.records[-1].message


@pytest.mark.parametrize(
    ("limits", "settings", "minutes"),
    [
        ("main*|1:00:00\nlong|2-00:00:00\n", Slurm(), 60),
        ("short|30:00\nmain*|1:00:00\nmain*|1:00:00\n", Slurm(), 60),
        ("short|30:00\n", Slurm("short"), 30),
        ("short|30:00\n", Slurm(extra=("partition=short",)), 30),
        ("main*|2-01:00:00\n", Slurm(), 240),
        ("main*|infinite\n", Slurm(), 240),
        ("short|30:00\n", Slurm(), 240),
        ("main*|1:00:00\n", Slurm(time=90), 90),
    ],
)
def test_unless_it_is_given_a_job_has_the_time_that_the_partition_allows(stand_in, tmp_path, limits, settings, minutes):
    (stand_in / "limits").write_text(limits)
    OnSlurm(settings, work=nothing).start(tmp_path, ["a", "b"])
    assert f"#SBATCH --time={minutes}\n" in (stand_in / "script").read_text()
    if settings.partition:
        assert "sinfo --noheader --format=%P|%l --partition=short\n" in (stand_in / "calls").read_text()


def test_what_sbatch_refuses_is_an_input_error_in_a_line(stand_in, tmp_path, capfd):
    (stand_in / "refuse").write_text(
        "sbatch: error: invalid partition specified: nix\nsbatch: error: Batch job submission failed\n"
    )
    with pytest.raises(InputError) as error:
        OnSlurm(Slurm("nix"), work=nothing).start(tmp_path, ["a"])
    assert str(error.value) == (
        "SLURM does not take the runs: invalid partition specified: nix Batch job submission failed; change --slurm.partition, "
        "--slurm.time ..."
    )
    with pytest.raises(InputError, match="choose another --store"):
        OnSlurm(Slurm(), work=nothing).start(tmp_path / "50%", ["a"])
    assert capfd.readouterr() == ("", "")


def queued(stand_in, *lines: str, store: Path) -> None:
    """The queue, with jobs of this store's latest array."""
    script = (stand_in / "calls").read_text().split("sbatch ")[-1].splitlines()[0]
    assert Path(script).parent.parent == store / "slurm"
    (stand_in / "queue").write_text("".join(f"{line}|{script}\n" for line in lines))


def test_jobs_of_a_command_that_was_killed_are_taken_over_not_sent_again_and_cancelled_with_us(stand_in, tmp_path):
    cells = tiny_cells(tmp_path, "grid: {seed: [0, 1, 2], rule: [cl]}")
    keys = [cell.key for cell in cells]
    store = make_store(tmp_path / "store", "tiny")
    OnSlurm(Slurm(), work=nothing).start(store.folder, keys[:2])  # and is killed
    queued(stand_in, "7_0|RUNNING", "7_1|PENDING", store=store.folder)
    with (stand_in / "queue").open("a") as file:
        file.write("8_0|RUNNING|/somewhere/else/slurm/x/script.sh\n10|PENDING|(null)\n")
    (stand_in / "number").write_text("10")
    (stand_in / "calls").write_text("")
    executor, seen = OnSlurm(Slurm(), work=nothing), {}

    def stop_us(event):
        if event["event"] == "progress" and len(event["epochs"]) == 3:
            seen.update({name: job.key for name, job in executor.jobs.items()})
            raise KeyboardInterrupt

    with store.claim(keys[0]), pytest.raises(KeyboardInterrupt):  # held by the job that runs
        run_study(store, cells, executor, watch=stop_us)
    assert seen == dict(zip(("7_0", "7_1", "10"), keys, strict=True))
    calls = (stand_in / "calls").read_text()
    assert calls.count("sbatch") == 1
    assert "scancel 10 7_0 7_1\n" in calls
    assert list((store.folder / "slurm").glob("*/*.pkl")) == []


def test_jobs_that_have_not_begun_are_sent_anew_with_other_options_and_others_go_on(stand_in, tmp_path):
    OnSlurm(Slurm(time=90, extra=("exclusive",)), work=nothing).start(tmp_path, ["a", "b", "c"])  # and is killed
    lines = ("7_0|PENDING", "7_1|RUNNING", "7_2|PENDING")
    queued(stand_in, *lines, store=tmp_path)
    (stand_in / "scancel").write_text(
        f'#!/bin/sh\necho scancel "$@" >>{stand_in}/calls\nsed -i "s/7_0.PENDING/7_0|RUNNING/; /PENDING/d" {stand_in}/queue\n'
    )  # 7_0 begins just before
    same = OnSlurm(Slurm(time=90, extra=("exclusive",)), work=nothing)
    assert sorted(same.adopt(tmp_path, ["a", "b", "c"])) == ["a", "b", "c"]
    assert OnSlurm(Slurm(time=90), work=nothing).adopt(tmp_path, ["b"]) == ["b"]
    assert "scancel" not in (stand_in / "calls").read_text()
    other = OnSlurm(Slurm(time=30), work=nothing)
    assert sorted(other.adopt(tmp_path, ["a", "b", "c"])) == ["a", "b"]
    assert "scancel --state=PENDING 7_0 7_2\n" in (stand_in / "calls").read_text()
    assert sorted(path.name for path in (tmp_path / "slurm").glob("*/*.pkl")) == ["7_0_submitted.pkl", "7_1_submitted.pkl"]


def test_two_jobs_for_one_cell_are_never_taken_over_both(stand_in, tmp_path):
    for number in "78":
        (stand_in / "number").write_text(number)
        OnSlurm(Slurm(), work=nothing).start(tmp_path, ["a"])  # and is killed
    scripts = [line.split()[1] for line in (stand_in / "calls").read_text().splitlines() if line.startswith("sbatch")]
    (stand_in / "queue").write_text(f"7|PENDING|{scripts[0]}\n8|RUNNING|{scripts[1]}\n")
    (stand_in / "scancel").write_text(f"#!/bin/sh\nsed -i /PENDING/d {stand_in}/queue\n")
    executor = OnSlurm(Slurm(), work=nothing)
    assert executor.adopt(tmp_path, ["a"]) == ["a"]
    assert list(executor.jobs) == ["8"]


def test_nothing_is_sent_while_the_queue_may_have_jobs_that_cannot_be_seen(stand_in, tmp_path):
    OnSlurm(Slurm(), work=nothing).start(tmp_path, ["a"])
    (stand_in / "refuse").write_text("slurm_load_jobs error: Unable to contact slurm controller\n")
    with pytest.raises(InputError, match=r"queue cannot be read \(slurm_load_jobs error.*may have jobs in it: try again later"):
        OnSlurm(Slurm(), work=nothing).adopt(tmp_path, ["a"])


def test_a_job_whose_time_is_up_goes_back_into_the_queue_and_then_on_where_it_was(stand_in, tmp_path):
    (cell,) = tiny_cells(tmp_path, "grid: {rule: [c-ep]}", epochs=60)
    store = make_store(tmp_path / "store", "tiny")
    store.add([cell])
    executor = OnSlurm(Slurm(requeues=1))
    executor.start(store.folder, [cell.key])
    (folder,) = (store.folder / "slurm").iterdir()
    (command,) = (line for line in (stand_in / "script").read_text().splitlines() if line.startswith("srun "))
    words = command[command.index(sys.executable) :]  # what srun starts on the machine
    environment = {**os.environ, "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(words, shell=True, env=environment, stdout=subprocess.DEVNULL, stderr=-1) as process:
        while store.epochs(cell.key) < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        os.kill(store.holder(cell.key)["pid"], signal.SIGUSR2)
        assert process.wait(30) != 0
    assert "scontrol requeue 7\n" in (stand_in / "calls").read_text()
    before = store.epochs(cell.key)
    assert 3 <= before < 60
    subprocess.run(words, shell=True, env=environment, check=True, capture_output=True, timeout=60)
    assert store.is_done(cell.key)
    told = readable(store.events.read_bytes())
    assert [event["event"] for event in told if event["event"] != "warning"] == ["claimed", "claimed", "done"]
    train(cell.config, tmp_path / "undisturbed")
    assert (store.run_folder(cell.key) / "metrics.jsonl").read_text() == (tmp_path / "undisturbed/metrics.jsonl").read_text()
    (stand_in / "queue").write_text("7|COMPLETED|None\n")
    assert executor.ended() == [Ended(cell.key)]
    assert list(folder.glob("*.pkl")) == []


@pytest.mark.slow
def test_on_a_real_slurm_with_a_job_killed_and_one_put_back_every_cell_ends_done_and_none_twice(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    if shutil.which("sbatch") is None or not answers("sinfo"):
        pytest.skip("needs a SLURM that answers: see tests/slurm_node.sh")
    monkeypatch.setattr(on_slurm, "POLL", 0.5)
    cells = tiny_cells(tmp_path, "grid: {seed: [0, 1], rule: [cl, c-ep]}", epochs=300)
    store, hit = make_store(tmp_path / "a store", "tiny"), []
    executor = OnSlurm(Slurm(time=5))

    def hit_two(event):
        key = event.get("key")
        if event["event"] == "claimed" and len(hit) < 2 and key not in hit:
            while store.epochs(key) < 2:
                time.sleep(0.01)
            os.kill(event["pid"], signal.SIGUSR2 if hit else signal.SIGKILL)  # SLURM's notice that time is up, or the worst
            hit.append(key)
            assert not store.is_done(key)

    outcome = run_study(store, cells, executor, watch=hit_two)
    assert (sorted(outcome.done), outcome.failed) == (sorted(cell.key for cell in cells), {})
    told = readable(store.events.read_bytes())
    counted = {kind: Counter(e["key"] for e in told if e["event"] == kind) for kind in ("claimed", "failed", "done")}
    once = Counter(cell.key for cell in cells)
    assert counted == {"claimed": once + Counter(hit), "failed": Counter(hit[:1]), "done": once}
    (failed,) = (e["error"] for e in told if e["event"] == "failed")
    assert "task 0: Killed" in failed
    for cell in cells:
        train(cell.config, tmp_path / cell.key)
        assert (store.run_folder(cell.key) / "metrics.jsonl").read_text() == (tmp_path / cell.key / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_on_a_real_slurm_a_command_goes_on_with_the_jobs_of_one_that_was_killed(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    if shutil.which("sbatch") is None or not answers("sinfo"):
        pytest.skip("needs a SLURM that answers: see tests/slurm_node.sh")
    monkeypatch.setattr(on_slurm, "POLL", 0.5)
    cells = tiny_cells(tmp_path, "grid: {seed: [0, 1, 2], rule: [cl]}", epochs=300)
    keys = sorted(cell.key for cell in cells)
    store = make_store(tmp_path / "a store", "tiny")
    store.add(cells)
    killed = OnSlurm(Slurm(time=5, at_once=1))
    killed.start(store.folder, keys)
    until = time.monotonic() + 60
    while not any(store.holder(key) for key in keys):
        assert time.monotonic() < until
        time.sleep(0.1)
    executor, watched = OnSlurm(Slurm(time=5, at_once=1)), []
    outcome = run_study(store, cells, executor, watch=lambda _: watched.append(sorted(executor.jobs)))
    assert (sorted(outcome.done), outcome.failed) == (keys, {})
    assert watched[0] == sorted(killed.jobs)
    told = readable(store.events.read_bytes())
    assert [Counter(e["key"] for e in told if e["event"] == kind) for kind in ("claimed", "done")] == 2 * [Counter(keys)]
    assert len(list((store.folder / "slurm").iterdir())) == 1


def answers(command: str) -> bool:
    try:
        return subprocess.run([command], capture_output=True, timeout=5).returncode == 0
    except subprocess.TimeoutExpired:
        return False
