"""Relaxation: what it may do to the energy, where it ends, what it reports."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import TIGHT, EnergyOnly, conv, dense, inputs, random_state

import ebl
from ebl import naive
from ebl.boundary import FREE
from ebl.relax import ORDERS, colours, sweep, update_groups


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    omega=st.floats(0.02, 1.98),
    pool=st.sampled_from(["max", "average", "dense"]),
    beta=st.floats(-0.95, 3.0) | st.none(),
    gain=st.floats(0.2, 3.0),
    order=st.sampled_from(["odd-first", "even-first", "forward", "backward"]),
)
def test_two_colour_updates_and_sweeps_never_raise_the_energy(seed, omega, pool, beta, gain, order):
    net = dense(gains=gain, seed=seed) if pool == "dense" else conv(pool, gains=gain, seed=seed)
    x, y = inputs(net, seed=seed)
    target = torch.nn.functional.one_hot(y, 3).double()
    boundary = FREE if beta is None else ebl.Nudge(ebl.SquaredError(), target, beta)
    state = random_state(net, x, seed)
    net.requires_grad_(False)
    groups = update_groups(net, len(state), order, boundary)
    for group in groups * 4:
        before = net.energy(x, state) + boundary.energy(state[-1])
        state, _ = sweep(net, x, state, boundary, [group], iter([omega]), {})
        after = net.energy(x, state) + boundary.energy(state[-1])
        assert bool((after <= before + 1e-12 * (1 + before.abs())).all())
        assert all(float(s.min()) >= 0 and float(s.max()) <= 1 for s in state[:-1])


def test_synchronous_updates_can_raise_the_energy():
    net = dense((2, 4, 4), gains=4.0)
    x, _ = inputs(net)
    energy = ebl.relax(net, x, ebl.Schedule(20, order="synchronous"), trajectory=True).trajectory.energy
    assert bool((energy[1:] > energy[:-1] + 1e-3).any())


def test_chebyshev_factors_follow_golub_and_varga_and_stay_below_two():
    factors = ebl.Schedule(omega="chebyshev:0.9").factors()
    found = [next(factors) for _ in range(50)]
    assert found[:3] == pytest.approx([1, 1 / (1 - 0.45), 1 / (1 - 0.9 / (1 - 0.45) / 4)])
    assert found[-1] == pytest.approx(2 / (1 + (1 - 0.9) ** 0.5))  # the best fixed omega is the limit
    assert max(found) < 2


@pytest.mark.parametrize("make", [conv, lambda: conv("average"), dense])
@pytest.mark.parametrize("omega", [1.0, 1.5])
def test_relaxation_equals_its_naive_twin(make, omega):
    net = make()
    x, _ = inputs(net)
    found = ebl.relax(net, x, ebl.Schedule(9, omega)).state
    for a, b in zip(found, naive.relax(net, x, naive.zeros(net, len(x)), 9, omega), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_kept_convolutions_change_nothing_in_any_order(order):
    net = conv(gains=1.5)
    x, _ = inputs(net)
    groups, memo = update_groups(net, 3, order, FREE), {}
    kept = plain = random_state(net, x)
    for _ in range(5):
        kept, _ = sweep(net, x, kept, FREE, groups, iter([1.3] * 9), memo)
        for group in groups:
            moved = {k: torch.lerp(plain[k], net.update(k, x, plain, FREE), 1.3) for k in group}
            plain = tuple(moved.get(k, s).clamp(0, 1) if k < 2 else moved.get(k, s) for k, s in enumerate(plain))
    for a, b in zip(kept, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_each_interaction_costs_one_convolution_up_and_one_down_an_iteration(monkeypatch):
    net = conv(channels=(3, 4), image_size=8)
    x, _ = inputs(net)
    calls, downs = [], []
    up, down = type(net.links[0]).up, type(net.links[0]).down
    monkeypatch.setattr(type(net.links[0]), "up", lambda link, w, b, s: calls.append(link) or up(link, w, b, s))
    monkeypatch.setattr(type(net.links[0]), "down", lambda link, w, s, e: downs.append(link) or down(link, w, s, e))
    ebl.relax(net, x, 10)
    assert calls.count(net.links[0]) == 1  # the image's drive: once
    assert calls.count(net.links[1]) == 11  # one up-convolution an iteration, one for the start
    assert downs == [net.links[1]] * 10


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("omega", [0.7, 1.0, 1.4, "chebyshev:0.5"])
def test_every_schedule_finds_the_unique_equilibrium(order, omega):
    net = conv("average", gains=0.5)
    x, _ = inputs(net)
    truth = ebl.relax(net, x, TIGHT).state
    omega = 0.9 if order == "synchronous" else omega
    found = ebl.relax(net, x, ebl.Schedule(3000, omega, order, 1e-13), start=random_state(net, x))
    assert float(found.residual.max()) <= 1e-13
    for a, b in zip(found.state, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_equilibrium_of_a_linear_regime_matches_the_closed_form():
    net = dense((3, 4, 2), gains=0.5)
    with torch.no_grad():
        net.biases[0].fill_(0.5)  # keeps the hidden layer strictly inside (0, 1)
    x = torch.rand(2, 3, dtype=torch.float64) * 0.1
    s, o = ebl.relax(net, x, TIGHT).state
    assert 0 < float(s.min()) <= float(s.max()) < 1
    w0, w1 = net.weights[0].detach(), net.weights[1].detach()
    a = torch.eye(4, dtype=torch.float64) - w1 @ w1.T  # s = x w0 + b0 + (s w1 + b1) w1^T
    expected = torch.linalg.solve(a, (x @ w0 + net.biases[0] + net.biases[1] @ w1.T).T.detach()).T
    torch.testing.assert_close(s, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(o, (expected @ w1 + net.biases[1]).detach(), rtol=1e-10, atol=1e-12)


def test_residual_is_the_rms_distance_of_the_worst_block_to_its_minimiser():
    net = dense()
    x, _ = inputs(net)
    start = random_state(net, x)
    settled = ebl.relax(net, x, ebl.Schedule(1, 1.3, "synchronous"), start=start)
    gaps = [(net.update(k, x, start, FREE) - s).square().mean(1).sqrt() for k, s in enumerate(start)]
    torch.testing.assert_close(settled.residual, torch.stack(gaps).amax(0).detach())


def test_tolerance_stops_early_and_the_maximum_holds():
    net = dense()
    x, _ = inputs(net)
    early = ebl.relax(net, x, ebl.Schedule(500, tolerance=1e-6))
    assert early.iterations < 100
    assert float(early.residual.max()) <= 1e-6
    one_less = ebl.relax(net, x, ebl.Schedule(early.iterations - 1))
    assert float(one_less.residual.max()) > 1e-6
    assert ebl.relax(net, x, ebl.Schedule(3, tolerance=1e-30)).iterations == 3


def test_trajectory_holds_energy_residual_and_output_of_every_iteration():
    net = conv()
    x, y = inputs(net)
    nudge = ebl.Nudge(ebl.SquaredError(), torch.nn.functional.one_hot(y, 3).double(), 0.5)
    settled = ebl.relax(net, x, 7, boundary=nudge, trajectory=True)
    seen = settled.trajectory
    assert seen.energy.shape == seen.residual.shape == (7, 4)
    assert torch.equal(seen.output[-1], settled.state[-1])
    assert torch.equal(seen.residual[-1], settled.residual)
    for t in (1, 4):
        state = ebl.relax(net, x, t, boundary=nudge).state
        torch.testing.assert_close(seen.energy[t - 1], net.energy(x, state).detach() + nudge.energy(state[-1]))
    assert ebl.relax(net, x, 7).trajectory is None


def test_a_clamped_output_stays_and_the_rest_settles_around_it():
    net = dense()
    x, _ = inputs(net)
    value = torch.randn(4, 3, dtype=torch.float64)
    for order in ORDERS:
        settled = ebl.relax(net, x, ebl.Schedule(500, 0.8, order, 1e-12), boundary=ebl.Clamp(value))
        assert torch.equal(settled.state[-1], value)
        for k in (0, 1):
            torch.testing.assert_close(net.update(k, x, settled.state, FREE).detach(), settled.state[k], rtol=0, atol=1e-10)


def test_nudged_output_minimises_the_total_energy():
    net = dense()
    x, y = inputs(net)
    target = torch.nn.functional.one_hot(y, 3).double()
    state = random_state(net, x)
    for beta in (-0.5, 0.3, 2.0):
        nudge = ebl.Nudge(ebl.SquaredError(), target, beta)
        o = net.update(2, x, state, nudge).detach().requires_grad_()
        total = (net.energy(x, (*state[:2], o)) + nudge.energy(o)).sum()
        assert float(torch.autograd.grad(total, o)[0].abs().max()) < 1e-12


def test_colours_come_from_the_interaction_graph():
    assert colours(5, [(0, 1), (1, 2), (2, 3), (3, 4)]) == [[0, 2, 4], [1, 3]]
    assert colours(4, [(0, 1), (1, 2), (2, 3), (0, 2)]) == [[0, 3], [1], [2]]  # a skip joins layers of equal parity
    assert colours(3, None) == [[0], [1], [2]]
    assert colours(3, []) == [[0, 1, 2]]
    net = dense((2, 3, 3, 3, 3, 2))
    assert update_groups(net, 5, "even-first", FREE) == [[1, 3], [0, 2, 4]]
    assert update_groups(net, 5, "odd-first", ebl.Clamp(torch.zeros(1))) == [[0, 2], [1, 3]]


def test_a_sample_does_not_depend_on_its_batch_and_permuting_permutes():
    net = ebl.ConvHopfield(1, 16, (8, 8), gains=0.9)
    x = torch.randn(9, 1, 16, 16)
    order = torch.randperm(9)
    whole = ebl.relax(net, x, ebl.Schedule(20, 1.4))
    shuffled = ebl.relax(net, x[order], ebl.Schedule(20, 1.4))
    for s, p in zip(whole.state, shuffled.state, strict=True):
        torch.testing.assert_close(p, s[order], rtol=0, atol=1e-6)
    for i in range(9):
        alone = ebl.relax(net, x[i : i + 1], ebl.Schedule(20, 1.4))
        for s, a in zip(whole.state, alone.state, strict=True):
            torch.testing.assert_close(a[0], s[i], rtol=0, atol=1e-6)


def test_given_starts_are_used():
    net = dense()
    x, _ = inputs(net)
    half = ebl.relax(net, x, 3)
    torch.testing.assert_close(ebl.relax(net, x, 4, start=half.state).state[0], ebl.relax(net, x, 7).state[0])


class Shaped(torch.nn.Module):
    """An energy of one block, with any attributes."""

    def __init__(self, shape=(1,), **attributes):
        super().__init__()
        self.shape = shape
        for name, value in attributes.items():
            setattr(self, name, value)

    def init_state(self, x):
        return (x.new_zeros(len(x), *self.shape),)

    def energy(self, x, state):
        return (0.5 * state[0] ** 2).flatten(1).sum(1)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda n, x: ebl.Schedule(0), ["iterations = 0"]),
        (lambda n, x: ebl.Schedule("20"), ["iterations = '20'", "whole number"]),
        (lambda n, x: ebl.Schedule(omega=2.0), ["omega = 2.0", "0 < omega < 2"]),
        (lambda n, x: ebl.Schedule(omega=0), ["omega = 0", "0 < omega < 2"]),
        (lambda n, x: ebl.Schedule(omega="chebyshev:1.2"), ["chebyshev:1.2", "0.95"]),
        (lambda n, x: ebl.Schedule(omega="fast"), ["omega = fast"]),
        (lambda n, x: ebl.Schedule(order="odd_first"), ["order = 'odd_first'", "did you mean odd-first"]),
        (lambda n, x: ebl.Schedule(tolerance=-1), ["tolerance = -1"]),
        (lambda n, x: ebl.relax(n, x * float("nan")), ["x holds 20 values", "NaN"]),
        (lambda n, x: ebl.relax(n, x.float()), ["torch.float32", "torch.float64"]),
        (lambda n, x: ebl.relax(n, x[:, :3]), ["(4, 3)", "(batch, 5)"]),
        (lambda n, x: ebl.relax(Shaped(()), x), ["block 0", "shape (4,)", "(B, units)"]),
        (lambda n, x: ebl.relax(Shaped((0,)), x), ["block 0", "shape (4, 0)", "(B, units)"]),
        (
            lambda n, x: ebl.relax(Shaped(energy=lambda x, s: s[0].detach().sum(1)), x),
            ["does not depend on the state", "no detach"],
        ),
        (lambda n, x: ebl.relax(Shaped(bounds=(None, None)), x), ["bounds has 2 entries for 1 blocks", "None for each"]),
        (lambda n, x: ebl.relax(Shaped(bounds=((1.0, 0.0),)), x), ["bounds[0] = (1.0, 0.0)", "low below high"]),
        (lambda n, x: ebl.relax(Shaped(update=lambda k, *_: None), x), ["update(0, ...) gives None", "(4, 1)"]),
        (lambda n, x: ebl.relax(Shaped(update=lambda k, *_: torch.zeros(())), x), ["update(0, ...) gives shape ()", "(4, 1)"]),
        (lambda n, x: ebl.estimate_gradients(Shaped((1, 2)), x, x[:, 0].long()), ["labels", "(4, 1, 2)", "give targets"]),
        (lambda n, x: ebl.relax(n, x, start=n.init_state(x[:2])), ["start has shapes", "None for zeros"]),
        (lambda n, x: ebl.relax(n, x, start=tuple(s - 1 for s in n.init_state(x))), ["start[0]", "outside [0, 1]"]),
        (lambda n, x: ebl.relax(n, x, start=tuple(s * float("nan") for s in n.init_state(x))), ["start[0]", "NaN"]),
        (lambda n, x: ebl.relax(n, x, start=tuple(s.float() for s in n.init_state(x))), ["start[0] is torch.float32"]),
        (lambda n, x: ebl.relax(n, x, boundary=ebl.Clamp(x[:1, :3])), ["clamp has shape (1, 3)", "(4, 3)"]),
        (lambda n, x: ebl.relax(n, x, 2.5), ["schedule = 2.5"]),
        (lambda n, x: ebl.relax(n, x[:0]), ["empty batch"]),
    ],
)
def test_bad_input_is_refused_with_name_value_and_remedy(act, words):
    net = dense()
    x, _ = inputs(net)
    with pytest.raises(ebl.InputError) as error:
        act(net, x)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


def test_energy_alone_settles_where_the_closed_form_does():
    for net in (dense(), conv("average", gains=0.5), conv("max", gains=0.4)):
        x, _ = inputs(net)
        for order in ("odd-first", "backward"):
            a = ebl.relax(net, x, ebl.Schedule(2000, 1.0, order, 1e-13)).state
            b = ebl.relax(EnergyOnly(net), x, ebl.Schedule(2000, 1.0, order, 1e-13)).state
            for s, t in zip(a, b, strict=True):
                torch.testing.assert_close(s, t, rtol=0, atol=1e-10)
