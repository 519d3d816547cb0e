"""The command line as a user meets it."""

import json
import os
import subprocess
import sys

import pytest

from ebl.cli import main

TINY = [
    "--epochs",
    "1",
    "--model.hidden",
    "2",
    "2",
    "--free.iterations",
    "3",
    "--nudged.iterations",
    "2",
    "--batch-size",
    "500",
]


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--rule", "cep"], "did you mean c-ep?"),
        (["train", "--settle", "x"], "--settle x: give a number, or none; see ebl train --help"),
        (["train", "--epochs", "1.5"], "--epochs 1.5: give a whole number; see ebl train --help"),
        (["train", "--settle", "none", "--epochs", "0"], "epochs = 0"),
        (["train", "--settle=none", "--epochs", "0"], "epochs = 0"),
        (["train", "--optimiser.momentum", "x"], "--optimiser.momentum x: give a number; see"),
        (["study", "show", "none"], "study = 'none' is unknown"),
        (["train", "--optimiser.rate-min", "5"], "optimiser.rate_min = 5.0"),
        (["train", "--residual-warning", "nan"], "residual_warning = nan"),
        (["train", "--checkpoint-seconds", "nan"], "--checkpoint-seconds nan"),
        (["train", "--val", "5000"], "val = 5000: of 5000 training images each of 10 classes keeps one; use at most 4990"),
        (["study", "run", "quick", "--seeds", "x"], "see ebl study run --help"),
        (["train", "--preset", "tabel1"], "did you mean table1?"),
        (["train", "--dataset", "cifar"], "did you mean cifar10?"),
        (["train", "--beta", "0"], "beta = 0 for c-ep: the contrast divides by beta; use a value such as 0.25"),
        (["train", "--rule", "cl", "--beta", "0.5"], "beta = 0.5 for cl"),
        (["train", "--omega", "2"], "omega = 2.0: relaxation needs 0 < omega < 2"),
        (["train", "--omega", "0"], "omega = 0"),
        (["train", "--free.omega", "-1"], "free.omega = -1"),
        (["train", "--nudged.iterations=0"], "nudged.iterations = 0"),
        (["train", "--free.iterations", "5", "--nudged.iterations", "0"], "ebl: nudged.iterations = 0"),
        (["train", "--free.iterations", "0", "--nudged.iterations", "0"], "ebl: iterations = 0"),
        (["train", "--nudged.order", "back"], "nudged.order = 'back' is unknown: did you mean backward?"),
        (["train", "--dataset", "./a(b.npz"], "no such file or folder"),
        (["train", "--model.kernel-size", "0"], "model.kernel_size = 0"),
        (["train", "--pad", "1"], "image_size = 30×30"),
        (["train", "--preset", "table1", "--data-dir", "empty"], "ebl data fetch cifar10"),
        (["train", "--epochs", "many"], "--epochs"),
        (["train", "--ruel", "c-ep"], "did you mean --rule?"),
        (["train", "--device", "tpu"], "device = 'tpu'"),
        (["trian"], "did you mean train?"),
        (["train", "--beta", "1.0"], "beta = 1 for c-ep"),
        (["train", "--rule", "n-ep", "--beta", "1.5"], "beta = 1.5 for n-ep"),
        (["train", "--rule", "r-ep", "--beta", "1.5"], "beta = 1.5 for r-ep"),
        (["train", "--optimiser.weight-decay", "-1"], "weight_decay = -1"),
        (["train", "--optimiser.rate-min", "-1"], "rate_min = -1"),
        (["train", "--optimiser.rates", "nan"], "rates = (nan,)"),
        (["train", "--model.gains", "nan"], "gains = (nan,)"),
        (["train", "--model.kind", "dense", "--model.hidden", "0", "2"], "model.hidden = (0, 2)"),
        (["train", "--model.padding", "-1"], "padding = -1"),
        (["train", "--seed", "99999999999999999999999"], "seed = "),
        (["train", "--seed", "-1"], "seed = -1"),
        (["train", "--device", "meta"], "device = 'meta'"),
        (["train", "--dataset", "./mine"], "no such file or folder"),
        (["train", "--threads", "0"], "--threads 0: use a positive number"),
        (["study", "run", "quick", "--processes", "0"], "processes = 0"),
        (["study", "run", "quick", "--set", "nudged.omega=2"], "ebl: nudged.omega = 2.0"),
        (["study", "run", "quick", "--set", "model.hidden=[0]"], "ebl: model.hidden = (0,)"),
        (["study", "run", "quick", "--set", "model.kernel_size=0"], "ebl: model.kernel_size = 0"),
        (["study", "run", "quick", "--set", "optimiser.momentum=7"], "ebl: optimiser.momentum = 7.0"),
        (
            ["study", "run", "quick", "--ray.cpus", "3"],
            "--ray.cpus 3 is for --on ray, runs are made on local: add --on ray, or leave it out",
        ),
        (["study", "run", "quick", "--slurm.at-once", "3"], "--slurm.at-once 3 is for --on slurm"),
        (
            ["study", "run", "quick", "--on", "slurm", "--threads", "3"],
            "--threads 3 is for --on local, runs are made on slurm: leave it out",
        ),
        (["evaluate", "nowhere"], "not a run folder"),
    ],
)
def test_bad_input_is_one_line_exit_code_two_and_writes_nothing(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, *words)
    assert line.startswith("ebl: ")
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_train_evaluate_resume_and_presets(capsys, tmp_path):
    out = str(tmp_path / "run")
    main(["train", "--rule", "n-ep", "--omega", "chebyshev:0.8", "--seed", "3", "--out", out, *TINY])
    assert "n-ep on fashion-mini: test error" in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["rule"], config["seed"], config["free"]["omega"], config["nudged"]["omega"]) == (
        "n-ep",
        3,
        "chebyshev:0.8",
        "chebyshev:0.8",
    )
    final = json.loads((tmp_path / "run" / "result.json").read_text())["final"]
    main(["evaluate", out, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == final["test_error"]
    assert found["cost"] == final["test_cost"]
    main(["evaluate", out, "--iterations", "5", "--omega", "1.2"])
    assert "fashion-mini" in capsys.readouterr().out
    assert "--resume" in refused(
        capsys, "train", "--rule", "n-ep", "--omega", "chebyshev:0.8", "--seed", "3", "--out", out, *TINY
    )
    assert "seed 3 there, 4 now" in refused(
        capsys, "train", "--rule", "n-ep", "--omega", "chebyshev:0.8", "--seed", "4", "--resume", "--out", out, *TINY
    )
    main(["train", "--rule", "n-ep", "--omega", "chebyshev:0.8", "--seed", "3", "--resume", "--out", out, *TINY])
    assert capsys.readouterr().out.startswith(f"{out} is done already")
    main(["precision", out, "--device", "cpu", "--images", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [row["precision"] for row in found["rows"]] == ["fp32"]
    assert (found["config"], found["images"]) == (config, 4)
    assert {"commit", "hardware"} <= found.keys()
    main(["presets"])
    said = capsys.readouterr().out
    assert "cifar100-sota-300" in said
    assert "chebyshev:0.95, 1.4" in said


def test_a_presets_beta_gives_way_to_rules_that_have_their_own(capsys, tmp_path):
    base = ["--preset", "table1", "--dataset", "fashion-mini", "--optimiser.rates", "0.1", "--model.gains", "0.5"]
    for rule, beta in (("cl", None), ("tbp", None), ("p-cpl", 0.25)):
        main(["train", *base, "--pad", "0", "--rule", rule, "--out", str(tmp_path / rule), *TINY])
        assert json.loads((tmp_path / rule / "config.json").read_text())["beta"] == beta
    capsys.readouterr()


def test_tensorboard_is_optional(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = refused(capsys, "train", "--tensorboard", "--out", str(tmp_path / "run"), *TINY)
    assert 'pip install "ebl[tensorboard]"' in said
    assert not (tmp_path / "run").exists()


def test_tensorboard_logs_hold_the_metrics(tmp_path, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    main(["train", "--tensorboard", "--out", str(tmp_path / "run"), *TINY])
    capsys.readouterr()
    log = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    log.Reload()
    final = json.loads((tmp_path / "run" / "result.json").read_text())["final"]
    assert [e.value for e in log.Scalars("test/error")] == pytest.approx([final["test_error"]])


def test_the_core_imports_torch_numpy_and_safetensors_only():
    code = "import ebl, ebl.train, ebl.presets, sys; print([m for m in ('tyro', 'rich', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", [["--help"], ["presets"], ["evaluate", "--help"], ["train", "--help"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(words, buffered):
    environment = os.environ | {"PYTHONUNBUFFERED": buffered}
    command = [sys.executable, "-m", "ebl", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
        child.stdout.close()
        assert child.stderr.read() == b""


def test_an_error_is_told_though_nobody_reads_what_was_printed_before():
    code = "import ebl.cli, ebl.cli.presets, ebl\n"
    code += "def run(argv): print('so far'); raise ebl.InputError('the real error')\n"
    code += "ebl.cli.presets.run = run; ebl.cli.main(['presets'])"
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes, env=environment) as child:
        child.stdout.close()
        assert child.stderr.read() == b"ebl: the real error\n"
    assert child.returncode == 2


def test_a_command_needs_no_standard_output():
    done = subprocess.run(["sh", "-c", '"$0" -m ebl --version >&-', sys.executable], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_broken_pipe_is_told(capsys, monkeypatch):
    def broken(argv: list[str]) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("ebl.cli.presets.run", broken)
    assert "Broken pipe" in refused(capsys, "presets")


def test_help_and_version_work_as_a_module():
    for words in (["--help"], ["train", "--help"], ["--version"]):
        assert subprocess.run([sys.executable, "-m", "ebl", *words], capture_output=True, check=True).stdout


def test_bench_measures_steps_and_tests_beside_the_naive_definition(capsys, monkeypatch):
    monkeypatch.setattr("ebl.bench.PRESETS", ("quick",))
    main(["bench", "--device", "cpu", "--repeats", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    (row,) = found["steps"]
    # two products for the pair of hidden layers (16 to 32 channels, 3x3, maps of 14x14), two for the readout (32 maps of 7x7)
    products = 2 * 2 * 50 * (14 * 14 * 16 * 32 * 9 + 32 * 7 * 7 * 10)
    assert row["tflops_per_second"] * row["milliseconds"] * 1e9 == pytest.approx(products * (12 + 2 * 8))
    assert row["ratio"] == pytest.approx(row["naive_milliseconds"] / row["milliseconds"])
    assert row["share_of_ceiling"] == pytest.approx(row["tflops_per_second"] / found["ceiling_tflops_per_second"])
    assert row["test_iterations"] == row["free_iterations"] == 12
    assert 10 < row["test_seconds"] / (1e-3 * row["milliseconds"]) < 1000  # 200 batches of 12 iterations; a step has 28
    main(["bench", "--device", "cpu", "--repeats", "1"])
    assert "s a test" in capsys.readouterr().out
