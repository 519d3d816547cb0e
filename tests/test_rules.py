"""The rules against independent truths, in float64, at convergence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import TIGHT, EnergyOnly, conv, dense, finite_differences, flat, gradient, inputs, relative

import ebl
from ebl import naive
from ebl.rules.backprop import Linearised
from ebl.rules.contrast import Contrast

NETS = {
    "dense": lambda: dense((3, 6, 5, 2), gains=1.2, seed=6),
    "max": lambda: conv("max", gains=0.6, channels=(2, 2), image_size=4, num_classes=2),
    "average": lambda: conv("average", gains=0.6, channels=(2, 2), image_size=4, num_classes=2),
}
NUDGING = ["p-ep", "n-ep", "c-ep", "r-ep"]
CLAMPING = ["cl", "p-cpl", "n-cpl", "c-cpl"]


def settle(net, x):
    return ebl.relax(net, x, TIGHT).state


def true_gradient(net, x, y, cost=None) -> torch.Tensor:
    """d mean C(o*(theta), y) / d theta by finite differences through the whole relaxation."""
    cost = cost or ebl.SquaredError()
    target = F.one_hot(y, net.links[-1].shape[0]).double()
    return finite_differences(net, lambda: float(cost.value(settle(net, x)[-1], target).mean()))


@pytest.mark.parametrize("name", NETS)
def test_rbp_iterated_to_convergence_is_the_true_gradient(name):
    net = NETS[name]()
    x, y = inputs(net)
    truth = true_gradient(net, x, y)
    for order in ("synchronous", "odd-first", "backward"):
        found = gradient(net, x, y, rule=Linearised(order), free=TIGHT, nudged=ebl.Schedule(3000, tolerance=1e-12))
        assert relative(found, truth) < 1e-6
    assert relative(gradient(net, x, y, rule="rbp", free=TIGHT, nudged=500), truth) < 1e-6


@pytest.mark.parametrize("name", NETS)
def test_tbp_tends_to_the_true_gradient_as_k_grows(name):
    net = NETS[name]()
    x, y = inputs(net)
    truth = gradient(net, x, y, rule="rbp", free=TIGHT, nudged=2000)
    errors = [relative(gradient(net, x, y, rule="tbp", free=TIGHT, nudged=K), truth) for K in (1, 5, 15, 80)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-10
    over = gradient(net, x, y, rule="tbp", free=TIGHT, nudged=ebl.Schedule(80, 1.3))
    assert relative(over, truth) < 1e-10


@pytest.mark.parametrize("name", NETS)
def test_ep_tends_to_the_true_gradient_one_sided_by_beta_centred_by_its_square(name):
    net = NETS[name]()
    x, y = inputs(net)
    truth = gradient(net, x, y, rule="rbp", free=TIGHT, nudged=3000)
    betas = np.array([4e-3, 2e-3, 1e-3])
    assert same_side(net, x, y, betas.max())
    for rule, order in (("p-ep", 1), ("n-ep", 1), ("c-ep", 2)):
        errors = [relative(gradient(net, x, y, rule=rule, beta=b, free=TIGHT, nudged=TIGHT), truth) for b in betas]
        slope = np.polyfit(np.log(betas), np.log(errors), 1)[0]
        assert slope == pytest.approx(order, abs=0.05), (rule, errors)


def same_side(net, x, y, beta) -> bool:
    """No unit enters or leaves a bound and no pool changes its winner within this beta."""
    patterns = []
    target = F.one_hot(y, net.links[-1].shape[0]).double()
    for b in (-beta, 0.0, beta):
        state = ebl.relax(net, x, TIGHT, start=settle(net, x), boundary=ebl.Nudge(ebl.SquaredError(), target, b)).state
        with torch.no_grad():
            kept = [torch.sign(net.field(k, x, state) * (1 - net.field(k, x, state))) for k in range(len(state) - 1)]
            kept += [e for k in range(len(state)) if (e := net._up(k, (x, *state)[k], None)[1]) is not None]
        patterns.append(kept)
    return all(torch.equal(a, b) for kept in patterns[1:] for a, b in zip(patterns[0], kept, strict=True))


@pytest.mark.parametrize("name", NETS)
def test_centred_rules_are_the_mean_of_their_one_sided_ones(name):
    net = NETS[name]()
    x, y = inputs(net)
    for family in ("ep", "cpl"):
        p, n, c = (gradient(net, x, y, rule=f"{s}-{family}", beta=0.2, free=TIGHT, nudged=TIGHT) for s in "pnc")
        assert relative(c, (p + n) / 2) < 1e-10


def test_cpl_at_beta_one_is_cl():
    net = NETS["max"]()
    x, y = inputs(net)
    assert torch.equal(gradient(net, x, y, rule="p-cpl", beta=1.0), gradient(net, x, y, rule="cl"))
    assert torch.equal(gradient(net, x, y, rule="cl", beta=1.0), gradient(net, x, y, rule="cl"))


@pytest.mark.parametrize("name", NETS)
def test_cl_is_the_gradient_of_the_contrastive_function(name):
    net = NETS[name]()
    x, y = inputs(net)
    target = F.one_hot(y, net.links[-1].shape[0]).double()

    def contrastive() -> float:
        clamped = ebl.relax(net, x, TIGHT, boundary=ebl.Clamp(target)).state
        return float((net.energy(x, clamped) - net.energy(x, settle(net, x))).mean())

    found = gradient(net, x, y, rule="cl", free=TIGHT, nudged=TIGHT)
    assert relative(found, finite_differences(net, contrastive)) < 1e-6


@pytest.mark.parametrize("rule", ["p-ep", "n-ep", "c-ep"])
def test_ep_is_the_gradient_of_its_surrogate_at_a_large_beta(rule):
    net = NETS["average"]()
    x, y = inputs(net)
    target = F.one_hot(y, 2).double()
    first, second = {"p-ep": (0, 0.5), "n-ep": (-0.5, 0), "c-ep": (-0.5, 0.5)}[rule]

    def minimum(beta: float) -> torch.Tensor:
        nudge = ebl.Nudge(ebl.SquaredError(), target, beta)
        state = ebl.relax(net, x, TIGHT, boundary=nudge).state
        return net.energy(x, state) + nudge.energy(state[-1])

    truth = finite_differences(net, lambda: float((minimum(second) - minimum(first)).mean()) / (second - first))
    assert relative(gradient(net, x, y, rule=rule, beta=0.5, free=TIGHT, nudged=TIGHT), truth) < 1e-6


def test_cpl_in_a_linear_regime_is_the_implicit_gradient_with_the_outputs_stiffness():
    """While no unit switches, C-CpL does not depend on beta: it is RBP with G_oo (o - y) in place of o - y."""
    net = dense((3, 4, 2), gains=0.5)
    with torch.no_grad():
        net.biases[0].fill_(0.5)
    x = torch.rand(3, 3, dtype=torch.float64) * 0.1
    y = torch.tensor([0, 1, 1])
    w1 = net.weights[1].detach()
    stiffness = torch.eye(2, dtype=torch.float64) - w1.T @ w1  # of min_h E as a function of the output

    class Stiff(ebl.SquaredError):
        def gradient(self, output, target):
            return (output - target) @ stiffness

    truth = gradient(net, x, y, rule="rbp", cost=Stiff(), free=TIGHT, nudged=3000)
    for beta in (0.05, 0.2):
        assert relative(gradient(net, x, y, rule="c-cpl", beta=beta, free=TIGHT, nudged=TIGHT), truth) < 1e-9


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("rule", "b1", "b2"), [("p-ep", 0, 0.2), ("n-ep", -0.2, 0), ("c-ep", -0.2, 0.2), ("cl", 0, 1), ("c-cpl", -0.2, 0.2)]
)
@pytest.mark.parametrize("omega", [1.0, 1.4])
def test_batched_phases_and_one_pass_contrast_equal_the_naive_twin(name, rule, b1, b2, omega):
    net = NETS[name]()
    x, y = inputs(net)
    target = F.one_hot(y, net.links[-1].shape[0]).double()
    beta = None if rule == "cl" else 0.2
    free, truth = naive.contrast(net, x, target, b1, b2, T=7, K=5, omega=omega, clamp=rule in CLAMPING)
    estimate = ebl.estimate_gradients(
        net, x, y, rule=rule, beta=beta, free=ebl.Schedule(7, omega), nudged=ebl.Schedule(5, omega)
    )
    assert relative(flat(p.grad for p in net.parameters()), flat(truth)) < 1e-9
    torch.testing.assert_close(estimate.output, free[-1], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rule", [*NUDGING, *CLAMPING, "rbp"])
def test_energy_alone_gives_the_gradients_of_the_closed_form(rule):
    for net in (NETS["dense"](), NETS["average"](), NETS["max"]()):
        x, y = inputs(net)
        options = {"rule": rule, "free": TIGHT, "nudged": TIGHT}
        a = gradient(net, x, y, generator=torch.Generator().manual_seed(1), **options)
        b = gradient(EnergyOnly(net), x, y, generator=torch.Generator().manual_seed(1), **options)
        assert relative(b, a) < 1e-8


def test_energy_alone_gives_tbp_too():
    net = NETS["dense"]()
    x, y = inputs(net)
    options = {"rule": "tbp", "free": TIGHT, "nudged": ebl.Schedule(12, order="forward")}
    assert relative(gradient(EnergyOnly(net), x, y, **options), gradient(net, x, y, **options)) < 1e-8


def test_r_ep_is_p_ep_or_n_ep_by_a_coin_for_each_example():
    net = NETS["dense"]()
    x, y = inputs(net, batch=12)
    coins = torch.rand(12, generator=torch.Generator().manual_seed(5)) < 0.5
    assert 0 < int(coins.sum()) < 12
    rows = []
    for i in range(12):
        one = slice(i, i + 1)
        rows.append(gradient(net, x[one], y[one], rule="n-ep" if coins[i] else "p-ep", beta=0.3, free=TIGHT, nudged=TIGHT))
    found = gradient(net, x, y, rule="r-ep", beta=0.3, free=TIGHT, nudged=TIGHT, generator=torch.Generator().manual_seed(5))
    assert relative(found, torch.stack(rows).mean(0)) < 1e-9


@pytest.mark.parametrize("rule", [name for name in ebl.RULES if name != "r-ep"])  # its signs are drawn for the whole batch
def test_gradient_is_the_mean_over_the_batch_and_replaces_the_last_one(rule):
    net = NETS["max"]()
    x, y = inputs(net, batch=4)
    options = {"rule": rule, "free": 20, "nudged": 10}
    whole = gradient(net, x, y, **options)
    assert torch.equal(whole, gradient(net, x, y, **options))
    halves = [gradient(net, x[i], y[i], **options) for i in (slice(0, 2), slice(2, 4))]
    assert relative(sum(halves) / 2, whole) < 1e-9


@pytest.mark.parametrize("rule", ebl.RULES)
def test_a_step_along_every_rule_lowers_the_cost(rule):
    net = dense((4, 8, 3), gains=1.0)
    x, y = inputs(net, batch=16)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    costs = []
    for _ in range(40):
        costs.append(float(ebl.estimate_gradients(net, x, y, rule=rule, free=40, nudged=20).cost))
        optimiser.step()
    assert costs[-1] < 0.8 * costs[0]


def test_estimate_reports_output_cost_errors_residuals_iterations_and_the_state_to_carry():
    net = dense((4, 6, 8))
    x, y = inputs(net, batch=20)
    e = ebl.estimate_gradients(net, x, y, rule="p-ep", beta=0.3, free=ebl.Schedule(100, tolerance=1e-9), nudged=7)
    o = ebl.relax(net, x, ebl.Schedule(100, tolerance=1e-9)).state[-1]
    torch.testing.assert_close(e.output, o)
    assert float(e.cost) == pytest.approx(float((0.5 * (o - F.one_hot(y, 8)) ** 2).sum(1).mean()))
    ranks = (o > o.gather(1, y[:, None])).sum(1)
    assert float(e.top1_error) == pytest.approx(float((ranks > 0).double().mean()))
    assert float(e.top5_error) == pytest.approx(float((ranks > 4).double().mean()))
    assert e.free.iterations < 100
    assert e.nudged.iterations == 7
    assert e.free.residual.shape == e.nudged.residual.shape == (20,)
    target = F.one_hot(y, 8).double()
    second = ebl.relax(net, x, 7, start=e.free.state, boundary=ebl.Nudge(ebl.SquaredError(), target, 0.3))
    torch.testing.assert_close(e.state[0], second.state[0])


def test_frozen_parameters_get_no_gradient_and_targets_may_be_given_as_they_are():
    net = NETS["dense"]()
    x, y = inputs(net)
    truth = gradient(net, x, y)
    assert torch.equal(gradient(net, x, F.one_hot(y, 2).double()), truth)
    net.weights[0].requires_grad_(False)
    for rule in ("c-ep", "tbp", "rbp"):
        e = ebl.estimate_gradients(net, x, F.one_hot(y, 2).double(), rule=rule)
        assert net.weights[0].grad is None
        assert net.weights[1].grad is not None
    assert torch.isnan(e.top1_error)


class OneSided(ebl.SquaredError):
    """A cost that may only pull."""

    lowest_beta = 0.0


def test_a_cost_that_may_only_pull_does_for_a_rule_that_only_pulls():
    net = NETS["dense"]()
    x, y = inputs(net)
    truth = gradient(net, x, y, rule="p-ep", beta=0.1)
    assert torch.equal(gradient(net, x, y, rule="p-ep", beta=0.1, cost=OneSided()), truth)
    for rule in ("n-ep", "r-ep"):
        with pytest.raises(ebl.InputError, match=f"beta = 0.1 for {rule}: .* does not allow"):
            ebl.estimate_gradients(net, x, y, rule=rule, beta=0.1, cost=OneSided())


def test_what_is_no_energy_is_refused_by_what_it_lacks():
    for net in (torch.nn.Linear(2, 2), ebl.ConvHopfield):
        with pytest.raises(ebl.InputError, match="lacks one of init_state, energy: give an object that has them"):
            ebl.estimate_gradients(net, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))


def test_a_contrast_needs_a_boundary_that_there_is_and_two_phases():
    with pytest.raises(ebl.InputError, match="boundary = 'nugde' is unknown: did you mean nudge"):
        Contrast("nugde", 0, 1)
    with pytest.raises(ebl.InputError, match="second = 1 with first = 1: a contrast needs two phases"):
        Contrast("nudge", 1, 1)


class TooFew:
    def check_beta(self, name, beta, cost=None):
        return 0.0

    def gradients(self, net, x, target, free, *rest):
        return [torch.zeros_like(net.weights[0])], free


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": TooFew()}, ["rule TooFew gives 1 gradients", "one for each of the"]),
        ({"rule": SimpleNamespace(gradients=None)}, ["check_beta and gradients, like those in ebl.RULES"]),
        ({"rule": "cep"}, ["rule = 'cep'", "did you mean c-ep"]),
        ({"rule": "c-ep", "beta": 0}, ["beta = 0 for c-ep", "0.25"]),
        ({"rule": "n-ep", "beta": -0.1}, ["beta = -0.1 for n-ep", "the rule sets the sign"]),
        ({"rule": "cl", "beta": 0.5}, ["beta = 0.5 for cl", "leave beta out"]),
        ({"rule": "tbp", "beta": 0.5}, ["beta = 0.5 for tbp", "leave beta out"]),
        ({"rule": "c-ep", "beta": 1.0}, ["beta = 1", "SquaredError", "0.25"]),
        ({"rule": "r-ep", "beta": 1.2}, ["beta = 1.2 for r-ep", "0.25"]),
        ({"rule": None}, ["rule = None", "c-ep"]),
        ({"beta": "0.1"}, ["beta = '0.1'"]),
        ({"y": [0, 1]}, ["y is a list"]),
        ({"y": torch.tensor([0, 1, 2, 0])}, ["label 2", "0 to 1"]),
        ({"y": torch.tensor([0, -1, 1, 0])}, ["label -1", "0 to 1"]),
        ({"y": torch.tensor([0, 1])}, ["(2,)", "4 examples"]),
        ({"y": torch.zeros(4, 3)}, ["(4, 3)", "(4, 2)"]),
        ({"y": torch.full((4, 2), float("inf"))}, ["y holds", "infinite"]),
        ({"cost": "mse"}, ["'mse' lacks one of value, gradient, prox", "ebl.SquaredError()"]),
        ({"cost": ebl.SquaredError}, ["SquaredError'> lacks", "ebl.SquaredError()"]),
        ({"cost": OneSided(), "beta": 0.1}, ["beta = 0.1 for c-ep", "which OneSided does not allow", "p-ep"]),
    ],
)
def test_bad_input_is_refused_with_name_value_and_remedy(options, words):
    net = NETS["dense"]()
    x, y = inputs(net)
    with pytest.raises(ebl.InputError) as error:
        ebl.estimate_gradients(net, x, **{"y": y, **options})
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)
    assert all(p.grad is None for p in net.parameters())
