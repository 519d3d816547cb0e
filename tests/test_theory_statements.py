"""The table's rows against mathematics: energies on which each figure is known, or an assumption fails."""

import math
from itertools import pairwise

import pytest
import torch
from nets import dense, inputs, relative
from torch import nn

import ebl
from ebl import theory
from ebl.theory.differences import directions, moved, projected, slopes
from ebl.theory.kinks import pattern
from ebl.theory.minima import several_minima
from ebl.theory.phases import FREE_PHASE, Phase, contrast, problem, settle
from ebl.theory.rules import loss_of
from ebl.theory.statements import PULLS, PUSHES, make_row, order_of
from ebl.theory.subjects import small_network


class Parabola(nn.Module):
    """E = a/2 (o - t x)^2: F(b) = a b / (a + b) C, so L_b = a / (a + b) C; CpL leaves a (o* - y) x for every beta."""

    def __init__(self, a: float = 2.0):
        super().__init__()
        self.a, self.t = a, nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def init_state(self, x):
        return (x.new_zeros(len(x), 1),)

    def energy(self, x, state):
        return (0.5 * self.a * (state[0] - self.t * x) ** 2).sum(1)


def rows_of(net, x=None, y=None, **options):
    x = torch.tensor([[1.0], [0.4], [-0.8]], dtype=torch.float64) if x is None else x
    y = torch.tensor([[-0.3], [-0.3], [0.9]], dtype=torch.float64) if y is None else y
    return {row.statement.partition(":")[0]: row for row in theory.statements(net, x, y, **options)}


def starting(rows, words):
    (found,) = [row for name, row in rows.items() if name.startswith(words)]
    return found


@pytest.fixture(scope="module")
def small():
    subject = small_network()
    return rows_of(subject.net, subject.x, subject.y)


def test_on_a_hopfield_network_every_statement_holds(small):
    assert {name: row.verdict for name, row in small.items() if row.verdict != "holds"} == {}
    assert len(small) == 22
    assert starting(small, "F = −∞").measured == pytest.approx(2 * (1 - 1.1) / 2, rel=1e-4)  # two outputs
    assert starting(small, "L_±β").measured == pytest.approx(1, abs=0.01)
    assert starting(small, "L_−β;+β").measured == pytest.approx(2, abs=0.01)


def test_with_the_cross_entropy_the_free_energy_has_a_bottom_below_minus_one():
    subject = small_network()
    rows = rows_of(subject.net, subject.x, subject.y, cost=ebl.CrossEntropy())
    assert {row.verdict for row in rows.values()} == {"holds"}
    assert not [name for name in rows if name.startswith("F = −∞")]


def test_every_figure_is_that_of_the_closed_form_on_a_parabola():
    a = 2.0
    rows = rows_of(Parabola(a))
    assert {row.verdict for row in rows.values()} == {"holds"}
    C = torch.tensor([(0.7 * x - y) ** 2 / 2 for x, y in ((1, -0.3), (0.4, -0.3), (-0.8, 0.9))])
    most, least = float(C.max() / C.mean()), float(C.min() / C.mean())

    def figure(words):
        return starting(rows, words).measured

    # the largest of negative numbers belongs to the example with the smallest cost
    assert figure("L_β ≤ C") == pytest.approx(max(a / (a + b) - 1 for b in PULLS) * least, rel=1e-6)
    assert figure("C ≤ L_−β") == pytest.approx(max(1 - a / (a - b) for b in PUSHES) * least, rel=1e-6)
    grid = [*(-b for b in reversed(PUSHES)), 0.0, *PULLS]
    L = [a / (a + b) for b in grid]
    F = [a * b / (a + b) for b in grid]
    chords = [(g - f) / (c - b) for f, g, b, c in zip(F, F[1:], grid, grid[1:], strict=False)]
    for words, values in (("L_β never rises", L), ("F is concave", chords)):
        falls = [v - u for u, v in pairwise(values)]
        assert figure(words) == pytest.approx(max(falls) * least, rel=1e-5)
    assert most > least
    # L2 = beta L_CL here, so its gradient is beta times what the rule leaves, and that of the mean at ±beta is zero
    for rule, difference in (("p-cpl", 1 - 0.25), ("n-cpl", 1 + 0.25), ("c-cpl", 1.0)):
        assert figure(f"{rule} at β = 0.25 does not descend") == pytest.approx(difference, rel=1e-6)
    assert figure("L_±β = C") == pytest.approx(1, abs=1e-4)
    assert figure("L_−β;+β = C") == pytest.approx(2, abs=1e-3)


def test_the_rows_of_a_rule_whose_gradient_is_wrong_fail():
    class Wrong(ebl.DenseHopfield):
        def gradients(self, x, state, weights, memo=None):
            first, *others = super().gradients(x, state, weights, memo)
            return [first * 1.001, *others]

    net = Wrong((3, 6, 4, 2), gains=(1.5, 1.0, 0.5), seed=6).double()
    with torch.no_grad():
        for bias in net.biases[:-1]:
            bias.fill_(0.3)
    subject = small_network()
    rows = rows_of(net, subject.x, subject.y)
    wrong = [name for name, row in rows.items() if row.verdict == "fails"]
    assert len([name for name in wrong if "descends" in name]) == 8
    assert len([name for name in wrong if "misses" in name]) == 3
    assert len(wrong) == 11


def test_energies_that_are_not_minimised_break_the_bounds(monkeypatch):
    class Off(ebl.DenseHopfield):
        """Settles its output off the minimum where it is nudged."""

        def update(self, k, x, state, boundary, memo=None):
            found = super().update(k, x, state, boundary, memo)
            return found + 0.5 if isinstance(boundary, ebl.Nudge) and k == len(state) - 1 else found

    monkeypatch.setattr("ebl.theory.phases._check_minimum", lambda *phase: None)  # which would say so
    subject = small_network()
    rows = rows_of(Off((3, 2)).double(), subject.x, subject.y)
    for words in ("dF/dβ", "L_β ≤ C", "C ≤ L_−β", "L_β never rises", "F is concave", "L_±β = C", "L_−β;+β = C"):
        assert starting(rows, words).verdict == "fails", words


def test_a_soft_energy_has_no_minimum_when_pushed_too_hard_and_the_rows_say_so():
    rows = rows_of(Parabola(0.3))
    for words in ("C ≤ L_−β", "L_β never rises", "F is concave", "n-ep at β = 0.9", "c-ep at β = 0.9"):
        assert starting(rows, words).verdict.startswith("assumption not met: no minimum, nudged at β = -0."), words
    for words in ("L_β ≤ C", "L_±β", "L_−β;+β", "p-ep at β = 10", "n-ep at β = 0.25", "c-ep at β = 0.25", "dF/dβ"):
        assert starting(rows, words).verdict == "holds", words


@pytest.mark.parametrize("a", [0.05, 0.01, 1e-4])
def test_small_betas_are_small_beside_the_energys_stiffness(a):
    rows = rows_of(Parabola(a))
    for words in ("dF/dβ", "L_±β", "L_−β;+β"):
        assert starting(rows, words).verdict == "holds", words
    assert starting(rows, "L_±β").measured == pytest.approx(1, abs=0.01)
    assert starting(rows, "L_−β;+β").measured == pytest.approx(2, abs=0.01)


def test_targets_beyond_the_outputs_bounds_are_clamped_to():
    class Bounded(Parabola):
        bounds = ((-1.0, 1.0),)

    x, y = torch.tensor([[1.0], [-0.5]], dtype=torch.float64), torch.tensor([[1.5], [-2.0]], dtype=torch.float64)
    rows = rows_of(Bounded(), x, y)
    for words in ("cl at", "p-cpl at β = 1 descends", "p-cpl at β = 0.25 misses", "n-cpl at β = 0.25 misses"):
        assert starting(rows, words).verdict == "holds", words
    torch.testing.assert_close(theory.contrastive_function(Bounded(), x, y), (y - 0.7 * x)[:, 0] ** 2)  # a/2 (y - o*)^2


def test_where_nothing_settles_every_row_says_so():
    rows = rows_of(Parabola(-1.0))
    assert {row.verdict for row in rows.values()} == {"assumption not met: no minimum, free: the energy falls without end"}
    assert {row.measured for row in rows.values()} == {None}
    slow = rows_of(dense((1, 2, 1)), iterations=2)
    assert all(row.verdict.startswith("assumption not met: no convergence, free: residual") for row in slow.values())


def test_several_minima_are_found_and_said():
    class DoubleWell(Parabola):
        def energy(self, x, state):
            o = state[0]
            return (o**4 / 4 - o**2 - (self.t * x + 0.05) * o).sum(1)  # minima near ±1.4

    rows = rows_of(DoubleWell())
    for words in ("L_β never rises", "F is concave"):
        assert starting(rows, words).verdict.startswith("assumption not met: several minima: 2 from 9 starts"), words
    for words in ("L_β ≤ C", "C ≤ L_−β", "p-ep at β = 0.25 descends", "n-ep at β = 0.25 descends"):  # of the one it is in
        assert starting(rows, words).verdict == "holds", words


def test_minima_of_one_energy_are_told_apart_by_their_outputs():
    class Symmetric(Parabola):
        def energy(self, x, state):
            o = state[0]
            return (o**4 / 4 - o**2 / 2 + 0 * self.t).sum(1)  # minima at ±1, both at -1/4

    p = problem(Symmetric(), torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    states = settle(p, [], begin=(torch.full((2, 1), 0.5, dtype=torch.float64),))
    assert several_minima(p, states, [FREE_PHASE]) == "several minima: 2 from 9 starts, free"


def test_a_pattern_tells_both_bounds_from_what_is_between():
    class Bounded(Parabola):
        bounds = ((-1.0, 2.0),)

    x = torch.zeros(3, 1, dtype=torch.float64)
    p = problem(Bounded(), x, x)
    (found,) = pattern(p, (torch.tensor([[-1.0], [0.0], [2.0]], dtype=torch.float64),))
    assert found.flatten().tolist() == [-1, 0, 1]


def test_a_free_phase_that_rests_on_a_hill_is_no_minimum_and_the_rows_say_so():
    class Hill(Parabola):
        def energy(self, x, state):
            o = state[0]
            return (o**4 / 4 - o**2 / 2 - self.t * x * o).sum(1)  # zeros, where it starts, are a maximum for x = 0

    x = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    rows = rows_of(Hill(), x, x + 0.8)
    assert {row.verdict for row in rows.values()} == {
        "assumption not met: no minimum, free: it rests where a small push leads lower"
    }
    with pytest.raises(theory.AssumptionError, match="small push leads lower"):
        theory.coupled_loss_1(Hill(), x, x + 0.8)
    start = (torch.ones_like(x),)
    torch.testing.assert_close(theory.free_energy(Hill(), x, x, 0.0, start=start)[0].item(), -0.25)


def test_a_wrong_update_does_not_pass_for_a_minimum():
    class Stuck(Parabola):
        def update(self, k, x, state, boundary, memo):
            return 0 * x + 0.2

    assert {row.verdict[:34] for row in rows_of(Stuck()).values()} == {"assumption not met: no minimum, fr"}

    class StuckWhere(Parabola):
        def __init__(self, kind):
            super().__init__()
            self.kind = kind

        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            h, o = state
            return (0.5 * (h - self.t * x) ** 2 + 0.5 * (o - h) ** 2).sum(1)

        def update(self, k, x, state, boundary, memo):
            h, o = state
            if isinstance(boundary, self.kind):
                return 0 * x + 0.2
            return boundary.output(h) if k else (self.t * x + o) / 2

    for kind, phase, of, other in (
        (ebl.Nudge, "nudged", "ep at", "cl at"),
        (ebl.Clamp, "clamped", "cpl at", "p-ep at β = 0.25"),
    ):
        rows = rows_of(StuckWhere(kind))
        stuck = [row.verdict for name, row in rows.items() if of in name]
        assert all(verdict.startswith(f"assumption not met: no minimum, {phase} at β =") for verdict in stuck)
        assert starting(rows, other).verdict == "holds"


@pytest.mark.parametrize(("off", "constant"), [(3e-4, 0.0), (3e-3, 30.0), (1e-2, 1e3), (1e-4, 1e6)])
def test_no_constant_in_the_energy_hides_that_an_update_is_wrong(off, constant):
    class Off(Parabola):
        def energy(self, x, state):
            return super().energy(x, state) + constant

        def update(self, k, x, state, boundary, memo):
            beta = torch.as_tensor(getattr(boundary, "beta", 0.0)).view(-1, 1)
            return (self.a * self.t * x + beta * getattr(boundary, "target", 0.0)) / (self.a + beta) + off

    assert {row.verdict for row in rows_of(Off()).values()} == {
        "assumption not met: no minimum, free: it rests where a small push leads lower"
    }
    with pytest.raises(theory.AssumptionError, match="small push leads lower"):
        theory.free_energy(Off(), torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), 0.0)


def test_an_energy_that_autograd_does_not_see_is_not_judged_by_its_slopes():
    class Unseen(Parabola):
        def energy(self, x, state):
            return (0.5 * self.a * (state[0].detach() - self.t * x) ** 2).sum(1)

        def update(self, k, x, state, boundary, memo):
            beta = torch.as_tensor(getattr(boundary, "beta", 0.0)).view(-1, 1)
            return (self.a * self.t * x + beta * getattr(boundary, "target", 0.0)) / (self.a + beta)

    x = torch.ones(1, 1, dtype=torch.float64)
    expected = 2 * 0.25 / (2 + 0.25) * (0.7 - 2) ** 2 / 2  # a b / (a + b) C
    assert theory.free_energy(Unseen(), x, 2 * x, 0.25).item() == pytest.approx(expected)


def test_a_phase_that_escapes_downhill_is_told_as_such_also_where_it_ends_in_nan():
    class Slack(Parabola):
        """Beyond its bottom log cosh grows by 1 for each 1: a push of half a square wins."""

        def energy(self, x, state):
            return (torch.cosh(5 * (state[0] - self.t * x)).log() / 5).sum(1)  # infinite where cosh is

    x = torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    with pytest.raises(theory.AssumptionError, match=r"no minimum, nudged at β = -0\.9: the energy falls without end"):
        theory.free_energy(Slack(), x, -3 * torch.ones_like(x), -0.9)


def test_a_stiff_energy_is_allowed_what_its_tolerance_leaves_of_the_rules():
    """dE/dt = -a x (o - t x) moves by a times as much as the state is off."""
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    rows = rows_of(Parabola(1e7), x, y)
    assert "fails" not in {row.verdict for row in rows.values()}
    row = starting(rows, "p-ep at β = 0.25 descends")
    size = (1e7 * 0.25 / (1e7 + 0.25) / 0.25) * abs(float((0.7 - y).mean()))  # of the gradient
    sway = 1e7 * 1e-12 * 2 / 0.25  # of two phases, over beta
    assert row.limit < 1e-2
    assert 0.1 * 10 * sway / size < row.limit < 10 * 10 * sway / size  # with pushes drawn at random
    assert starting(rows_of(Parabola(2.0), x, y), "p-ep at β = 0.25 descends").limit < 3e-6


def test_one_large_block_leaves_the_others_their_precision():
    class Mixed(Parabola):
        """E = 1/2 (h / s - t x)^2 + (o - h / s)^2 + 1/2 o^2, with h of size s and all else of size 1."""

        size = 1e4

        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            h, o = state[0] / self.size, state[1]
            return (0.5 * (h - self.t * x) ** 2 + (o - h) ** 2 + 0.5 * o**2).sum(1)

    assert {name: row.verdict for name, row in rows_of(Mixed()).items() if row.verdict != "holds"} == {}


def test_no_constant_in_the_energy_hides_a_hill():
    class Hill(Parabola):
        def energy(self, x, state):
            return (state[0] ** 4 / 4 - state[0] ** 2 / 2).sum(1) + 1e8

    with pytest.raises(theory.AssumptionError, match="no minimum, free: it rests where a small push leads lower"):
        theory.free_energy(Hill(), torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64), 0.0)


def test_a_kink_at_the_bottom_is_a_minimum():
    class Cusp(Parabola):
        def energy(self, x, state):
            return (state[0].abs() + 0.5 * state[0] ** 2).sum(1)

        def update(self, k, x, state, boundary, memo):
            return torch.zeros_like(state[0])  # the pull below is too weak to leave it

    x = torch.ones(1, 1, dtype=torch.float64)
    assert theory.free_energy(Cusp(), x, 2 * x, 0.25).item() == pytest.approx(0.25 * 2)  # 1/4 C at o = 0


def test_an_example_whose_target_is_reached_leaves_the_others_their_orders():
    x = torch.tensor([[1.0], [0.0], [0.5]], dtype=torch.float64)
    rows = rows_of(Parabola(), x, torch.tensor([[0.2], [0.0], [0.9]], dtype=torch.float64))
    assert {row.verdict for row in rows.values()} == {"holds"}
    assert starting(rows, "L_−β;+β").measured == pytest.approx(2, abs=1e-3)  # a^2 / (a^2 - b^2) C


def test_a_wrong_gradient_fails_where_the_energy_only_bends_sharply():
    class Waves(Parabola):
        """E = a/2 (o - sin(3000 t)/3000 x)^2, whose gradient by t is made too large by 1 %."""

        error = 1.01

        def energy(self, x, state):
            return (0.5 * self.a * (state[0] - torch.sin(3000 * self.t) / 3000 * x) ** 2).sum(1)

        def gradients(self, x, state, weights, memo):
            slope = -self.a * (state[0] - torch.sin(3000 * self.t) / 3000 * x) * torch.cos(3000 * self.t) * x
            return [self.error * (weights * slope.sum(1)).sum()]

    row = starting(rows_of(Waves()), "p-ep at β = 0.25 descends")
    assert (row.verdict, row.measured) == ("fails", pytest.approx(0.01, rel=0.01))
    Waves.error = 1.0
    assert starting(rows_of(Waves()), "p-ep at β = 0.25 descends").verdict == "holds"


@pytest.mark.parametrize("unit", [2e4, 1e6])
def test_large_units_settle_to_the_precision_they_have(unit):
    x = torch.tensor([[1.0], [0.4], [-0.8]], dtype=torch.float64)
    rows = rows_of(Parabola(), unit * x, unit * torch.tensor([[-0.3], [-0.3], [0.9]], dtype=torch.float64))
    assert {name: row.verdict for name, row in rows.items() if row.verdict != "holds"} == {}


def test_a_state_that_is_not_a_number_is_told_as_such():
    class Lost(Parabola):
        def update(self, k, x, state, boundary, memo):
            return state[0] * torch.nan

    assert {row.verdict for row in rows_of(Lost()).values()} == {
        "assumption not met: no convergence, free: the state is NaN after 100 iterations"
    }


def test_an_energy_that_falls_steadily_is_told_as_such():
    class Slope(Parabola):
        def energy(self, x, state):
            return (self.t * x * state[0]).sum(1)

    assert {row.verdict for row in rows_of(Slope()).values()} == {
        "assumption not met: no minimum, free: the energy falls without end"
    }


def test_a_block_without_a_part_in_the_energy_and_parameters_beyond_autograd_are_no_error():
    class Aside(Parabola):
        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            return (0.5 * self.a * (state[1] - self.t * x) ** 2).sum(1)

    assert {row.verdict for row in rows_of(Aside()).values()} == {"holds"}

    class Detached(Parabola):
        def energy(self, x, state):
            return (0.5 * self.a * (state[0] - self.t.detach() * x) ** 2).sum(1)

    rows = rows_of(Detached())
    assert starting(rows, "dF/dβ").verdict == "holds"
    row = starting(rows, "cl at")
    assert (row.verdict, row.measured) == ("fails", pytest.approx(1))  # the energy does depend on t


def test_a_perturbed_phase_that_rests_on_a_hill_is_no_minimum_and_the_rows_say_so():
    class Hollow(Parabola):
        """At the target E = (1/2 - (y - o*)^2) h^2 + h^4 + ... has a hill at h = 0, which by symmetry nothing leaves."""

        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            h, gap = state[0], state[1] - self.t * x
            return ((0.5 - gap**2) * h**2 + h**4 + gap**4 + 0.5 * gap**2).sum(1)

    x = torch.tensor([[1.0], [0.6]], dtype=torch.float64)
    y = 0.7 * x + torch.tensor([[2.0], [-1.5]], dtype=torch.float64)
    rows = rows_of(Hollow(), x, y)
    for words, phase in (
        ("cl at", "clamped at β = 1"),
        ("p-cpl at β = 1 descends", "clamped at β = 1"),
        ("n-ep at β = 0.9", "nudged at β = -0.9"),
    ):
        assert (
            starting(rows, words).verdict == f"assumption not met: no minimum, {phase}: it rests where a small push leads lower"
        )
    for words in ("p-cpl at β = 0.25 misses", "n-cpl at β = 0.25 misses", "p-ep at β = 0.25", "dF/dβ"):
        assert starting(rows, words).verdict == "holds", words
    with pytest.raises(theory.AssumptionError, match="no minimum, clamped at β = 1"):
        theory.contrastive_function(Hollow(), x, y)


def test_an_update_that_runs_away_is_not_taken_for_an_energy_that_falls():
    class Away(Parabola):
        def update(self, k, x, state, boundary, memo):
            return 1 - 2 * state[0]

    assert {row.verdict for row in rows_of(Away()).values()} == {
        "assumption not met: no convergence, free: the state runs away, and its energy does not fall"
    }


def test_an_update_that_autograd_cannot_follow_settles_all_the_same():
    class Detached(Parabola):
        @torch.no_grad()
        def update(self, k, x, state, boundary, memo):
            boundary_beta = torch.as_tensor(getattr(boundary, "beta", 0.0)).view(-1, 1)
            target = getattr(boundary, "target", 0.0)
            return (self.a * self.t * x + boundary_beta * target) / (self.a + boundary_beta)

    assert {row.verdict for row in rows_of(Detached()).values()} == {"holds"}


@pytest.mark.parametrize(("stiffness", "quartic"), [(500.0, 0.0), (500.0, 100.0), (3e-4, 1e-3)])
def test_on_stiff_and_soft_energies_smooth_as_they_are_nothing_counts_as_a_kink(stiffness, quartic):
    class Forced(Parabola):
        """E = k/2 (h^2 + o^2) - k/4 h o + q (h^4 + o^4) - t x (h + o), with t of the size of k."""

        def __init__(self):
            super().__init__(stiffness)
            self.t.data.fill_(0.7 * stiffness)

        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            h, o = state
            pulled = 0.5 * self.a * (h**2 + o**2 - 0.5 * h * o) - self.t * x * (h + o)
            return (pulled + quartic * (h**4 + o**4)).sum(1)

    rows = rows_of(Forced())
    assert [row for row in rows.values() if row.verdict == "fails" or "kink" in row.verdict] == []
    for words in ("dF/dβ", "p-ep at β = 0.25", "p-ep at β = 10", "cl at", *(f"{r}-cpl at β = 0.25 misses" for r in "pnc")):
        assert starting(rows, words).verdict == "holds", words


def test_the_derivative_at_0_is_found_where_the_energy_hardens_with_beta():
    class Hardens(Parabola):
        def energy(self, x, state):
            o = state[0]
            return (0.5 * self.a * o**2 + 0.3 * self.a * o**4 - self.a * self.t * x * o).sum(1)

    y = torch.tensor([[8.0], [-9.0], [5.0]], dtype=torch.float64)
    assert starting(rows_of(Hardens(0.05), y=y), "dF/dβ").verdict == "holds"


def test_kinks_within_the_finite_difference_are_said():
    class Kink(Parabola):
        """E = a/2 (o - |t| x)^2, with t next to its kink."""

        def __init__(self):
            super().__init__()
            self.t.data.fill_(6e-6)

        def energy(self, x, state):
            return (0.5 * self.a * (state[0] - self.t.abs() * x) ** 2).sum(1)

    rows = rows_of(Kink())
    for words in ("p-ep at β = 0.25", "c-ep at β = 0.9", "cl at", "p-cpl at β = 0.25 misses"):
        assert "a kink or a sharp bend: finite differences of two steps are" in starting(rows, words).verdict, words

    net = dense((1, 1, 1))
    with torch.no_grad():
        for p, value in zip(net.parameters(), (1.0, 0.5, 4e-6, 0.0), strict=True):
            p.fill_(
                value
            )  # the hidden unit's field is 4e-6 and the output's term in it: it leaves its bound at 0 within the step
    zero = torch.zeros(1, 1, dtype=torch.float64)
    row = starting(rows_of(net, zero, zero + 1), "p-cpl at β = 0.25 misses")
    assert "a kink: units or pools switch along" in row.verdict

    class AtRest(Parabola):
        """E = h^2/2 - t x h + o^2/2 - u h o with h >= 0: at t = 0 h rests on its bound, and nothing depends on u."""

        bounds = ((0.0, 1.0), None)

        def __init__(self):
            super().__init__()
            self.t.data.zero_()
            self.u = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

        def init_state(self, x):
            return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

        def energy(self, x, state):
            h, o = state
            return (0.5 * h**2 - self.t * x * h + 0.5 * o**2 - self.u * h * o).sum(1)

    x = torch.ones(2, 1, dtype=torch.float64)
    rows = rows_of(AtRest(), x, 0.3 * x)
    assert starting(rows, "n-ep at β = 0.25").verdict.endswith("switch along 1 of 2 directions within ±1e-05")
    assert [row for row in rows.values() if "nan" in row.verdict or "inf" in row.verdict] == []


def test_kinks_in_beta_are_said():
    net = dense((1, 1, 1))
    with torch.no_grad():
        for p, value in zip(net.parameters(), (0.0, 0.9, 1e-4, 0.0), strict=True):
            p.fill_(value)  # a negative nudge switches the hidden unit off at once
    zero = torch.zeros(1, 1, dtype=torch.float64)
    rows = rows_of(net, zero, zero + 1)
    assert "a kink:" in starting(rows, "L_−β;+β = C").verdict
    assert "switch within β = ±0.004" in starting(rows, "L_−β;+β = C").verdict


def test_kinks_that_no_bound_tells_of_are_said():
    class Relu(Parabola):
        """E = 1/2 o^2 + 1/2 relu(o)^2 - t x o: at t = 0 the output rests where the curvature jumps, in beta and in t."""

        def energy(self, x, state):
            o = state[0]
            return (0.5 * o**2 + 0.5 * o.relu() ** 2 - self.t * x * o).sum(1)

    net = Relu()
    net.t.data.zero_()
    x = torch.ones(2, 1, dtype=torch.float64)
    rows = rows_of(net, x, 0.8 * x)
    assert {row.verdict for row in rows.values() if row.verdict != "holds" and ": a kink" not in row.verdict} == set()
    for words in ("dF/dβ", "L_−β;+β"):
        assert starting(rows, words).verdict.endswith(
            ": a kink, or a minimum that is flat: F″ is not the same on both sides of β = 0"
        )
    row = starting(rows, "c-cpl at β = 0.25 misses")
    assert float(row.verdict.partition("finite differences of two steps are ")[2].split()[0]) > 0.01


def test_where_nothing_moves_the_output_coupled_learning_has_nothing_to_miss():
    class Stiffer(Parabola):
        """E = t/2 (o - x)^2: what CpL leaves and dL2/dt are both beta/2 (x - y)^2."""

        def energy(self, x, state):
            return (0.5 * self.t * (state[0] - x) ** 2).sum(1)

    rows = rows_of(Stiffer())
    for rule in ("p-cpl", "n-cpl"):
        row = starting(rows, f"{rule} at β = 0.25 does not descend")
        assert row.verdict == "assumption not met: the term that it misses vanishes here"
        assert row.measured < 1e-8
    assert "fails" not in {row.verdict for row in rows.values()}

    class Kinked(Parabola):
        """The same with a kink in t, which takes the finite differences off the estimate."""

        def energy(self, x, state):
            return (0.5 * (1 + self.t + (self.t - 0.7).relu()) * (state[0] - x) ** 2).sum(1)

    row = starting(rows_of(Kinked()), "p-cpl at β = 0.25 does not descend")
    assert row.measured > 0.1
    assert row.verdict == "assumption not met: the term that it misses vanishes here"


def test_what_rounding_hides_is_no_verdict():
    class Lifted(Parabola):
        """A wrong gradient under a constant so large that finite differences cannot tell."""

        lift = 1e7

        def energy(self, x, state):
            return super().energy(x, state) + self.lift

        def gradients(self, x, state, weights, memo):
            return [torch.zeros_like(self.t)]

    rows = rows_of(Lifted())
    assert "holds" not in {row.verdict for name, row in rows.items() if "descends" in name or "misses" in name}
    assert "rounding hides it" in starting(rows, "p-ep at β = 0.25 descends").verdict
    Lifted.lift = 1e10
    assert "is lost in the rounding of energies of 1e+10" in starting(rows_of(Lifted()), "dF/dβ").verdict


def test_an_energy_without_parameters_or_with_its_target_reached_has_no_gradient_to_check():
    rows = rows_of(Parabola().requires_grad_(False))
    assert starting(rows, "cl at").verdict == "assumption not met: the energy has no parameters"
    x = torch.ones(2, 1, dtype=torch.float64)
    rows = rows_of(Parabola(), x, 0.7 * x)
    for words in ("dF/dβ", "L_β ≤ C", "C ≤ L_−β", "L_β never", "F is", "p-ep at β = 0.25", "cl at"):
        assert starting(rows, words).verdict.startswith("not measurable: the target is reached: a cost of "), words
    assert "equal up to rounding" in starting(rows, "L_±β = C").verdict


def test_an_energy_whose_parameters_do_not_touch_the_output_has_no_gradient_to_check():
    class Idle(Parabola):
        def energy(self, x, state):
            return (0.5 * self.a * (state[0] - x) ** 2).sum(1) + 0 * self.t

    assert starting(rows_of(Idle()), "cl at").verdict == "assumption not met: the gradient vanishes here"


def test_losses_have_the_phases_and_weights_of_the_rules():
    assert loss_of("p-ep", 0.5) == {Phase("nudge", 0.5): 2.0, FREE_PHASE: -2.0}
    assert loss_of("n-ep", 0.5) == {FREE_PHASE: 2.0, Phase("nudge", -0.5): -2.0}
    assert loss_of("c-cpl", 0.5) == {Phase("clamp", 0.5): 1.0, Phase("clamp", -0.5): -1.0}
    assert loss_of("cl", 1.0) == contrast("clamp", 0, 1) == {Phase("clamp", 1.0): 1.0, FREE_PHASE: -1.0}


def test_finite_differences_are_the_gradients_of_a_parabola_and_leave_the_network_as_it_was():
    net, a, x, y = Parabola(), 2.0, torch.tensor([[1.0], [2.0]], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    p = problem(net, x, y, own=True)
    states = settle(p, [Phase("nudge", 3.0), Phase("clamp", 0.5)])
    found = slopes(p, states, directions(p.net))
    t, mean = 0.7, 2.5  # of x^2
    assert float(found.of({Phase("nudge", 3.0): 1.0})) == pytest.approx(a * 3 / (a + 3) * t * mean, rel=1e-8)
    assert float(found.of({Phase("clamp", 0.5): 1.0})) == pytest.approx(a * 0.25 * t * mean, rel=1e-7)  # as exact as o★
    assert p.net.t.item() == net.t.item() == 0.7
    assert p.net is not net


def test_large_networks_are_checked_along_random_directions_in_every_tensor():
    net = dense((20, 30, 5))
    along = directions(net)
    assert len(along) == 2 * len(list(net.parameters()))
    x, y = inputs(net, batch=2)
    gradients = [torch.randn_like(q) for q in net.parameters()]
    truth = [float((g * way).sum()) for g, (_, way) in zip([g for g in gradients for _ in range(2)], along, strict=True)]
    assert relative(projected(gradients, net, along), torch.tensor(truth, dtype=torch.float64)) < 1e-12
    rows = rows_of(net, x, y)
    assert starting(rows, "p-ep at β = 0.25 descends").verdict == "holds"
    before = net.weights[0].clone()
    with moved(along[0], 0.1):
        assert not torch.equal(net.weights[0], before)
    assert torch.equal(net.weights[0], before)


@pytest.mark.parametrize(
    ("relation", "measured", "unmet", "doubt", "verdict"),
    [
        ("<=", 1.0, None, None, "holds"),
        ("<=", 1.1, None, None, "fails"),
        (">=", 0.9, None, None, "fails"),
        (">", 1.0, None, None, "fails"),
        ("<=", 0.5, "x", None, "assumption not met: x"),
        ("<=", 0.5, None, "x", "holds"),
        ("<=", 1.5, None, "x", "assumption not met: x"),
        ("<=", None, None, None, "fails"),
        ("<=", math.nan, None, None, "assumption not met: the energies are not finite numbers"),
    ],
)
def test_verdicts(relation, measured, unmet, doubt, verdict):
    assert make_row("", "", relation, 1.0, measured, unmet, doubt).verdict == verdict
    assert make_row("", "", relation, 1.0, measured, unmet, doubt, "x").verdict == "not measurable: x"


@pytest.mark.parametrize("power", [0.5, 1, 2, 3])
def test_the_order_of_a_power_with_a_small_next_term_is_found(power):
    assert order_of([b**power * (1 + 3 * b) for b in (0.04, 0.02, 0.01)]) == pytest.approx(power, abs=0.01)
