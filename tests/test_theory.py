"""The theory's losses against closed forms: quadratic energies, where everything is known."""

import pytest
import torch
from nets import dense, finite_differences, inputs, relative
from torch import nn

import ebl
from ebl import theory
from ebl.theory.phases import FREE_PHASE, Problem, problem, settle
from ebl.theory.stiffness import output_response, times_stiffness


class Quadratic(nn.Module):
    """E = 1/2 s^T H s - (x W) s with 3 hidden units and 2 outputs, and everything that follows from it in closed form."""

    def __init__(self, seed: int = 0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        a = torch.randn(5, 5, generator=g, dtype=torch.float64)
        self.hessian = torch.eye(5, dtype=torch.float64) * 1.5 + 0.25 * (a + a.T) / 2
        self.w = nn.Parameter(torch.randn(4, 5, generator=g, dtype=torch.float64))

    def init_state(self, x):
        return x.new_zeros(len(x), 3), x.new_zeros(len(x), 2)

    def energy(self, x, state):
        s = torch.cat(state, 1)
        return 0.5 * ((s @ self.hessian) * s).sum(1) - ((x @ self.w) * s).sum(1)

    def minimum(self, x, y, beta):
        """F(beta) and where it is: (H + beta P) s = f + beta P y, with P the projection on the outputs."""
        p = torch.diag(torch.tensor([0.0, 0, 0, 1, 1], dtype=torch.float64))
        wide = torch.cat([torch.zeros(len(x), 3, dtype=torch.float64), y], 1)
        s = torch.linalg.solve(self.hessian + beta * p, (x @ self.w + beta * wide).T).T
        return self.energy(x, (s[:, :3], s[:, 3:])) + beta * 0.5 * (s[:, 3:] - y).square().sum(1), s

    def clamped(self, x, o):
        """min over h of E at a given output."""
        h = torch.linalg.solve(self.hessian[:3, :3], (x @ self.w[:, :3] - o @ self.hessian[3:, :3]).T).T
        return self.energy(x, (h, o))

    def stiffness(self):
        H = self.hessian
        return H[3:, 3:] - H[3:, :3] @ torch.linalg.inv(H[:3, :3]) @ H[:3, 3:]


@pytest.fixture(scope="module")
def case():
    net = Quadratic()
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(3, 4, generator=g, dtype=torch.float64), torch.randn(3, 2, generator=g, dtype=torch.float64)
    with torch.no_grad():
        o = net.minimum(x, y, 0.0)[1][:, 3:]
    return net.requires_grad_(False), x, y, o


def near(found, truth):
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("beta", [0.0, 0.3, 20.0, -0.6])
def test_free_energy_is_the_least_energy(case, beta):
    net, x, y, _ = case
    near(theory.free_energy(net, x, y, beta), net.minimum(x, y, beta)[0])


@pytest.mark.parametrize("beta", [0.5, -0.5])
def test_surrogates_are_differences_of_free_energies(case, beta):
    net, x, y, _ = case
    f, f0, minus = (net.minimum(x, y, b)[0] for b in (beta, 0.0, -beta))
    near(theory.surrogate_loss(net, x, y, beta), (f - f0) / beta)
    near(theory.centred_surrogate_loss(net, x, y, beta), (f - minus) / (2 * beta))


@pytest.mark.parametrize("beta", [1.0, 0.25, -0.25])
def test_contrastive_and_coupled_losses(case, beta):
    net, x, y, o = case
    f0 = net.minimum(x, y, 0.0)[0]
    near(theory.contrastive_function(net, x, y), net.clamped(x, y) - f0)
    near(theory.coupled_loss_2(net, x, y, beta), (net.clamped(x, o + beta * (y - o)) - f0) / beta)
    near(theory.coupled_loss_1(net, x, y), (((y - o) @ net.stiffness()) * (y - o)).sum(1))


def test_on_an_energy_that_is_quadratic_in_the_output_l1_is_twice_the_contrastive_function(case):
    net, x, y, _ = case
    near(theory.coupled_loss_1(net, x, y), 2 * theory.contrastive_function(net, x, y))


def test_the_stiffness_is_that_of_the_unclamped_hidden_units():
    net = dense((3, 8, 2), gains=1.5, seed=3)
    x, y = inputs(net, batch=5)
    free = ebl.relax(net, x, ebl.Schedule(500, tolerance=1e-13)).state
    v = torch.randn(5, 2, dtype=torch.float64)
    inside = ((free[0] > 0) & (free[0] < 1)).double()
    assert 0 < inside.mean() < 1
    w = net.weights[1].detach()
    truth = torch.stack(
        [(torch.eye(2, dtype=torch.float64) - w.T @ torch.diag(m) @ w) @ u for m, u in zip(inside, v, strict=True)]
    )
    near(times_stiffness(net, x, free, v), truth)

    def g(o):  # min over h of E, at an output
        return net.energy(x, ebl.relax(net, x, 500, start=(free[0], o), boundary=ebl.Clamp(o)).state)

    gap = torch.nn.functional.one_hot(y, 2).double() - free[1]
    t = 1e-4
    second = (g(free[1] + t * gap) - 2 * g(free[1]) + g(free[1] - t * gap)) / t**2
    torch.testing.assert_close(theory.coupled_loss_1(net, x, y), second.detach(), rtol=1e-5, atol=1e-6)


def test_the_stiffness_of_coupled_and_curved_hidden_units_is_that_of_a_dense_solve():
    class Curved(nn.Module):
        def __init__(self):
            super().__init__()
            g = torch.Generator().manual_seed(0)
            self.a, self.b, self.c = (torch.randn(n, 4, generator=g, dtype=torch.float64) * 0.3 for n in (4, 3, 2))

        def init_state(self, x):
            return x.new_zeros(len(x), 4), x.new_zeros(len(x), 3), x.new_zeros(len(x), 2)

        def energy(self, x, state):
            h, k, o = state
            hidden = 0.5 * h.square().sum(1) + (h**4).sum(1) + 0.5 * (h @ self.a).square().sum(1) + k.square().sum(1)
            return hidden + 0.5 * o.square().sum(1) - (k @ self.b * h.sin()).sum(1) - ((o @ self.c) * h).sum(1) - (x * h).sum(1)

    net, x = Curved(), torch.rand(2, 4, dtype=torch.float64)
    state = settle(problem(net, x, torch.zeros(2, 2, dtype=torch.float64)), [])[FREE_PHASE]
    v = torch.randn(2, 2, dtype=torch.float64)
    for b in range(2):
        flat = torch.cat([s[b] for s in state])
        H = torch.autograd.functional.hessian(
            lambda s, b=b: net.energy(x[b : b + 1], tuple(s[None].split([4, 3, 2], 1)))[0], flat
        )
        schur = H[7:, 7:] - H[7:, :7] @ torch.linalg.inv(H[:7, :7]) @ H[:7, 7:]
        near(times_stiffness(net, x, state, v)[b], schur @ v[b])


def test_what_moves_the_output_is_that_of_the_closed_form():
    net, x, g = Quadratic(), torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    state = settle(problem(net, x, g), [])[FREE_PHASE]
    (found,) = output_response(net, x, state, g)
    wide = torch.cat([torch.zeros(3, 3, dtype=torch.float64), g], 1)
    near(found, x.T @ torch.linalg.solve(net.hessian, wide.T).T)  # of g . (H^-1 W^T x)_o


def test_units_at_a_bound_move_no_output():
    net = dense((3, 8, 2), gains=1.5, seed=3)
    x, g = inputs(net, batch=5)[0], torch.randn(5, 2, dtype=torch.float64)
    schedule = ebl.Schedule(500, tolerance=1e-14)
    free = ebl.relax(net, x, schedule).state
    truth = finite_differences(net, lambda: float((g * ebl.relax(net, x, schedule, start=free).state[-1]).sum()))
    found = torch.cat([t.flatten() for t in output_response(net, x, free, g)])
    assert relative(found, truth) < 1e-7


def test_ep_descends_the_surrogate_that_free_energy_gives():
    net = dense((3, 4, 2), seed=1)
    x, y = inputs(net, batch=2)
    truth = finite_differences(net, lambda: float(theory.surrogate_loss(net, x, y, 2.0).mean()))
    ebl.estimate_gradients(net, x, y, rule="p-ep", beta=2.0, free=200, nudged=200)
    assert relative(torch.cat([p.grad.flatten() for p in net.parameters()]), truth) < 1e-6


def test_a_float32_network_is_left_as_it_is_and_the_loss_is_found_in_float64():
    net = ebl.DenseHopfield((3, 4, 2), seed=1)
    x, y = torch.rand(2, 3), torch.tensor([0, 1])
    found = theory.free_energy(net, x, y, 0.5)
    assert net.weights[0].dtype == torch.float32
    near(found, theory.free_energy(dense((3, 4, 2), gains=0.5, seed=1), x.double(), y, 0.5))


def test_other_costs_are_nudged_with():
    class Free(nn.Module):
        def init_state(self, x):
            return (torch.zeros_like(x),)

        def energy(self, x, state):
            return 0.5 * (state[0] - x).square().sum(1)

    x, y = torch.randn(2, 3, dtype=torch.float64), torch.tensor([2, 0])
    cost, beta = ebl.CrossEntropy(), 0.7
    target = torch.nn.functional.one_hot(y, 3).double()
    o = cost.prox(x, target, beta)  # the minimiser of 1/2 |o - x|^2 + beta C
    near(theory.free_energy(Free(), x, y, beta, cost=cost), 0.5 * (o - x).square().sum(1) + beta * cost.value(o, target))


class Valley(nn.Module):
    """E = a/2 o^2 - x o: no minimum unless a + beta > 0."""

    def __init__(self, a):
        super().__init__()
        self.a = a

    def init_state(self, x):
        return (x.new_zeros(len(x), 1),)

    def energy(self, x, state):
        return (0.5 * self.a * state[0] ** 2 - x * state[0]).sum(1)


def test_what_does_not_settle_is_said():
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    with pytest.raises(theory.AssumptionError, match="no minimum, free: the energy falls without end"):
        theory.free_energy(Valley(-1.0), x, y, 0.0)
    with pytest.raises(theory.AssumptionError, match=r"no minimum, nudged at β = -0\.5"):
        theory.free_energy(Valley(0.3), x, y, -0.5)
    near(theory.free_energy(Valley(0.3), x, y, -0.2), torch.full((2,), -0.5 / 0.1, dtype=torch.float64))
    p = problem(Quadratic(), torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(theory.AssumptionError, match="no convergence, free: residual"):
        settle(Problem(p.net, p.x, p.target, p.cost, 1e-12, iterations=3), [])


def test_a_saddle_is_no_minimum():
    class Saddle(nn.Module):
        def init_state(self, x):
            return x.new_zeros(len(x), 2), x.new_zeros(len(x), 1)

        def energy(self, x, state):  # flat in one hidden unit, hollow in the other: at rest at 0
            h, o = state
            return 0.5 * o.square().sum(1) + (h[:, 1] ** 2 - h[:, 0] ** 2) * 0.5 + (o * h).sum(1)

    x = torch.zeros(1, 1, dtype=torch.float64)
    state = tuple(torch.zeros(1, n, dtype=torch.float64) for n in (2, 1))
    with pytest.raises(theory.AssumptionError, match="no strict minimum"):
        times_stiffness(Saddle(), x, state, torch.ones(1, 1, dtype=torch.float64))


@pytest.mark.parametrize(("beta", "words"), [(0.0, "divides by beta"), (float("nan"), "finite"), (float("inf"), "finite")])
def test_bad_betas_are_refused(case, beta, words):
    net, x, y, _ = case
    for loss in (theory.surrogate_loss, theory.centred_surrogate_loss, theory.coupled_loss_2):
        with pytest.raises(ebl.InputError, match=words):
            loss(net, x, y, beta)


def test_below_minus_one_a_hopfield_network_has_no_free_energy():
    net = dense((3, 4, 2))
    x, y = inputs(net)
    with pytest.raises(ebl.InputError, match="no minimum"):
        theory.free_energy(net, x, y, -1.1)


@pytest.mark.parametrize(("where", "dtype"), [("init_state", "float32"), ("energy", "float32")])
def test_energies_that_fall_back_to_float32_are_refused(where, dtype):
    class Mixed(Valley):
        def init_state(self, x):
            return (torch.zeros(len(x), 1),) if where == "init_state" else super().init_state(x)

        def energy(self, x, state):
            return super().energy(x, state).float() if where == "energy" else super().energy(x, state)

    with pytest.raises(ebl.InputError, match=f"{where} gives torch.{dtype}"):
        theory.free_energy(Mixed(1.0), torch.ones(1, 1), torch.zeros(1, 1), 0.0)
