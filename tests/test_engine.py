"""The fused path on a CPU, where its kernels are their definitions, against the plain path; and which path a run takes."""

import copy
import dataclasses
import logging
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_train import few
from torch import Tensor

import ebl
from ebl.config import Config, Model, Optimiser, build_network
from ebl.costs import SquaredError
from ebl.data.splits import seeded
from ebl.engine import choose, gradient, make_stepper, not_fused
from ebl.engine.captured import CapturedStep
from ebl.engine.choose import Kernels
from ebl.engine.deviation import SCALE, deviation_update, rest_update
from ebl.engine.fused import Fused
from ebl.engine.graphs import Graphs
from ebl.engine.kernels import CLAMP, POOL, STORE, Update, layer_update
from ebl.engine.sgd import Sgd
from ebl.engine.step import EVALUATION_BATCH, FusedStep, evaluation_batch
from ebl.models.hopfield import DenseHopfield
from ebl.presets import preset
from ebl.relax import Schedule, relax
from ebl.rules import RULES, as_target
from ebl.rules.backprop import Linearised
from ebl.rules.contrast import Contrast
from ebl.steps import PlainStep, means_of
from ebl.train import _Run
from ebl.types import Settled

CPU = torch.device("cpu")
# average pooling: equilibria are unique, so that rounding cannot lead elsewhere
CONV = replace(
    preset("quick"),
    batch_size=16,
    model=Model(hidden=(5, 10), gains=(0.5, 0.8, 0.8), pool="average"),
    optimiser=Optimiser(rates=(0.1, 0.06, 0.03), weight_decay=1e-4),
    free=Schedule(12, 1.4),
    nudged=Schedule(6, 1.4),
)
DEEP = replace(CONV, model=Model(hidden=(6, 5, 9), gains=(0.6,), pool="average"), pad=2, optimiser=Optimiser(rates=(0.05,)))
DENSE = replace(CONV, model=Model("dense", (21, 13), gains=(0.8,)))
ONE = replace(CONV, model=Model("dense", (19,), gains=(0.8,)), optimiser=Optimiser(rates=(0.03, 0.03)))

NETWORKS = {"conv": CONV, "deep": DEEP, "dense": DENSE, "one hidden layer": ONE}


def both(config: Config) -> tuple[_Run, _Run]:
    """Two runs of one config at their start: plain, fused."""
    plain, fused = (_Run(config, few(), CPU) for _ in range(2))
    fused.stepper = FusedStep(config, fused.net, fused.optimiser)
    for run in (plain, fused):
        for group, rate in zip(run.optimiser.param_groups, run.epoch_rates(), strict=True):
            group["lr"] = rate
    return plain, fused


def an_epoch(run: _Run) -> None:
    for i, (x, y) in enumerate(run.training.epoch(0)):  # batches of 16, 16, 8
        run.stepper.step(x, y, run.config.free.iterations, seeded(0, "signs", i))


@pytest.mark.parametrize(
    "config",
    [
        replace(CONV, rule="c-ep", start="carry"),
        replace(CONV, rule="n-cpl", start="zeros"),
        replace(CONV, rule="r-ep", start="carry"),
        replace(CONV, rule="cl", start="zeros"),
        replace(CONV, rule="p-ep", start="carry"),
        replace(CONV, rule="n-ep", start="carry"),
        replace(CONV, rule="p-cpl", start="zeros"),
        replace(CONV, free=Schedule(12, "chebyshev:0.8", "even-first"), nudged=Schedule(6, 1.0, "even-first")),
        replace(DEEP, rule="c-ep"),
        replace(DEEP, rule="n-cpl", start="zeros"),
        replace(DENSE, rule="c-ep"),
        replace(DENSE, rule="cl"),
        replace(ONE, rule="c-ep"),
        replace(ONE, rule="c-cpl", start="zeros"),
        replace(CONV, rule="tbp", beta=None, start="carry"),
        replace(CONV, rule="rbp", beta=None, start="carry"),
        replace(DEEP, rule="tbp", beta=None, start="zeros"),
        replace(DENSE, rule="rbp", beta=None, start="zeros"),
        replace(ONE, rule="tbp", beta=None),
    ],
    ids=lambda c: f"{c.rule} {c.start} {c.free.order} {c.model.kind} {c.model.hidden}",
)
def test_an_epoch_of_fused_steps_trains_as_plain_ones_do(config):
    plain, fused = both(config)
    before = [p.detach().clone() for p in plain.net.parameters()]
    for run in (plain, fused):
        an_epoch(run)
    for p, q, start in zip(plain.net.parameters(), fused.net.parameters(), before, strict=True):
        size = float(p.detach().norm())
        moved, off = float((p.detach() - start).norm()) / size, float((p - q).detach().norm()) / size
        assert off < (1e-3 if config.rule not in ("tbp", "rbp") else 5e-3)  # their states are in 16 bits, with no slack to tell
        assert off < 0.02 * moved
    a, b = (means_of(run.stepper.totals) for run in (plain, fused))
    assert float(fused.stepper.totals[0]) == 40
    assert a["iterations"] == b["iterations"] == config.free.iterations
    assert b["cost"] == pytest.approx(a["cost"], rel=1e-3)
    assert b["residual"] == pytest.approx(a["residual"], rel=0.05, abs=5e-5)
    for name in ("error", "top5_error"):
        assert b[name] == pytest.approx(a[name], abs=1.1 / 40)  # near ties may fall the other way


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_fused_evaluation_agrees_with_the_plain_one(config, monkeypatch):
    monkeypatch.setattr("ebl.engine.step.EVALUATION_BATCH", 16)  # 20 images: the second batch is short
    plain, fused = both(config)
    for schedule in (config.free, Schedule(7, 1.0), Schedule(7, 1.5), config.free):
        a, b = (run.stepper.evaluate(plain.tests["test"], schedule) for run in (plain, fused))
        assert a.keys() == b.keys()
        assert b["cost"] == pytest.approx(a["cost"], rel=1e-3)
        assert b["residual"] == pytest.approx(a["residual"], rel=0.05, abs=5e-5)
        assert b["error"] == pytest.approx(a["error"], abs=1.1 / 20)
        assert b["iterations"] == a["iterations"] == schedule.iterations
        assert b["saturation"] == pytest.approx(a["saturation"], abs=2e-3)
    assert len(fused.stepper.evaluator.x) == 16


def test_an_evaluation_takes_no_more_examples_than_32_bits_tell_apart():
    assert evaluation_batch([(16, 16, 128), (8, 8, 256), (4, 4, 512), (2, 2, 512)]) == EVALUATION_BATCH
    large = (256, 256, 128)
    most = evaluation_batch([(1, 1, 8), large])
    units = 4 * 256 * 256 * 128
    assert most * units <= 2**31 - 1 < (most + 1) * units


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_the_carried_state_survives_a_round_trip(config):
    _, fused = both(config)
    assert fused.stepper.carried is None
    x, y = next(fused.training.epoch(0))
    for n in (16, 9):
        fused.stepper.step(x[:n], y[:n], 5, torch.Generator())
        kept = tuple(s.clone() for s in fused.stepper.carried)
        assert [tuple(s.shape) for s in kept] == [tuple(s.shape) for s in fused.net.init_state(x[:n])]
        _, other = both(config)
        other.stepper.carried = kept
        assert all(torch.equal(a, b) for a, b in zip(other.stepper.carried, kept, strict=True))
    other.stepper.carried = None
    assert other.stepper.carried is None


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("order", ["odd-first", "even-first"])
def test_a_step_from_a_restored_state_is_the_step_that_would_have_followed(config, order):
    """As a run resumes: parameters, momentum and carried state are all there is."""
    config = replace(config, free=replace(config.free, order=order), nudged=replace(config.nudged, order=order))
    _, fused = both(config)
    first, second, _ = fused.training.epoch(0)
    fused.stepper.step(*first, 5, torch.Generator())
    _, other = both(config)
    with torch.no_grad():
        for p, q in zip(other.net.parameters(), fused.net.parameters(), strict=True):
            p.copy_(q)
            other.optimiser.state[p]["momentum_buffer"] = fused.optimiser.state[q]["momentum_buffer"].clone()
    other.stepper.fused.cast()
    other.stepper.carried = tuple(s.clone() for s in fused.stepper.carried)
    for run in (fused, other):
        run.stepper.totals.zero_()
        run.stepper.step(*second, 2, torch.Generator())
    assert torch.equal(fused.stepper.totals, other.stepper.totals)
    for p, q in zip(fused.net.parameters(), other.net.parameters(), strict=True):
        assert torch.equal(p, q)  # without the state: 2e-5


@pytest.mark.parametrize("start", ["carry", "zeros"])
def test_a_restored_run_has_the_16_bit_weights_of_its_checkpoint(tmp_path, start):
    config = replace(DEEP, start=start)
    _, fused = both(config)
    for x, y in fused.training.epoch(0):
        fused.train_step(x, y)
    fused.save(tmp_path)
    (tmp_path / "nothing").mkdir()
    for there, kept in ((tmp_path, fused), (tmp_path / "nothing", None)):
        _, other = both(config)
        with torch.no_grad():
            other.net.weights[1].add_(1.0)  # as ranks that start fresh take over the first one's
        other.restore(there)
        right = Fused((kept or other).net)
        for a, b in zip(
            [*other.stepper.fused.halves, other.stepper.fused.readout], [*right.halves, right.readout], strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("order", ["odd-first", "even-first"])
def test_a_relaxation_from_zeros_forgets_the_one_before(config, order):
    net = build_network(config)
    x = torch.rand(4, *config.input_shape).reshape(4, *net.input_shape)
    fused = Fused(net, order)
    phase = fused.phase(4)
    for images in (1 - x, x):
        fused.drive(images, phase)
        fused.zero(phase)
        fused.relax(phase, 2, torch.ones(4))
    for a, b in zip(fused.state(phase), relax(net, x, Schedule(2, order=order)).state, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)  # the drive is kept in 16 bits


@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("order", ["odd-first", "even-first"])
def test_a_step_from_a_carried_state_is_the_plain_ones(config, order):
    """Two iterations: where they end still shows where they began."""
    config = replace(config, free=replace(config.free, order=order), nudged=replace(config.nudged, order=order))
    plain, fused = both(config)
    first, second, _ = plain.training.epoch(0)
    for run in (plain, fused):
        run.stepper.step(*first, 12, torch.Generator())
        run.stepper.totals.zero_()
        run.stepper.step(*second, 2, torch.Generator())
    for name in ("cost", "residual"):
        a, b = (means_of(run.stepper.totals)[name] for run in (plain, fused))
        assert b == pytest.approx(a, rel=5e-3)
    for a, b in zip(fused.stepper.carried, plain.stepper.carried, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3)


def test_a_short_batch_starts_at_zero_and_its_empty_places_count_for_nothing():
    """Three examples in buffers for sixteen, after a full batch, train as three examples alone."""
    config = replace(CONV, rule="c-ep", start="carry")
    x, y = next(both(config)[0].training.epoch(0))
    _, wide = both(config)
    wide.stepper.step(x, y, 8, torch.Generator())
    narrow = both(config)[1]
    narrow.net.load_state_dict(wide.net.state_dict())
    narrow.optimiser.load_state_dict(copy.deepcopy(wide.optimiser.state_dict()))
    narrow.stepper = FusedStep(replace(config, batch_size=3), narrow.net, narrow.optimiser)
    for run in (wide, narrow):
        run.stepper.totals.zero_()
        run.stepper.step(x[:3], y[:3], 8, torch.Generator())
    for p, q in zip(wide.net.parameters(), narrow.net.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)  # sums over more places round otherwise
    torch.testing.assert_close(wide.stepper.totals, narrow.stepper.totals, rtol=1e-4, atol=1e-6)


def test_gradients_that_are_not_finite_show_in_the_sums(monkeypatch):
    _, fused = both(CONV)
    contrasts = fused.stepper.contrasts
    right = contrasts.gradients
    monkeypatch.setattr(contrasts, "gradients", lambda *args: [torch.nan * g for g in right(*args)])
    fused.stepper.step(*next(fused.training.epoch(0)), 5, torch.Generator())
    assert not bool(torch.isfinite(fused.stepper.totals).all())


@pytest.mark.parametrize("rule", ["c-ep", "p-ep", "c-cpl"])
@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_gradients_from_a_state_are_the_rules_in_float64(config, rule):
    config = replace(config, rule=rule, beta=0.1)
    plain, _ = both(config)
    fused = FusedStep(config, plain.net, plain.optimiser)
    x, y = next(plain.training.epoch(0))
    exact = copy.deepcopy(plain.net).double()
    free = relax(exact, x.double(), Schedule(200, 1.4))
    start = tuple(s.float() for s in free.state)
    before = [p.detach().clone() for p in plain.net.parameters()]
    found = fused.gradients_from(x, y, start)
    assert all(torch.equal(p, q) for p, q in zip(plain.net.parameters(), before, strict=True))
    if rule == "p-ep":  # its first phase is not perturbed: from an equilibrium of the unrounded network it stays where it is
        for layer in fused.perturbed.layers:
            off = layer.d[: len(x)].float() - SCALE * layer.lo.float()
            assert float(off.abs().max()) < 3e-5 * SCALE
    given = Settled(tuple(s.double() for s in start), free.residual, free.iterations)
    target = as_target(y, given.state[-1])
    chosen = RULES[rule]
    right, _ = chosen.gradients(exact, x.double(), target, given, {}, config.nudged, SquaredError(), 0.1, None)
    for a, b in zip(found, right, strict=True):
        assert a.shape == b.shape
        assert float(F.cosine_similarity(a.double().flatten(), b.flatten(), 0)) > 0.9999
        assert float(a.norm() / b.norm()) == pytest.approx(1, abs=0.01)  # 11 bits, and slow modes that amplify


@pytest.mark.parametrize("order", ["odd-first", "even-first"])
def test_after_perturbed_phases_every_unpooled_map_is_that_of_the_states_as_they_are(order):
    """From a random state one iteration moves so much that other positions win."""
    model = Model(hidden=(6, 5, 9), gains=(0.6,))
    config = replace(DEEP, model=model, nudged=Schedule(1, 1.4, order), free=Schedule(1, 1.4, order))
    net = build_network(config)
    step = FusedStep(config, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    x, y = torch.randn(config.batch_size, *net.input_shape), torch.arange(config.batch_size) % 10
    step.gradients_from(x, y, tuple(torch.rand_like(s) for s in net.init_state(x)))
    for k in (1, 2):
        below, layer = step.perturbed.layers[k - 1 : k + 1]
        found = layer.du.clone()
        deviation_update(step.fused.ops[k], below.d, step.fused.weights[k - 1], None, layer, None)
        assert torch.equal(found, layer.du)


@pytest.mark.parametrize("order", ["odd-first", "even-first"])
@pytest.mark.parametrize(("rule", "iterations", "omega"), [("tbp", 1, 1.0), ("tbp", 5, 1.4), ("rbp", 1, 1.4), ("rbp", 4, 1.0)])
@pytest.mark.parametrize("config", NETWORKS.values(), ids=NETWORKS)
def test_the_adjoint_is_the_plain_paths_in_float64_after_any_number_of_iterations(config, rule, iterations, omega, order):
    """Few iterations: far from its limit it still shows in which order layers moved, and how often."""
    config = replace(config, rule=rule, beta=None, nudged=Schedule(iterations, omega, order), free=Schedule(12, 1.4, order))
    net = build_network(config)
    fused = FusedStep(config, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    x, y = next(_Run(config, few(), CPU).training.epoch(0))
    x = x.reshape(len(x), *net.input_shape)
    exact = copy.deepcopy(net).double()
    free = relax(exact, x.double(), Schedule(300, 1.4, order))
    target = as_target(y, free.state[-1])
    right, _ = RULES[rule].gradients(exact, x.double(), target, free, {}, config.nudged, SquaredError(), 0.0, None)
    found = fused.gradients_from(x, y, tuple(s.float() for s in free.state))
    for a, b in zip(found, right, strict=True):
        assert a.shape == b.shape
        if not bool(b.any()):  # what too few iterations did not reach
            assert not bool(a.any())
            continue
        assert float(F.cosine_similarity(a.double().flatten(), b.flatten(), 0)) > 0.9995
        assert float(a.norm() / b.norm()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("rule", ["tbp", "rbp"])
def test_units_at_a_bound_and_pools_that_lost_have_no_part_in_the_adjoint(rule):
    """Strong upper weights: many units saturate. Max pooling, settled by the fused path itself."""
    model = Model(hidden=(6, 5, 9), gains=(0.6, 1.0, 1.0, 2.0))
    config = replace(DEEP, model=model, rule=rule, beta=None, free=Schedule(200, 1.4), nudged=Schedule(3, 1.0))
    net = build_network(config)
    fused = FusedStep(config, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    x, y = next(_Run(config, few(), CPU).training.epoch(0))
    fused.fused.drive(x, fused.free)
    fused.fused.relax(fused.free, 200, fused.free_omegas)
    state = fused.fused.state(fused.free)
    at_bounds = sum(int(((s == 0) | (s == 1)).sum()) for s in state[:-1])
    assert at_bounds > 0.2 * sum(s.numel() for s in state[:-1])
    assert any(bool((s == 1).any()) for s in state[:-1])
    found = fused.gradients_from(x, y, state)
    for layer, m in zip(fused.perturbed.layers, fused.adjoint.m.layers, strict=True):
        s = layer.hi.float() + layer.lo.float()
        assert not bool(m.d[(s == 0) | (s == 1)].any())
        assert bool(m.d[(s > 0) & (s < 1)].any())
    exact = copy.deepcopy(net).double()
    free = Settled(tuple(s.double() for s in state), torch.zeros(len(x)), 200)
    target = as_target(y, free.state[-1])
    right, _ = RULES[rule].gradients(exact, x.double(), target, free, {}, config.nudged, SquaredError(), 0.0, None)
    for a, b in zip(found, right, strict=True):
        assert float(F.cosine_similarity(a.double().flatten(), b.flatten(), 0)) > 0.99


def test_the_fused_state_is_the_plain_one_padded():
    net = ebl.ConvHopfield(2, 8, (5, 7), 3)
    fused = Fused(net)
    x = torch.rand(4, 2, 8, 8)
    state = relax(net, x, 3).state
    phase = fused.phase(4)
    fused.load(phase, state)
    assert [layer.hi.shape[3] for layer in phase.layers] == [8, 8]  # channels in eights
    for a, b in zip(fused.state(phase), state, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)  # two halves hold 22 bits
    assert all(float(layer.hi[..., c:].abs().max()) == 0 for layer, c in zip(phase.layers, (5, 7), strict=True))


# ---- the optimiser and the graphs


def test_sgd_over_fixed_buffers_is_torchs():
    torch.manual_seed(3)
    start = [torch.randn(4, 5), torch.randn(5), torch.randn(5, 3), torch.randn(3)]
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))

    def optimiser(parameters: list[torch.nn.Parameter]) -> torch.optim.SGD:
        groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9, weight_decay=3e-2)

    a, b = optimiser(ours), optimiser(theirs)
    sgd = Sgd(a, ours)
    for step in range(6):
        for one in (a, b):
            for group, rate in zip(one.param_groups, (0.1 / (1 + step), 0.03), strict=True):
                group["lr"] = rate
        gradients = [torch.randn_like(p) for p in start]
        sgd.sync()
        sgd.apply(gradients)
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g
        b.step()
        if step == 2:  # as a restored checkpoint does it: other buffers with the same momentum
            for p in ours:
                a.state[p]["momentum_buffer"] = a.state[p]["momentum_buffer"].clone()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(a.state[p]["momentum_buffer"], b.state[q]["momentum_buffer"], rtol=1e-6, atol=1e-7)


def test_graphs_on_a_cpu_just_run_the_body():
    graphs, calls = Graphs(CPU), []
    for i in range(4):
        graphs.run("key", lambda i=i: calls.append(i))
    assert calls == [0, 1, 2, 3]
    assert not graphs.graphs


# ---- which path a run takes


def stepper_for(config: Config):
    net = build_network(config)
    return make_stepper(config, net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.parametrize(("precision", "lines"), [("auto", 0), ("fp32", 0), ("tf32", 1), ("fp16", 1)])
def test_a_cpu_takes_the_plain_path_and_says_so_once_where_another_was_asked_for(precision, lines, caplog):
    with caplog.at_level(logging.INFO, logger="ebl"):
        assert isinstance(stepper_for(replace(CONV, precision=precision)), PlainStep)
    assert len(caplog.records) == lines
    assert all(f"precision = {precision} needs CUDA" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"free": Schedule(9, tolerance=1e-3)}, "a tolerance"),
        ({"nudged": Schedule(9, tolerance=1e-3)}, "a tolerance"),
        ({"nudged": Schedule(9, order="even-first")}, "two orders"),
        (
            {"rule": "tbp", "nudged": Schedule(9, "chebyshev:0.9")},
            "tbp with nudged.omega = chebyshev:0.9",
        ),
        ({"free": Schedule(9, order="synchronous"), "nudged": Schedule(9, order="synchronous")}, "order synchronous"),
        ({"free": Schedule(9, order="forward"), "nudged": Schedule(9, order="forward")}, "order forward"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_what_the_fused_kernels_cannot_take_is_told(change, reason):
    pytest.importorskip("triton")
    config = replace(CONV, **change)
    assert not_fused(config, build_network(config)) == reason


def test_a_rule_of_the_users_own_takes_the_plain_path_and_is_not_recorded(monkeypatch):
    pytest.importorskip("triton")

    class Mine(Contrast):
        """With gradients of its own, say."""

    for rule in (Linearised("odd-first"), Mine("nudge", 0, 1)):
        monkeypatch.setitem(RULES, "mine", rule)
        config = replace(CONV, rule="mine", beta=None)
        net = build_network(config)
        assert not_fused(config, net) == "rule mine"
    seen = []
    monkeypatch.setattr("ebl.engine.captured.Graphs", lambda device, wanted: seen.append(wanted))
    for name in ("mine", "c-ep", "tbp", "rbp", "r-ep"):
        CapturedStep(replace(CONV, rule=name, beta=None), net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), False)
    assert seen == [False, True, True, True, False]  # a rule of one's own, and one that draws, may not be recorded


def test_the_fused_kernels_take_the_papers_rules_and_networks():
    pytest.importorskip("triton")
    for config in (CONV, DEEP, DENSE, ONE, preset("fast")):
        for rule in RULES:
            beta = None if rule in ("cl", "tbp", "rbp") else config.beta
            small = replace(config, rule=rule, beta=beta)
            assert not_fused(small, build_network(replace(CONV))) is None
    assert not_fused(CONV, build_network(CONV).double()) == "torch.float64 parameters"
    assert not_fused(CONV, DenseHopfield((4, 3))) == "no hidden layer"


# ---- wrong kernels are found out

UP, X, W = Update(POOL, False, 3, 1), torch.zeros(4, 8, 8, 16), torch.zeros(24, 9, 16)
DOWN, ABOVE = Update(CLAMP, True, 3, 1), torch.zeros(4, 8, 8, 24)
CASES = [
    (UP, X),
    (replace(UP, average=True), X),
    (DOWN, ABOVE),
    (replace(DOWN, mode=STORE), ABOVE),
]
MODES = ["max", "average", "clamp", "store"]


@pytest.mark.parametrize(("op", "x"), CASES, ids=MODES)
def test_an_update_is_trusted_if_it_is_the_definition_and_not_if_it_is_wrong_anywhere(op: Update, x: Tensor):
    assert choose.update_error(op, x, W, layer_update, 1) <= choose.TOLERANCE

    def where(t, layer):
        return t if op.mode == STORE else layer.hi

    def off(op, x, w, t, layer, omega, watch=False):
        layer_update(op, x, w, t, layer, omega, watch)
        where(t, layer)[0, 0, 0, 0] += 0.1

    def undone(op, x, w, t, layer, omega, watch=False):
        layer_update(op, x, w, t, layer, omega, watch)
        where(t, layer)[0, -1, -1, -1] = torch.nan

    def idle(op, x, w, t, layer, omega, watch=False):
        pass

    for wrong in (off, undone, idle):
        assert choose.update_error(op, x, W, wrong, 1) > choose.TOLERANCE
    if op.mode == POOL:

        def other_winner(op, x, w, t, layer, omega, watch=False):
            layer_update(op, x, w, t, layer, omega, watch)
            layer.u.copy_(layer.u.flip(2))

        def no_map(op, x, w, t, layer, omega, watch=False):
            layer_update(op, x, w, t, dataclasses.replace(layer, u=torch.zeros_like(layer.u)), omega, watch)

        if not op.average:
            assert choose.update_error(op, x, W, other_winner, 1) > choose.TOLERANCE
        assert choose.update_error(op, x, W, no_map, 1) > choose.TOLERANCE


@pytest.mark.parametrize(("op", "x"), CASES[:3], ids=MODES[:3])
def test_kernels_of_perturbed_phases_are_trusted_only_if_right(op: Update, x: Tensor):
    def error(rest, deviate) -> float:
        return choose.deviation_error(op, x, W, rest, deviate)

    def idle(*args):
        pass

    def spoilt(function, name: str, value: float):
        def wrong(op, x, w, t, layer, *omega):
            function(op, x, w, t, layer, *omega)
            getattr(layer, name)[-1, -1, -1, -1] = value

        return wrong

    assert error(rest_update, deviation_update) <= choose.TOLERANCE
    assert error(idle, deviation_update) > choose.TOLERANCE
    assert error(rest_update, idle) > choose.TOLERANCE
    for value in (torch.nan, 1e3):
        for name in ("slack", "d"):
            assert error(spoilt(rest_update, name, value), deviation_update) > choose.TOLERANCE
        assert error(rest_update, spoilt(deviation_update, "d", value)) > choose.TOLERANCE
    if op.mode == POOL:
        for name in ("u", "du"):
            assert error(spoilt(rest_update, name, torch.nan), deviation_update) > choose.TOLERANCE
        assert error(rest_update, spoilt(deviation_update, "du", torch.nan)) > choose.TOLERANCE


def test_a_rest_kernel_that_names_the_wrong_winner_is_not_trusted():
    """`behind` is what tells later moves who won; it is NaN before, as all that a kernel should write."""

    def forgetful(op, x, w, t, layer):
        rest_update(op, x, w, t, dataclasses.replace(layer, behind=layer.behind.clone()))

    assert choose.deviation_error(UP, X, W, forgetful, deviation_update) > choose.TOLERANCE


def test_a_weight_gradient_is_trusted_only_if_right():
    below, above = torch.zeros(4, 8, 8, 16), torch.zeros(4, 8, 8, 24)

    def off(op, below, above, out):
        gradient.weight_gradient(op, below, above, out)
        out[-1, -1, -1, -1] += 1

    def undone(op, below, above, out):
        gradient.weight_gradient(op, below, above, out)
        out[-1, -1, -1, -1] = torch.nan

    for parts in (1, 3):
        assert choose.gradient_error(UP, below, above, parts, gradient.weight_gradient) <= choose.TOLERANCE
        for wrong in (off, undone):
            assert choose.gradient_error(UP, below, above, parts, wrong) > choose.TOLERANCE


def small_kernels():
    """Name, definition, kernel, what it writes, arguments."""
    from ebl.engine import deviation, readout

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the kernels are compiled

    def zeros(*shape, dtype=torch.float32):
        return torch.zeros(shape, dtype=dtype, device=device)

    layer = choose.random_deviation(3, (4, 4, 8), UP, device)
    maps, wide, rest, hi = (zeros(*s, dtype=torch.float16) for s in ((6, 4, 4, 8), (6, 8, 8, 8), (6, 2, 2, 8), (3, 2, 2, 8)))
    where = zeros(6, 4, 4, 8, dtype=torch.uint8)
    w, bias, one, twice, heard, gap = zeros(5, 32), zeros(5), zeros(3, 5), zeros(6, 5), zeros(1, 6, 2, 2, 8), zeros(6)
    nudged = (hi, rest, 0.5, w, bias, twice, one, heard, gap, zeros(1), zeros(6, 1), twice)
    yield "contrast", deviation.contrast, deviation.triton_contrast, (2, 3), (layer, zeros(3), maps, wide)
    yield "column sums", gradient.column_sums, gradient.triton_column_sums, (), (maps,)
    yield "spread", gradient.spread, gradient.triton_spread, (2,), (maps, where, wide)
    yield "readout", readout.readout, readout.triton_readout, (5, 7, 8), nudged


@pytest.mark.parametrize("case", list(small_kernels()), ids=lambda case: case[0])
def test_a_small_kernel_is_trusted_if_it_is_its_definition_and_not_if_it_leaves_or_spoils_something(case):
    pytest.importorskip("triton")
    _, definition, kernel, written, args = case
    assert choose.twin_error(definition, kernel, written, args) <= choose.TOLERANCE

    def idle(*args):
        return None if written else torch.zeros_like(definition(*args))

    assert choose.twin_error(definition, idle, written, args) > choose.TOLERANCE
    for place in written or (None,):
        for value in (torch.nan, 1e3):

            def wrong(*args, place=place, value=value):
                returned = kernel(*args)
                (returned if place is None else args[place]).view(-1)[-1] = value
                return returned

            assert choose.twin_error(definition, wrong, written, args) > choose.TOLERANCE


def test_a_kernel_that_is_wrong_or_does_not_run_is_told_of_and_not_chosen(caplog):
    def broken() -> float:
        raise RuntimeError("no such instruction\nand more")

    with caplog.at_level(logging.INFO, logger="ebl"):
        assert choose._trusted("good", lambda: 1e-5)
        assert not caplog.records
        seen = iter([1e-5, 0.5, 1e-5])  # a fault that comes and goes
        assert not choose._trusted("bad", lambda: next(seen))
        assert not choose._trusted("empty", lambda: float("nan"))
        assert not choose._trusted("broken", broken)
    told = [r.getMessage() for r in caplog.records]
    assert "bad is wrong on this GPU by 5.0e-01" in told[0]
    assert "empty is wrong" in told[1]
    assert "broken cannot be used here (no such instruction)" in told[2]
    assert all("\n" not in line for line in told)


def test_a_triton_without_gluon_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ebl.engine.hopper", None)
    choose._gluon.cache_clear()
    with caplog.at_level(logging.INFO, logger="ebl"):
        assert not choose._gluon()
        assert not choose._gluon()
    choose._gluon.cache_clear()
    assert ["Hopper" in r.getMessage() for r in caplog.records] == [True]


def test_on_a_cpu_the_kernels_are_the_definitions():
    kernels = Kernels(CPU)
    x, w = torch.rand(4, 8, 8, 16).half(), torch.randn(24, 9, 16).half()
    t = torch.full((1, 4, 8, 8, 24), torch.nan)
    kernels.update(Update(STORE, False, 3, 1), x, w, t, None, None)
    right = F.conv2d(x.float().permute(0, 3, 1, 2), w.float().view(24, 3, 3, 16).permute(0, 3, 1, 2), padding=1)
    torch.testing.assert_close(t[0], right.permute(0, 2, 3, 1))
    assert kernels.names() == ["definition"]
    assert kernels.parts(Update(STORE, False, 3, 1), x, w) == 1
