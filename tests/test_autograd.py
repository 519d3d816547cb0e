"""The update that autograd makes, on energies of many shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import TIGHT, flat, gradient
from torch import nn

import ebl
from ebl.boundary import FREE
from ebl.relax import sweep, update_groups


class Energy(nn.Module):
    """Two blocks with lateral connections, a quartic or periodic term and uneven curvature."""

    def __init__(self, shape: str = "quartic", seed: int = 0, scale: float = 1.0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.w = nn.ParameterList(
            nn.Parameter(scale * torch.randn(n, m, generator=g, dtype=torch.float64)) for n, m in ((3, 4), (4, 2), (4, 4))
        )
        self.stiff = torch.tensor([1.0, 1.5, 2.0, 3.0], dtype=torch.float64)

    def init_state(self, x):
        return x.new_zeros(len(x), 4), x.new_zeros(len(x), 2)

    def energy(self, x, state):
        h, o = state
        e = 0.5 * (self.stiff * h**2).sum(1) + (o**2).sum(1) - (h * (x @ self.w[0])).sum(1) - (o * (h @ self.w[1])).sum(1)
        e = e + 0.5 * ((h @ self.w[2]) ** 2).sum(1)  # lateral: the block's Hessian is not diagonal
        if self.shape == "quartic":
            return e + (h**4).sum(1) + 0.3 * (o**4).sum(1)
        if self.shape == "periodic":
            return e + 2 * torch.cos(3 * h).sum(1) + torch.sin(2 * o).sum(1)
        return e + (h - 0.3).abs().sum(1) + torch.relu(o).sum(1)  # kinks


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["quartic", "periodic", "kinks"]),
    omega=st.floats(0.1, 1.9),
    beta=st.floats(-0.9, 2) | st.none(),
    scale=st.floats(0.1, 5),
)
def test_no_energy_ever_rises(seed, shape, omega, beta, scale):
    net = Energy(shape, seed, scale)
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(5, 3, generator=g, dtype=torch.float64), torch.randn(5, 2, generator=g, dtype=torch.float64)
    boundary = FREE if beta is None else ebl.Nudge(ebl.SquaredError(), y, beta)
    state = tuple(3 * torch.randn(5, n, generator=g, dtype=torch.float64) for n in (4, 2))
    memo = {}
    for group in update_groups(net, 2, "odd-first", boundary) * 6:
        before = net.energy(x, state) + boundary.energy(state[-1])
        with torch.no_grad():
            state, _ = sweep(net, x, state, boundary, [group], iter([omega]), memo)
        after = net.energy(x, state) + boundary.energy(state[-1])
        assert bool((after <= before + 1e-13 * (1 + before.abs())).all())


@pytest.mark.parametrize("rule", ["c-ep", "rbp", "tbp"])
def test_gradients_of_an_energy_with_lateral_connections_are_the_true_ones(rule):
    net = Energy("quartic", scale=0.4)
    x, y = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    tight = ebl.Schedule(2000, tolerance=1e-12)
    value = ebl.SquaredError().value
    options = {"c-ep": {"beta": 1e-3, "nudged": tight}, "rbp": {"nudged": 200}, "tbp": {"nudged": 100}}[rule]
    found = gradient(net, x, y, rule=rule, free=tight, **options)
    for _ in range(3):  # along random directions: each relaxation takes a while
        directions = [torch.randn_like(p) for p in net.parameters()]
        ends = []
        for step in (1e-5, -2e-5):
            for p, d in zip(net.parameters(), directions, strict=True):
                p.data += step * d
            ends.append(float(value(ebl.relax(net, x, tight).state[-1], y).mean()))
        for p, d in zip(net.parameters(), directions, strict=True):
            p.data += 1e-5 * d
        assert float(found @ flat(directions)) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_a_quadratic_block_without_lateral_connections_is_minimised_in_one_step():
    class Quadratic(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([0.01, 1.0, 250.0], dtype=torch.float64))

        def init_state(self, x):
            return (torch.zeros_like(x),)

        def energy(self, x, state):
            return (0.5 * self.a * state[0] ** 2 - x * state[0]).sum(1)

    net = Quadratic()
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(ebl.relax(net, x, 1).state[0], (x / net.a).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(ebl.relax(net, x, TIGHT).state[0], (x / net.a).detach())


def test_declared_bounds_hold_and_are_reached():
    class Linear(nn.Module):
        bounds = ((-1.0, 2.0),)

        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(2, dtype=torch.float64))

        def init_state(self, x):
            return (torch.zeros_like(x),)

        def energy(self, x, state):
            return (self.a * x * state[0]).sum(1)

    settled = ebl.relax(Linear(), torch.tensor([[1.0, -3.0]], dtype=torch.float64), ebl.Schedule(50, tolerance=0.0))
    assert settled.state[0].tolist() == [[-1.0, 2.0]]


def test_examples_do_not_influence_each_other():
    net = Energy("periodic")
    x = torch.randn(4, 3, dtype=torch.float64)
    together = ebl.relax(net, x, 30).state
    for i in range(4):
        alone = ebl.relax(net, x[i : i + 1], 30).state
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a[0], b[i], rtol=0, atol=1e-12)


class Inhibition(nn.Module):
    """Quadratic, all outputs inhibit each other: its Hessian I + a 11^T has many symmetries, and a closed-form minimum."""

    def __init__(self, units: int, a: float):
        super().__init__()
        self.units, self.a = units, a
        self.w = nn.Parameter(torch.randn(3, units, dtype=torch.float64))

    def init_state(self, x):
        return x.new_zeros(len(x), 2), x.new_zeros(len(x), self.units)

    def energy(self, x, state):
        h, o = state
        e = 0.5 * (h**2).sum(1) + 0.5 * (o**2).sum(1) - (o * (x @ self.w)).sum(1) - 0.1 * h.sum(1) * o.sum(1)
        return e + 0.5 * self.a * o.sum(1) ** 2

    def solution(self, x):
        n = self.units
        hessian = torch.eye(n + 2, dtype=torch.float64)
        hessian[2:, 2:] += self.a
        hessian[:2, 2:] -= 0.1
        hessian[2:, :2] -= 0.1
        force = torch.cat([x.new_zeros(len(x), 2), (x @ self.w).detach()], 1)
        return torch.linalg.solve(hessian, force.T).T[:, 2:]


@pytest.mark.parametrize("units", [3, 4, 6, 10])
@pytest.mark.parametrize("a", [0.5, 2.0])
def test_symmetric_lateral_connections_are_seen(units, a):
    net = Inhibition(units, a)
    x, y = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, units, dtype=torch.float64)
    settled = ebl.relax(net, x, ebl.Schedule(3000, tolerance=1e-12))
    assert settled.iterations < 1000
    torch.testing.assert_close(settled.state[-1], net.solution(x), rtol=0, atol=1e-9)
    tight = ebl.Schedule(3000, tolerance=1e-12)
    truth = gradient(net, x, y, rule="c-ep", beta=1e-3, free=tight, nudged=tight)
    for rule in ("rbp", "tbp"):
        found = gradient(net, x, y, rule=rule, free=tight, nudged=600)
        assert float((found - truth).norm() / truth.norm()) < 1e-5


def test_whether_units_interact_is_decided_for_each_example():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones((), dtype=torch.float64))

        def init_state(self, x):
            return (x.new_zeros(len(x), 2),)

        def energy(self, x, state):
            h = state[0]
            return (self.a * 0.5 * torch.tensor([0.2, 20.0]) * h**2 - h).sum(1) + x[:, 0] * h[:, 0] * h[:, 1]

    x = torch.tensor([[0.0], [0.25]], dtype=torch.float64)
    together, alone = ebl.relax(Gated(), x, 5).state[0][0], ebl.relax(Gated(), x[:1], 5).state[0][0]
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(alone, torch.tensor([5.0, 0.05], dtype=torch.float64))


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_an_input_of_another_dtype_than_an_own_energys_is_told(kind):
    class Springs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.randn(3, 2))

        def init_state(self, x):
            return (x.new_zeros(len(x), 2),)

        def energy(self, x, state):
            return (0.5 * state[0] ** 2 - state[0] * (x @ self.a)).sum(1)

    labels = torch.zeros(4, dtype=torch.long)
    with pytest.raises(ebl.InputError, match=f"x is {str(kind)[6:]}, the network float32: convert one of them"):
        ebl.estimate_gradients(Springs(), torch.zeros(4, 3, dtype=kind), labels)


def test_another_error_of_an_own_energy_stays_what_it_is():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 2))

        def init_state(self, x):
            return (self.table.new_zeros(len(x), 2),)

        def energy(self, x, state):
            return (state[0] @ self.table[x[:, 0]]).sum(1)  # shapes do not fit

    labels = torch.zeros(4, dtype=torch.long)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ebl.estimate_gradients(Embedded(), torch.zeros(4, 1, dtype=torch.long), labels)


def test_integer_inputs_work_with_every_rule():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 2, dtype=torch.float64))

        def init_state(self, x):
            return (self.table.new_zeros(len(x), 2),)

        def energy(self, x, state):
            return (0.5 * state[0] ** 2 - state[0] * self.table[x[:, 0]]).sum(1)

    net, x, y = Embedded(), torch.tensor([[0], [3]]), torch.tensor([0, 1])
    target = torch.eye(2, dtype=torch.float64)
    truth = torch.zeros(5, 2, dtype=torch.float64)
    truth[[0, 3]] = (net.table[[0, 3]].detach() - target) / 2  # o = table[x]
    for rule in ("c-ep", "rbp", "tbp", "c-cpl"):
        found = gradient(net, x, y, rule=rule, free=20, nudged=20)
        exact = truth.flatten() / (1 - 0.25**2 if rule == "c-ep" else 1)  # (o(b) - o(-b)) / 2b for o(b) = (o + b y) / (1 + b)
        assert float((found - exact).norm()) < 1e-9
