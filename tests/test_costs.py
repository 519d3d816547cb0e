"""Costs: gradient and proximal step against autograd and the defining equation."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import TIGHT, EnergyOnly, dense, finite_differences, gradient, inputs, relative

import ebl

COSTS = [ebl.SquaredError(), ebl.CrossEntropy()]


@pytest.mark.parametrize("cost", COSTS)
def test_gradient_is_autograds(cost):
    o = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    y = F.one_hot(torch.tensor([0, 1, 2, 3, 0]), 4).double()
    (truth,) = torch.autograd.grad(cost.value(o, y).sum(), o)
    torch.testing.assert_close(cost.gradient(o, y), truth)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("beta", [-0.9, -0.1, 0.25, 3.0])
def test_prox_solves_o_minus_h_plus_beta_times_gradient(cost, beta):
    h = 3 * torch.randn(6, 4, dtype=torch.float64)
    y = F.one_hot(torch.tensor([0, 1, 2, 3, 0, 1]), 4).double()
    o = cost.prox(h, y, torch.full((6, 1), beta, dtype=torch.float64))
    assert float((o - h + beta * cost.gradient(o, y)).abs().max()) < 1e-9
    torch.testing.assert_close(cost.prox(h, y, beta), o)


def test_rbp_and_c_ep_follow_the_gradient_of_another_cost():
    net = dense((3, 4, 2), gains=0.9)
    x, y = inputs(net)
    cost, target = ebl.CrossEntropy(), F.one_hot(y, 2).double()
    truth = finite_differences(net, lambda: float(cost.value(ebl.relax(net, x, TIGHT).state[-1], target).mean()))
    assert relative(gradient(net, x, y, rule="rbp", cost=cost, free=TIGHT, nudged=3000), truth) < 1e-6
    assert relative(gradient(net, x, y, rule="c-ep", beta=1e-3, cost=cost, free=TIGHT, nudged=TIGHT), truth) < 1e-5
    alone = gradient(EnergyOnly(net), x, y, rule="c-ep", beta=0.3, cost=cost, free=TIGHT, nudged=TIGHT)
    closed = gradient(net, x, y, rule="c-ep", beta=0.3, cost=cost, free=TIGHT, nudged=TIGHT)
    assert relative(alone, closed) < 1e-8


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    beta=st.floats(-1.9, 20),
    scale=st.floats(0.01, 20),
    kind=st.sampled_from([torch.float32, torch.float64]),
)
def test_prox_of_cross_entropy_is_found_for_every_beta_it_allows(seed, beta, scale, kind):
    g = torch.Generator().manual_seed(seed)
    h = scale * torch.randn(20, 10, generator=g, dtype=kind)
    y = F.one_hot(torch.randint(10, (20,), generator=g), 10).to(kind)
    cost = ebl.CrossEntropy()
    o = cost.prox(h, y, beta)
    slope = (o - h + beta * cost.gradient(o, y)).abs().max()
    assert float(slope) < 200 * torch.finfo(kind).eps * (1 + scale + abs(beta))


def test_a_cost_or_an_energy_must_give_one_number_for_each_example():
    class Summed(ebl.SquaredError):
        def value(self, output, target):
            return super().value(output, target).sum()

    net = dense()
    x, y = inputs(net)
    with pytest.raises(ebl.InputError, match=r"cost has shape \(\) for 4 examples"):
        ebl.estimate_gradients(net, x, y, cost=Summed())

    class SummedEnergy(EnergyOnly):
        def energy(self, x, state):
            return super().energy(x, state).sum()

    with pytest.raises(ebl.InputError, match=r"energy has shape \(\) for 4 examples"):
        ebl.relax(SummedEnergy(net), x)
