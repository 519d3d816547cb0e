"""Presets against the paper's hyperparameter table, and configs in and out of JSON."""

import dataclasses

import pytest

import ebl
from ebl.config import Config, Model, build_network, differences, from_json, to_json
from ebl.presets import PRESETS, preset
from ebl.relax import Schedule

STUDY_RATES = (0.0625, 0.0375, 0.025, 0.02, 0.0125)
# beta, T, K, gains, rates, weight decay, epochs, dataset: typed from the paper's table of hyperparameters
PAPER = {
    "table1": (0.25, 60, 15, (0.5, 0.5, 0.5, 0.5, 0.5), STUDY_RATES, 3.0e-4, 100, "cifar10"),
    "table6": (0.25, 60, 15, (0.7, 0.7, 0.7, 0.7, 0.7), STUDY_RATES, 3.0e-4, 100, "svhn"),
    "mnist-sota": (0.25, 60, 15, (0.5, 0.5, 0.5, 0.5, 0.5), STUDY_RATES, 3.0e-4, 100, "mnist"),
    "cifar10-sota-100": (0.1, 60, 20, (0.4, 0.7, 0.6, 0.3, 0.4), (0.03,) * 5, 2.5e-4, 100, "cifar10"),
    "cifar10-sota-300": (0.1, 60, 20, (0.4, 0.7, 0.6, 0.3, 0.4), (0.03,) * 5, 2.5e-4, 300, "cifar10"),
    "cifar100-sota-100": (0.25, 60, 15, (0.5, 0.4, 0.5, 0.8, 0.5), (0.03, 0.04, 0.04, 0.04, 0.025), 3.5e-4, 100, "cifar100"),
    "cifar100-sota-300": (0.25, 60, 15, (0.5, 0.4, 0.5, 0.8, 0.5), (0.03, 0.04, 0.04, 0.04, 0.025), 3.5e-4, 300, "cifar100"),
}


@pytest.mark.parametrize("name", PAPER)
def test_preset_is_the_papers_column(name):
    c, (beta, T, K, gains, rates, decay, epochs, dataset) = preset(name), PAPER[name]
    assert (c.beta, c.free, c.nudged) == (beta, Schedule(T), Schedule(K))
    assert (c.model.gains, c.optimiser.rates, c.optimiser.weight_decay) == (gains, rates, decay)
    assert (c.epochs, c.batch_size, c.dataset, c.rule) == (epochs, 128, dataset, "c-ep")
    assert (c.optimiser.momentum, c.optimiser.rate_min) == (0.9, 2.0e-6)
    assert (c.model.kind, c.model.hidden, c.model.kernel_size, c.model.padding) == ("conv", (128, 256, 512, 512), 3, 1)
    assert (c.model.pool, c.start, c.augment, c.pad) == ("max", "carry", True, None)
    assert c.input_shape == ((1, 32, 32) if dataset == "mnist" else (3, 32, 32))


def test_every_preset_but_quick_and_fast_is_the_papers():
    assert set(PRESETS) == {"quick", "fast", *PAPER}


def test_networks_are_built_as_configured():
    net = build_network(preset("cifar100-sota-100"))
    assert net.links[-1].shape == (100,)
    assert float(net.weights[3].detach().abs().max()) == pytest.approx(0.8 / (512 * 9) ** 0.5, rel=1e-3)
    dense = build_network(Config(model=Model("dense", (7,), gains=(0.5,)), optimiser=ebl_rates(0.1), pad=0))
    assert [tuple(w.shape) for w in dense.weights] == [(784, 7), (7, 10)]


def ebl_rates(*rates):
    return dataclasses.replace(preset("quick").optimiser, rates=rates)


@pytest.mark.parametrize("name", PRESETS)
def test_configs_survive_json(name):
    c = dataclasses.replace(preset(name), free=Schedule(9, "chebyshev:0.9", "forward", 1e-3), settle=None)  # one or the other
    assert from_json(to_json(c)) == c
    assert differences(c, preset(name))[0].startswith("free.iterations 9 there")
    assert differences(c, c) == []


@pytest.mark.parametrize("text", ["", "[]", '{"nonsense": 1}', '{"model": 3}', '{"model": {"kind": 3}}'])
def test_a_file_that_is_no_config_is_refused(text):
    with pytest.raises(ebl.InputError):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "ep"}, ["rule = 'ep'", "p-ep"]),
        ({"dataset": "imagenet"}, ["dataset = 'imagenet'", "cifar10"]),
        ({"beta": 0.0}, ["beta = 0"]),
        ({"rule": "cl", "beta": 0.2}, ["beta = 0.2 for cl"]),
        ({"epochs": 0}, ["epochs = 0"]),
        ({"batch_size": -1}, ["batch_size = -1"]),
        ({"start": "random"}, ["start = 'random'", "carry, zeros"]),
        ({"pad": 1}, ["image_size = 30×30"]),
        ({"pad": -1}, ["pad = -1"]),
        ({"model": Model(hidden=(8, 8, 8), gains=(0.5,))}, ["rates", "4 layers"]),
    ],
)
def test_bad_configs_are_refused_with_name_value_and_remedy(change, words):
    with pytest.raises(ebl.InputError) as error:
        dataclasses.replace(preset("quick"), **change)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("change", [{"kind": "mlp"}, {"pool": "sum"}, {"gains": (1.0, 2.0)}])
def test_bad_models_are_refused(change):
    with pytest.raises(ebl.InputError):
        Model(**change)
