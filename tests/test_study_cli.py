"""`ebl study` as a user meets it."""

import json
import re
from dataclasses import replace

import pytest
import torch
from studies import Inline, tiny_yaml
from test_cli import refused

from ebl.cli import main, study_run
from ebl.cli import study as command
from ebl.study.grid import read_study
from ebl.study.record import Record
from ebl.study.rows import places, rows
from ebl.study.store import make_store, mark, open_store


@pytest.fixture(autouse=True)
def _inline(monkeypatch, tmp_path):
    """Runs are made in this process, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(study_run.EXECUTORS, "local", lambda *_: Inline())


def said(capsys, *words: str) -> str:
    main(["study", *words])
    return capsys.readouterr().out


def row(text: str, start: str) -> list[str]:
    """The words of the line that starts so."""
    (line,) = [line.split() for line in text.splitlines() if line.split()[:1] == [start]]
    return line


def test_a_study_runs_shows_goes_on_and_can_be_widened(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path))
    first = said(capsys, "run", "mine.yaml", "--rules", "cl", "--seeds", "0")
    assert "cl on" in first
    assert "1 of 1 runs done; runs/studies/mine" in first
    whole = said(capsys, "run", "mine.yaml", "--rules", "cl", "c-ep")
    assert "4 of 4 runs done" in whole
    assert "cl on" in whole  # seed 1
    assert len(open_store("runs/studies/mine").cells()) == 4
    finals = [r.final for r in open_store("runs/studies/mine").records() if r.config["rule"] == "cl"]
    mean = [sum(f[name] for f in finals) / 2 for name in ("test_error", "train_error")]
    shown = said(capsys, "show", "mine")
    assert row(shown, "cl")[1:3] == [f"{100 * value:.2f}" for value in mean]
    assert row(shown, "cl")[4] == "2/2"
    assert said(capsys, "show", "runs/studies/mine") == shown == said(capsys, "show", "mine.yaml")
    lines = [json.loads(line) for line in said(capsys, "show", "mine", "--json").splitlines()]
    assert [(line["rule"], line["seed"], line["status"], line["epoch"]) for line in lines] == [
        ("cl", 0, "done", 2),
        ("c-ep", 0, "done", 2),
        ("cl", 1, "done", 2),
        ("c-ep", 1, "done", 2),
    ]
    assert row(said(capsys, "list"), "mine")[1:3] == ["4", "4"]


def test_show_tells_what_runs_how_far_it_is_and_what_failed(capsys, tmp_path):
    store = make_store("runs/studies/quick", "quick")
    store.add(read_study("quick").cells)
    keys = list(store.cells())
    run = store.run_folder(keys[0])
    run.mkdir()
    (run / "config.json").write_text(json.dumps(store.cells()[keys[0]]["config"]))
    (run / "metrics.jsonl").write_text('{"epoch": 1}\n')
    (run / "times.jsonl").write_text('{"epoch": 1, "seconds": 20.0, "training_seconds": 18.0}\n')
    store.tell("failed", keys[1], error="no luck", retry=True)
    store.tell("failed", keys[2], error="no machine", retry=True)
    store.tell("again", keys[2], after=mark(store.failures()[keys[2]]))
    store.tell("again", keys[1], after=mark({"error": "an earlier failure"}))
    with store.claim(keys[0]):
        shown = said(capsys, "show", "quick")
    running = r"running: tbp on fashion-mini, seed 0: 1 of 3 epochs, 20 s each, about 40 s left; for \d+ s on .*, process \d+"
    assert re.search(running, shown)
    assert "failed: rbp on fashion-mini, seed 0: no luck" in shown
    assert re.search(r"failed, waits to be tried again: \S+ on fashion-mini, seed 0: no machine", shown)
    assert "0 of 9 runs done, 1 running, 1 failed, 7 waiting; runs/studies/quick" in shown


def test_a_study_that_was_never_run_is_shown_as_waiting(capsys):
    shown = said(capsys, "show", "table1")
    assert row(shown, "c-ep") == ["c-ep", *["–", "(0/3)"] * 5]
    assert "0 of 135 runs done, 135 waiting" in shown


def test_a_study_that_has_a_store_is_named_once_among_the_choices(capsys):
    make_store("runs/studies/quick", "quick")
    make_store("runs/studies/mine", "mine")
    assert refused(capsys, "study", "show", "nothing").endswith("use one of quick, table1, table2, table3, table6, mine")


def test_failed_runs_make_the_command_fail(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path, "grid: {rule: [c-ep]}", **{"optimiser.rates": 1e30}))
    with pytest.raises(SystemExit) as stop:
        main(["study", "run", "mine.yaml"])
    assert stop.value.code == 1
    assert "failed: c-ep on" in capsys.readouterr().out


def test_a_dry_run_writes_nothing_and_estimates_from_operations_then_from_what_was_measured(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path))
    before = sorted(tmp_path.iterdir())
    first = said(capsys, "run", "mine.yaml", "--dry-run")
    assert sorted(tmp_path.iterdir()) == before
    assert "0 of 4 runs done, 4 waiting" in first
    assert "GFLOP/s, measured on a short step of c-ep on one thread" in first
    main(["study", "run", "mine.yaml", "--seeds", "0"])
    for key in list((tmp_path / "runs/studies/mine/runs").iterdir()):
        result = json.loads((key / "result.json").read_text())
        seconds = 600 if result["config"]["rule"] == "cl" else 1200  # in 2 epochs
        (key / "result.json").write_text(json.dumps({**result, "seconds": seconds}))
    capsys.readouterr()
    again = said(capsys, "run", "mine.yaml", "--dry-run", "--processes", "2")
    assert "2 of 4 runs done, 2 waiting; 30 min one at a time, 15 min with 2 that" in again
    assert "of runs of the same shape in the store" in again


def test_a_dry_run_for_a_gpu_that_is_not_here_lists_the_runs_without_an_estimate(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shown = said(capsys, "run", "table6", "--device", "cuda", "--data-dir", ".", "--dry-run")
    assert "0 of 27 runs done, 27 waiting (no estimate for cuda: there is no GPU here" in shown
    assert "before it can start: svhn not in" in shown
    assert "before it can start: device = 'cuda' cannot be used here" in shown
    (tmp_path / "other").write_text("")
    shown = said(capsys, "run", "quick", "--store", str(tmp_path / "other" / "sub"), "--dry-run")
    assert "other is no folder): choose another --store" in shown
    shown = said(capsys, "run", "quick", "--on", "ray", "--device", "cuda", "--processes", "8", "--dry-run")
    assert "before it can start: ray.gpus = 0" in shown


def test_settings_from_flags_reach_every_run(capsys, tmp_path):
    flags = ("--epochs", "2", "--relax", "fast", "--set", "batch_size=25", "beta=0.125", "model.gains=[0.3, 0.4, 0.5]")
    dry = said(capsys, "run", "quick", "--rules", "r-ep", "tbp", "--seeds", "4", "5", *flags, "--dry-run")
    assert "0 of 4 runs done" in dry
    args = command.parse(command.Arguments, "", ["run", "quick", "--rules", "r-ep", "tbp", "--seeds", "4", *flags]).action
    tbp, r_ep = (cell.config for cell in study_run._cells(args, read_study("quick").cells))
    assert (tbp.rule, tbp.beta, r_ep.rule, r_ep.beta) == ("tbp", None, "r-ep", 0.125)
    for c in (tbp, r_ep):
        assert (c.epochs, c.batch_size, c.seed, c.settle, c.model.gains) == (2, 25, 4, 5e-4, (0.3, 0.4, 0.5))


def test_flags_that_make_runs_of_a_study_the_same_say_so(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path, "grid: {seed: [0, 1], nudged.omega: [1.0, 1.2]}"))
    dry = said(capsys, "run", "mine.yaml", "--relax", "fast", "--dry-run")
    assert "make 4 runs of the study 2" in dry
    assert "0 of 2 runs done" in dry
    assert "of the study" not in said(capsys, "run", "mine.yaml", "--seeds", "0", "--dry-run")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["rnu", "quick"], "did you mean run?"),
        (["run"], "required"),
        (["run", "quick", "--rules", "cep"], "--rules = 'cep' is unknown: did you mean c-ep?"),
        (["run", "quick", "--datasets", "cifar"], "did you mean cifar10?"),
        (["run", "quick", "--set", "epochs"], "--set epochs: give key=value"),
        (["run", "quick", "--set", "epoch=3"], "--set: setting = 'epoch' is unknown: did you mean epochs?"),
        (["run", "quick", "--set", "epochs=many"], "--set: epochs = 'many': give a whole number"),
        (["run", "quick", "--set", "free.omega=3"], "omega = 3"),
        (["run", "quick", "--epochs", "0"], "epochs = 0"),
        (["run", "quick", "--relax", "fats"], "did you mean fast?"),
        (["run", "quick", "--retries", "-1"], "--retries -1"),
        (["run", "quick", "--on", "lcoal"], "did you mean local?"),
        (["run", "quick", "--device", "tpu"], "device = 'tpu'"),
        (["run", "table1", "--data-dir", "."], "mnist, fashion-mnist, svhn, cifar10, cifar100 not in"),
        (["show", "qiuck"], "did you mean quick?"),
        (["show", "."], "holds no runs"),
        (["merge", "a", "b"], "b is not a study's store"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(capsys, tmp_path, words, line):
    assert line in refused(capsys, "study", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_a_newer_version_is_named_in_the_list_and_refused_elsewhere(capsys, tmp_path):
    store = make_store("runs/studies/later", "later")
    (store.folder / "study.json").write_text(json.dumps({"format": 9, "name": "later"}))
    assert "made by a newer version" in " ".join(said(capsys, "list").split())
    assert "later was made by a newer version of ebl" in refused(capsys, "study", "show", "later")


def test_brackets_in_a_label_are_shown_as_they_are(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path, "label: '[red] {epochs}'\ngrid: {seed: [0]}"))
    shown = said(capsys, "run", "mine.yaml")
    assert "[red] 2 on " in shown
    assert row(said(capsys, "show", "mine"), "[red]")[1] == "2"


def test_merging_two_machines(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(tiny_yaml(tmp_path))
    main(["study", "run", "mine.yaml", "--seeds", "0", "--store", "a"])
    main(["study", "run", "mine.yaml", "--seeds", "1", "--store", "b"])
    capsys.readouterr()
    assert said(capsys, "merge", "a", "b").strip() == "a: 2 done"
    assert "4 of 4 runs done; a" in said(capsys, "show", "a")


# rows and places


def record(key: str, **config) -> Record:
    settings = {"rule": "c-ep", "dataset": "mnist", "seed": 0, "epochs": 3, "free": {"iterations": 60}, "device": "cpu"}
    return Record(key, settings | config, "waiting")


def test_rows_say_what_sets_runs_of_one_place_apart_and_nothing_else():
    found = rows([record("a"), record("b", seed=1), record("c", dataset="svhn", epochs=9), record("d", seed=2, device="cuda")])
    assert set(found.values()) == {"c-ep"}
    mixed = [record("a"), record("b", epochs=9, free={"iterations": 15}), record("c", seed=1), record("d", rule="cl", epochs=9)]
    assert rows(mixed) == {"a": "c-ep, epochs=3", "b": "c-ep, epochs=9", "c": "c-ep, epochs=3", "d": "cl"}
    labelled = [replace(record("a"), label="small"), replace(record("b", rule="cl"), label="small")]
    assert rows(labelled) == {"a": "small, rule=c-ep", "b": "small, rule=cl"}


def test_a_place_has_its_seeds_their_means_and_states():
    done = [
        replace(record(f"{seed}", seed=seed), status="done", final={"test_error": error}, collapsed=collapsed)
        for seed, (error, collapsed) in enumerate([(0.2, False), (0.4, True)])
    ]
    place = places([*done, record("c", seed=2)])["c-ep", "mnist"]
    assert place.mean("test_error") == pytest.approx(0.3)
    assert (place.states["done"], place.states["waiting"], place.collapsed) == (2, 1, 1)
