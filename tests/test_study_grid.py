"""What a study is: the built-in ones are the paper's, a file of the user's is what it says, keys stay the same."""

import hashlib
from dataclasses import dataclass, replace

import pytest
from test_cli import refused

from ebl.config import Config, Model, Optimiser
from ebl.errors import InputError
from ebl.presets import preset
from ebl.relax import Schedule
from ebl.study import key as key_module
from ebl.study.grid import BUILT_IN, narrowed, parse_study, read_study, with_settings
from ebl.study.key import key_of
from ebl.study.settings import changed, check_value, flat_config, relaxation_of

NINE = ("tbp", "rbp", "cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")
FIVE = ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100")
WITHOUT_BETA = ("tbp", "rbp", "cl")


def configs(text: str) -> list[Config]:
    return [cell.config for cell in parse_study(text, "mine", "mine.yaml").cells]


def with_rule(base: Config, rule: str, **more) -> Config:
    return replace(base, rule=rule, beta=None if rule in WITHOUT_BETA else base.beta, **more)


def test_table_1_is_nine_rules_on_five_datasets_with_three_seeds():
    found = [cell.config for cell in read_study("table1").cells]
    base = preset("table1")
    assert found == [with_rule(base, r, dataset=d, seed=s) for s in (0, 1, 2) for d in FIVE for r in NINE]
    assert len(found) == 135


def test_table_2_is_the_best_settings_and_its_rows_are_the_epochs():
    found = {(c.label, c.config.dataset, c.config.seed): c.config for c in read_study("table2").cells}
    assert len(found) == 15
    for seed in (0, 1, 2):
        assert found["100 epochs", "mnist", seed] == replace(preset("mnist-sota"), seed=seed)
        for epochs in (100, 300):
            for name in ("cifar10", "cifar100"):
                assert found[f"{epochs} epochs", name, seed] == replace(preset(f"{name}-sota-{epochs}"), seed=seed)


def test_table_3_sets_synchronous_updates_in_32_bits_against_asynchronous_ones():
    cells = read_study("table3").cells
    base = preset("cifar10-sota-100")
    synchronous = {"free": Schedule(250, order="synchronous"), "nudged": Schedule(30, order="synchronous")}
    assert [c.config for c in cells] == [replace(base, precision="fp32", **synchronous)] + [
        replace(base, seed=seed) for seed in (0, 1, 2)
    ]
    assert cells[0].label == "synchronous, fp32, T=250 K=30"
    assert {c.label for c in cells[1:]} == {"asynchronous, precision auto, T=60 K=20"}


def test_table_6_is_svhn_with_gain_07_and_quick_the_embedded_data():
    base = preset("table6")
    assert (base.dataset, base.model.gains) == ("svhn", (0.7,) * 5)
    assert [c.config for c in read_study("table6").cells] == [with_rule(base, r, seed=s) for s in (0, 1, 2) for r in NINE]
    assert [c.config for c in read_study("quick").cells] == [with_rule(preset("quick"), r) for r in NINE]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_cell_of_a_built_in_study_has_a_key_of_its_own(name):
    keys = [cell.key for cell in read_study(name).cells]
    assert len(set(keys)) == len(keys)


def test_a_grid_multiplies_and_overrides_change_or_leave_out_what_they_match():
    found = configs("""
        preset: quick
        set: {epochs: 7, model: {hidden: [4, 5]}}
        grid:
          rule: [cl, c-ep, n-ep]
          beta: [0.1, 0.2]
          free.iterations: [12, 20]
        overrides:
          - {match: {rule: c-ep, beta: 0.1}, set: {nudged.iterations: 3}}
          - {match: {rule: [n-ep], free.iterations: 20}, skip: true}
    """)
    seen = [(c.rule, c.beta, c.free.iterations, c.nudged.iterations) for c in found]
    assert seen == [
        ("cl", None, 12, 8),  # the same at every beta: once
        ("cl", None, 20, 8),
        ("c-ep", 0.1, 12, 3),
        ("c-ep", 0.1, 20, 3),
        ("c-ep", 0.2, 12, 8),
        ("c-ep", 0.2, 20, 8),
        ("n-ep", 0.1, 12, 8),
        ("n-ep", 0.2, 12, 8),
    ]
    assert {(c.epochs, c.model.hidden, c.free.omega) for c in found} == {(7, (4, 5), 1.4)}


def test_blocks_have_what_is_said_for_all_and_their_own():
    cells = parse_study(
        """
        label: "{model.hidden}, {epochs} epochs"
        grid: {seed: [0, 1]}
        set: {epochs: 4}
        cells:
          - {preset: quick}
          - {preset: quick, set: {model.hidden: [8, 8]}, grid: {seed: [5]}}
          - {preset: quick, label: plain, set: {epochs: 9}, grid: {rule: [n-ep]}}
        """,
        "mine",
        "mine.yaml",
    ).cells
    assert [(c.label, c.config.rule, c.config.seed) for c in cells] == [
        ("(16, 32), 4 epochs", "c-ep", 0),
        ("(16, 32), 4 epochs", "c-ep", 1),
        ("(8, 8), 4 epochs", "c-ep", 5),
        ("plain", "n-ep", 0),
        ("plain", "n-ep", 1),
    ]


def test_narrowing_keeps_what_is_there_adds_what_is_not_and_changes_all():
    cells = narrowed(read_study("table1").cells, "rule", ["c-ep", "cl"])
    cells = narrowed(cells, "seed", [1, 7])
    cells = narrowed(cells, "dataset", ["mnist", "kmnist"])
    assert {(c.config.rule, c.config.dataset, c.config.seed) for c in cells} == {
        (r, d, s) for r in ("cl", "c-ep") for d in ("mnist", "kmnist") for s in (1, 7)
    }
    assert len(cells) == 8
    fast = preset("fast")
    for cell in with_settings(cells, {**relaxation_of("fast"), "epochs": 3}):
        c = cell.config
        assert (c.free, c.nudged, c.settle, c.start, c.epochs) == (fast.free, fast.nudged, fast.settle, fast.start, 3)
        assert c.optimiser == preset("table1").optimiser
    new = narrowed(read_study("table3").cells, "rule", ["n-ep"])
    assert [(c.config.rule, c.config.seed, c.config.free.iterations) for c in new] == [
        ("n-ep", 0, 250),
        ("n-ep", 0, 60),
        ("n-ep", 1, 60),
        ("n-ep", 2, 60),
    ]


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("optimiser.weight_decay", "3e-4", 3e-4),  # YAML 1.1 takes this for text
        ("model.gains", 0.7, (0.7,)),
        ("model.hidden", [4, 5], (4, 5)),
        ("settle", "none", None),
        ("beta", None, None),
        ("free.omega", "chebyshev:0.9", "chebyshev:0.9"),
        ("free.omega", 1, 1.0),
        ("flip", True, True),
    ],
)
def test_values_become_what_their_setting_is(key, value, read):
    found = check_value(key, value, "here")
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "mine.yaml is no YAML (line"),
        ("grid:\n  seed: [0, 1]\n  rule: [cl]\n  seed: [2]", "mine.yaml: seed (lines 2 and 4) is there twice"),
        ("set: {epochs: 1}\ngrid: {seed: [0]}\nset: {beta: 1}", "mine.yaml: set (lines 1 and 3) is there twice"),
        ("grid: {seed: [0]}\nset: &all {free: *all}", "mine.yaml: set: the settings contain themselves"),
        ("[1, 2]", "mine.yaml is no study"),
        ("", "mine.yaml is no study"),
        ("preset: quick", "neither a grid nor cells"),
        ("grid: {}", "mine.yaml: grid is empty: give a list of values, such as seed: [0, 1]"),
        ("grid:\npreset: quick", "mine.yaml: grid is empty"),
        ("{preset: quick, cells: [{grid: {}}]}", "mine.yaml: cells, block 1: grid is empty"),
        ("set: {free: {iterations: 7}}\ngrid: {free.iterations: [3, 4]}", "free.iterations is both in set and in grid"),
        ("gird: {seed: [0]}", "mine.yaml: key = 'gird' is unknown: did you mean grid?"),
        ("grid: {ruel: [cl]}", "mine.yaml: grid: setting = 'ruel' is unknown: did you mean rule?"),
        ("grid: {seed: []}", "grid: seed = []: give a list of at least one value"),
        ("grid: {seed: 3}", "grid: seed = 3: give a list"),
        ("grid: {epochs: [many]}", "grid: epochs = 'many': give a whole number"),
        ("grid: {augment: [1]}", "grid: augment = 1: give true or false"),
        (
            "{grid: {seed: [0]}, set: {free.iteration: 3}}",
            "set: setting = 'free.iteration' is unknown: did you mean free.iterations?",
        ),
        ("{grid: {seed: [0]}, set: 5}", "set = 5: give `key: value` pairs"),
        ("{grid: {rule: [cep]}}", "mine.yaml: rule = 'cep' is unknown: did you mean c-ep?"),
        ("{grid: {dataset: [cifar]}}", "did you mean cifar10?"),
        ("{preset: tabel1, grid: {seed: [0]}}", "mine.yaml: preset = 'tabel1' is unknown: did you mean table1?"),
        ("{grid: {beta: [0]}}", "mine.yaml: beta = 0 for c-ep"),
        ("{grid: {seed: [0]}, overrides: [{match: {seed: 0}, skip: true}]}", "no cell is left"),
        ("{grid: {seed: [0]}, overrides: [{set: {seed: 0}}]}", "overrides, number 1"),
        ("{grid: {seed: [0]}, overrides: [{match: {sed: 0}}]}", "did you mean seed?"),
        (
            "{grid: {seed: [0]}, overrides: [{match: {seed: 0}}]}",
            "overrides, number 1 changes nothing: give set, label or skip",
        ),
        ("{grid: {seed: [0]}, overrides: [{match: {seed: 0}, skip: 'false'}]}", "skip = 'false': give true or false"),
        ("{grid: {seed: [0]}, overrides: [{match: {seed: 7}, set: {beta: 1}}]}", "no run matches {'seed': 7}"),
        ("{set: {seed: 1}, grid: {seed: [0]}}", "seed is both in set and in grid: give it once"),
        ("{grid: {seed: [0]}, label: '{epoch}'}", "label = '{epoch}': setting = 'epoch' is unknown: did you mean epochs?"),
        ("{grid: {seed: [0]}, label: '{epochs'}", "label = '{epochs'"),
        ("{grid: {seed: [0]}, label: '{epochs:{seed}}'}", "label = '{epochs:{seed}}'"),
        ("cells: []", "cells = []"),
        ("cells: [{sed: {}}]", "cells, block 1: key = 'sed' is unknown: did you mean set?"),
        ("{name: a/b, grid: {seed: [0]}}", "name = 'a/b'"),
        ("{model: {gains: 3}, grid: {seed: [0]}}", "key = 'model' is unknown"),
    ],
)
def test_a_file_that_is_no_study_is_one_line_with_file_key_and_remedy(text, said):
    with pytest.raises(InputError) as caught:
        parse_study(text, "mine", "mine.yaml")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("mine.yaml")


def test_an_override_for_all_blocks_need_match_in_one_only():
    text = "overrides: [{match: {rule: cl}, set: {epochs: 3}}]\ncells: [{set: {rule: cl}}, {set: {rule: c-ep}}]"
    assert [cell.config.epochs for cell in parse_study(text, "mine", "mine.yaml").cells] == [3, 100]
    text = "grid: {rule: [cl, c-ep]}\noverrides: [{match: {rule: cl}, skip: true}, {match: {rule: cl}, set: {epochs: 3}}]"
    assert [cell.config.rule for cell in parse_study(text, "mine", "mine.yaml").cells] == ["c-ep"]  # both match
    text = "label: A\ngrid: {seed: [0]}\noverrides: [{match: {seed: 0}, label: ''}]\ncells: [{grid: {}}]"
    assert [cell.label for cell in parse_study(text, "mine", "mine.yaml").cells] == [""]
    text = "set: {epochs: 9}\ncells: [{set: {rule: cl}}, {grid: {epochs: [1, 2]}}]"  # the block's count
    assert [cell.config.epochs for cell in parse_study(text, "mine", "mine.yaml").cells] == [9, 1, 2]


def test_unknown_studies_and_files_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "did you mean table1? use one of quick, table1" in refused(capsys, "study", "run", "tabel1")
    assert "gone.yaml cannot be read (No such file" in refused(capsys, "study", "run", "gone.yaml")
    assert "binary.yaml cannot be read (it is no text)" in refused(capsys, "study", "run", "binary.yaml")


def test_a_key_is_the_hash_of_the_settings_that_decide_the_result():
    written_by_hand = (
        '{"augment":true,"batch_size":128,"beta":0.25,"crop":null,"dataset":"mnist","epochs":100,"flip":null,'
        '"free.iterations":60,"free.omega":1,"free.order":"odd-first","free.tolerance":null,'
        '"model.gains":[0.5,0.5,0.5,0.5,0.5],"model.hidden":[128,256,512,512],"model.kernel_size":3,"model.kind":"conv",'
        '"model.padding":1,"model.pool":"max","nudged.iterations":15,"nudged.omega":1,"nudged.order":"odd-first",'
        '"nudged.tolerance":null,"optimiser.momentum":0.9,"optimiser.rate_min":2e-06,'
        '"optimiser.rates":[0.0625,0.0375,0.025,0.02,0.0125],"optimiser.weight_decay":0.0003,"pad":null,"precision":"auto",'
        '"rule":"c-ep","seed":2,"settle":null,"start":"carry","stop_on_collapse":false,"test_batch_size":500,"val":0}'
    )
    digest = hashlib.sha256(written_by_hand.encode()).hexdigest()[:12]
    cell = next(
        c for c in read_study("table1").cells if (c.config.rule, c.config.dataset, c.config.seed) == ("c-ep", "mnist", 2)
    )
    assert cell.key == f"mnist-c-ep-s2-{digest}"


def test_the_same_run_has_one_key_however_it_is_written_and_wherever_it_is_made():
    base = Config(dataset="cifar10", beta=None, model=Model(gains=(0.5,)))
    same = [
        replace(base, beta=0.25),
        replace(base, model=Model(gains=(0.5,) * 5)),
        replace(base, device="cuda"),
        replace(base, residual_warning=1.0),
        replace(base, free=Schedule(60, 1)),
    ]
    assert {key_of(config) for config in same} == {key_of(base)}
    assert key_of(replace(base, rule="cl")) == key_of(replace(base, rule="cl", beta=1.0))


def test_every_setting_that_decides_the_result_changes_the_key():
    other = {
        "dataset": "svhn",
        "rule": "n-ep",
        "beta": 0.125,
        "epochs": 99,
        "batch_size": 127,
        "seed": 1,
        "precision": "fp32",
        "settle": 1e-3,
        "start": "zeros",
        "augment": False,
        "pad": 2,
        "crop": 2,
        "flip": True,
        "val": 10,
        "test_batch_size": 100,
        "stop_on_collapse": True,
        "model.kind": "dense",
        "model.hidden": (9,),
        "model.kernel_size": 1,
        "model.padding": 2,
        "model.pool": "average",
        "model.gains": (0.75,),
        "optimiser.rates": (0.03,),
        "optimiser.momentum": 0.5,
        "optimiser.weight_decay": 0.0,
        "optimiser.rate_min": 0.0,
    }
    for phase in ("free", "nudged"):
        new = {"iterations": 7, "omega": 1.5, "order": "synchronous", "tolerance": 1e-3}
        other |= {f"{phase}.{name}": value for name, value in new.items()}
    assert set(other) == set(key_module.FIRST)
    base = Config(dataset="cifar10", model=Model(hidden=(8,)), optimiser=Optimiser(rates=(0.05,)))
    keys = [key_of(changed(base, {name: value})) for name, value in other.items()]
    assert len({key_of(base), *keys}) == 1 + len(other)


def test_a_setting_that_a_later_version_adds_leaves_keys_as_they_were(monkeypatch):
    @dataclass(frozen=True)
    class Later(Config):
        temperature: float = 0.0

    monkeypatch.setattr(key_module, "DEFAULTS", flat_config(Later()))
    assert key_of(Later(rule="n-ep")) == key_of(Config(rule="n-ep"))
    assert key_of(Later(rule="n-ep", temperature=1.0)) != key_of(Config(rule="n-ep"))
