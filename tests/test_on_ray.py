"""--on ray, on real clusters: two nodes of one CPU each on this machine, and a fresh one."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from studies import tiny_cells

from ebl.errors import InputError
from ebl.study.journal import readable
from ebl.study.on_ray import OnRay, Ray, _check_room, _error, _in_worker
from ebl.study.runner import run_study
from ebl.study.store import make_store
from ebl.train import train


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpus": 0}, "ray.cpus = 0"),
        ({"gpus": 2}, "ray.gpus = 2: a run uses one GPU at most"),
        ({"gpus": float("nan")}, "ray.gpus = nan"),
        ({"address": ""}, "use auto, HOST:PORT"),
        ({"address": "ray://there:10001"}, "use auto, HOST:PORT"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(InputError, match=said):
        Ray(**settings)


def test_without_ray_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'--on ray needs Ray: pip install "ebl\[ray\]"'):
        OnRay(Ray())


def test_runs_that_want_cuda_need_a_share_of_a_gpu():
    with pytest.raises(InputError, match=r"give --ray.gpus 1, or a share such as 0.25"):
        OnRay(Ray(), "cuda")


def test_a_run_that_fits_on_no_machine_is_refused_where_none_can_come(caplog):
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 1.0}}]
    ray = SimpleNamespace(nodes=lambda: nodes)
    _check_room(ray, Ray(cpus=2))
    with pytest.raises(InputError, match=r"ray.cpus = 2, ray.gpus = 0.5: no machine has as much \(2 CPUs, 0 GPUs\)"):
        _check_room(ray, Ray(cpus=2, gpus=0.5))
    _check_room(ray, Ray(cpus=4, address="auto"))  # a cluster that is there may grow
    assert "runs wait until one comes" in caplog.text


def test_where_no_cluster_answers_the_error_comes_at_once():
    pytest.importorskip("ray")
    start = time.monotonic()
    with pytest.raises(InputError, match=r"ray.address = 127.0.0.1:1: Connection refused; start a cluster there"):
        OnRay(Ray(address="127.0.0.1:1"))
    assert time.monotonic() - start < 10


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    two.add_node(num_cpus=1)
    yield two
    two.shutdown()


def test_with_two_workers_one_of_them_killed_in_mid_run_every_cell_ends_done_and_none_twice(cluster, tmp_path):
    cells = tiny_cells(tmp_path, "grid: {rule: [cl, c-ep]}", epochs=25)
    store, killed = make_store(tmp_path / "store", "tiny"), []

    def kill_the_first(event):
        if event["event"] == "claimed" and not killed:
            while store.epochs(event["key"]) < 2:
                time.sleep(0.002)
            os.kill(event["pid"], signal.SIGKILL)
            killed.append(event["key"])
            assert not store.is_done(event["key"])

    outcome = run_study(store, cells, OnRay(Ray(address=cluster.address)), watch=kill_the_first)
    assert (sorted(outcome.done), outcome.failed) == (sorted(cell.key for cell in cells), {})
    told = readable(store.events.read_bytes())
    counted = {kind: Counter(e["key"] for e in told if e["event"] == kind) for kind in ("claimed", "failed", "done")}
    once = Counter(cell.key for cell in cells)
    assert counted == {"claimed": once + Counter(killed), "failed": Counter(killed), "done": once}
    assert [e["error"] for e in told if e["event"] == "failed"] == ["its worker was killed, or died, in mid-run"]
    assert len({e["pid"] for e in told if e["event"] == "claimed"}) == 3  # a process for each run
    (config,) = (cell.config for cell in cells if cell.key == killed[0])
    train(config, tmp_path / "undisturbed")
    assert (store.run_folder(killed[0]) / "metrics.jsonl").read_text() == (tmp_path / "undisturbed/metrics.jsonl").read_text()


def test_stopping_ends_the_tasks_at_once_and_leaves_the_cluster(cluster, tmp_path):
    def nap(store, key):
        (store / key).write_text(str(os.getpid()))
        time.sleep(60)

    executor = OnRay(Ray(address=cluster.address), work=nap)
    executor.start(tmp_path, ["a", "b", "c"])
    wait_for(lambda: sum((tmp_path / key).exists() for key in "abc") == 2)  # there are two CPUs
    begun = [int(path.read_text()) for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c") if path.exists()]
    start = time.monotonic()
    executor.stop()
    assert time.monotonic() - start < 5
    wait_for(lambda: not any(alive(pid) for pid in begun))
    assert executor.ended() == []
    other = OnRay(Ray(address=cluster.address))
    assert [node["Alive"] for node in other.ray.nodes()] == [True, True]
    other.stop()


def test_a_machine_that_does_not_see_the_store_says_so(tmp_path):
    with pytest.raises(InputError, match=rf"does not see the store {tmp_path}/not: put it in a folder that all machines share"):
        _in_worker(lambda store, key: None, "a", str(tmp_path / "not"), 1, str(tmp_path), {})


def test_what_became_of_a_task_is_told_in_a_line():
    errors = pytest.importorskip("ray").exceptions
    told = {
        errors.RayTaskError("f", "a traceback", InputError("the disk is full: mend it")): "the disk is full: mend it",
        errors.RayTaskError("f", "a traceback", ValueError("this\nwent wrong")): "ValueError: this",
        errors.NodeDiedError("many words"): "the machine it ran on left the cluster",
        errors.OutOfMemoryError("Task was killed due to the node running low on memory.\nMemory on the node"): (
            "OutOfMemoryError: Task was killed due to the node running low on memory."
        ),
    }
    for error, line in told.items():

        def get(task, error=error):
            raise error

        assert _error(SimpleNamespace(get=get, exceptions=errors), None) == line


def test_a_fresh_cluster_says_nothing_sees_our_settings_and_is_gone_afterwards(tmp_path):
    pytest.importorskip("ray")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time, torch\n"
        "from pathlib import Path\n"
        "from ebl.study.on_ray import OnRay, Ray\n"
        "def look(store, key):\n"
        "    print('words')\n"
        "    (store / key).write_text(f'{torch.get_num_threads()} {os.environ[\"EBL_DATA\"]} {os.getcwd()}')\n"
        "executor = OnRay(Ray(cpus=2), work=look)\n"
        "executor.start(Path(sys.argv[1]), ['a'])\n"
        "while not (ended := executor.ended()): time.sleep(0.05)\n"
        "executor.stop()\n"
        "assert ended[0].error == '', ended\n"
    )
    environment = {**os.environ, "EBL_DATA": "some/where"}
    command = [sys.executable, "-W", "error", script, tmp_path]
    with subprocess.Popen(command, text=True, stdout=-1, stderr=-1, env=environment, cwd=tmp_path) as process:
        said = process.communicate(timeout=60)
    assert (process.returncode, *said) == (0, "", "")
    assert (tmp_path / "a").read_text() == f"2 some/where {tmp_path}"
    assert (tmp_path / "logs" / "a.log").read_text() == "words\n"
    ours = f"/session_[-_0-9]*_{process.pid}/"  # Ray names a cluster's folder by who started it
    left = subprocess.run(["pgrep", "-f", ours], capture_output=True, text=True).stdout.split()
    wait_for(lambda: not any(alive(int(pid)) for pid in left))


def wait_for(true, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
