"""Counter-examples, landscape and settling against hand-made algebra."""

import math

import pytest
import torch
from torch import nn

import ebl
from ebl.models.counterexamples import CoupledLossRises, SquaredErrorRises
from ebl.theory import counterexamples
from ebl.theory.counterexamples import NINE, Step, coupled_steps, statements_on_counterexamples, steps
from ebl.theory.landscape import SEVEN, TARGET, WINDOW, Landscape, seven_rules
from ebl.theory.settling import Course, courses

RATES = (1e-3, 0.05)


def test_the_energies_are_those_of_the_appendix():
    net = SquaredErrorRises()
    with torch.no_grad():
        net.theta.copy_(torch.tensor([0.3, -0.2]))
    o = torch.tensor([[0.7, 0.1]], dtype=torch.float64)
    g1, g2 = 0.7 - 0.8, 0.1 - (0.3 - 0.4)  # o - b, with b = (1 + t2, t1 + 2 t2)
    e = net.energy(o, (o,))
    assert e.item() == pytest.approx(0.5 * (g1**2 - 2 * g1 * g2 + 2 * g2**2))
    (grad,) = torch.autograd.grad(e, net.theta)
    a1, a2 = g1 - g2, -g1 + 2 * g2  # A (o - b)
    assert grad.tolist() == pytest.approx([-a2, -(a1 + 2 * a2)])  # -b'^T A (o - b): the appendix has it without the minus
    one = CoupledLossRises()
    with torch.no_grad():
        one.theta.fill_(0.9)
    e = one.energy(o[:, :1], (o[:, :1],))
    assert e.item() == pytest.approx(0.5 * (5 - 3.6) * (0.7 - 0.9) ** 2)
    (grad,) = torch.autograd.grad(e, one.theta)
    assert grad.item() == pytest.approx(-(5 - 6 * 0.9 + 2 * 0.7) * (0.7 - 0.9))
    assert grad.item() != pytest.approx((5 - 2 * 0.9 - 2 * 0.7) * (0.7 - 0.9))  # the appendix's


@pytest.mark.parametrize(("rule", "beta"), [("cl", None), *((f"{s}-cpl", b) for s in "pnc" for b in (0.1, 3.0))])
def test_a_step_of_coupled_learning_raises_the_squared_error_by_exactly_so_much(rule, beta):
    for rate, seen in zip(RATES, steps("squared-error", rule, RATES, beta), strict=True):
        assert seen.theta == pytest.approx([rate, rate], rel=1e-9)
        assert seen.squared_error == pytest.approx(2 * rate + 10 * rate**2, rel=1e-9)


def test_the_rows_on_the_examples_are_the_algebra_and_a_wrong_step_fails(monkeypatch):
    squared, order, least, cl = statements_on_counterexamples()
    assert squared.measured < 1e-9
    assert order.measured == pytest.approx(2, abs=0.02)  # -7 d^2 beside -2 d, with d = -eta (1 - 2 beta)
    d = -1e-3 * (1 - 2 * 0.45)  # the beta next to 1/2 is the one that changes L1 the least
    assert least.measured == pytest.approx((-2 * d - 7 * d**2 - 4 * d**3) / 2e-3, rel=1e-6)
    assert cl.measured == pytest.approx((-2e-3 - 7e-6 - 4e-9) / 2e-3, rel=1e-6)
    assert [row.verdict for row in (squared, order, least, cl)] == ["holds"] * 4

    def reversed_steps(*args):
        return [Step(-s.squared_error, -s.l1, s.theta) for s in steps(*args)]

    monkeypatch.setattr(counterexamples, "steps", reversed_steps)
    assert [row.verdict for row in statements_on_counterexamples()] == ["fails"] * 4


def ep_way(b):
    """P-EP's step over eta in example 1, at a signed beta: -b'^T A (A + beta)^-1 b."""
    return [b / (b * b + 3 * b + 1), (b - 1) / (b * b + 3 * b + 1)]


@pytest.mark.parametrize(
    ("rule", "beta", "way"),
    [
        ("p-ep", 0.3, ep_way(0.3)),
        ("p-ep", 2.0, ep_way(2.0)),  # beyond 1 it descends its lower bound and raises the squared error
        ("n-ep", 0.3, ep_way(-0.3)),  # has a minimum below (3 - sqrt 5)/2
        ("c-ep", 0.3, [(p + n) / 2 for p, n in zip(ep_way(0.3), ep_way(-0.3), strict=True)]),
        ("rbp", None, [0.0, -1.0]),
        ("tbp", None, [0.0, -1.0]),
    ],
)
def test_what_the_other_rules_do_there(rule, beta, way):
    (seen,) = steps("squared-error", rule, [0.01], beta)
    t1, t2 = (0.01 * w for w in way)
    assert seen.theta == pytest.approx([t1, t2], abs=1e-9)
    assert seen.squared_error == pytest.approx((1 + t2) ** 2 + (t1 + 2 * t2) ** 2 - 1, abs=1e-9)
    assert (seen.squared_error < 0) == (rule != "p-ep" or beta < 1)


@pytest.mark.parametrize("beta", [-2.0, -0.3, 0.2, 0.49, 0.6, 1.0])
def test_a_step_of_coupled_learning_raises_l1_below_one_half_and_lowers_it_above(beta):
    for rate, seen in zip(RATES, coupled_steps("l1", beta, RATES), strict=True):
        d = -rate * (1 - 2 * beta)
        assert seen.theta == pytest.approx([1 + d], rel=1e-9)
        assert seen.l1 == pytest.approx(-2 * d - 7 * d**2 - 4 * d**3, rel=1e-6, abs=1e-10)  # of (5 - 4 t) t^2 at t = 1 + d
        assert (seen.l1 > 0) == (beta < 0.5) or rate > 0.01


@pytest.mark.parametrize(
    ("rule", "beta", "way"),
    [
        ("cl", None, 1.0),
        ("c-cpl", 0.9, -1.0),
        ("p-ep", 0.5, -0.5 / 1.5**2),
        ("n-ep", 0.5, -1.5 / 0.5**2),
        ("c-ep", 0.5, -(0.5 / 1.5**2 + 1.5 / 0.5**2) / 2),
        ("rbp", None, -1.0),
        ("tbp", None, -1.0),
    ],
)
def test_what_the_nine_rules_do_to_l1(rule, beta, way):
    (seen,) = steps("l1", rule, [1e-3], beta)
    assert seen.theta == pytest.approx([1 + 1e-3 * way], rel=1e-9)
    assert (seen.l1 > 0) == (way < 0) == (seen.squared_error < 0)


def test_the_nine_are_all_rules_with_a_choice_of_sign_or_none():
    assert set(NINE) == set(ebl.RULES) - {"r-ep"}
    with pytest.raises(ebl.InputError, match="did you mean l1"):
        steps("L1", "cl", [0.1])


@pytest.fixture(scope="module")
def seven():
    return seven_rules(beta=0.4, points=41)


def test_the_landscapes_points_are_equilibria(seven):
    net, y = Landscape(), torch.tensor(TARGET, dtype=torch.float64)

    def slope(point):
        o = torch.tensor([point], dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(net.energy(o, (o,)).sum(), o)[0][0], o.detach()[0]

    for rule, panel in seven.panels.items():
        assert slope(panel.free)[0].abs().max() < 1e-9
        for point, b in ((panel.raised, -0.4), (panel.lowered, 0.4)):
            if point == panel.free:
                continue
            g, o = slope(point)
            if rule.endswith("-ep"):
                assert (g + b * (o - y)).abs().max() < 1e-9
            else:
                b = 1.0 if rule == "cl" else b
                assert o.tolist() == pytest.approx([f + b * (t - f) for f, t in zip(panel.free, TARGET, strict=True)], abs=1e-9)
    ends = {rule: (p.raised == p.free, p.lowered == p.free) for rule, p in seven.panels.items()}
    assert ends == {rule: (rule[0] in "p" or rule == "cl", rule[0] == "n") for rule in SEVEN}


def test_each_rule_raises_the_one_configuration_and_lowers_the_other(seven):
    left, right, low, high = WINDOW
    for panel in seven.panels.values():
        for point, sign in ((panel.raised, 1), (panel.lowered, -1)):
            column = round((point[0] - left) / (right - left) * 40)
            row = round((point[1] - low) / (high - low) * 40)
            assert seven.o1[column] == pytest.approx(point[0], abs=0.06)
            assert seven.o2[row] == pytest.approx(point[1], abs=0.06)
            assert sign * float(panel.change[row, column]) > 0.1
    far = math.dist(TARGET, (0, 0))
    for rule in set(SEVEN) - {"cl"}:  # a step of the others brings the output nearer
        assert math.dist(TARGET, seven.panels[rule].moved) < far - 0.05


class Pair(nn.Module):
    """E = h^2/2 + o^2/2 - w h o - h: two blocks, each at the other's mercy."""

    w = 0.8

    def init_state(self, x):
        return x.new_zeros(len(x), 1), x.new_zeros(len(x), 1)

    def energy(self, x, state):
        h, o = state
        return (0.5 * h**2 + 0.5 * o**2 - self.w * h * o - h).sum(1)


def test_two_colours_need_half_the_iterations_of_synchronous_updates():
    """In the closed form the residual is w^t after t synchronous iterations, and w^2t after two-colour ones."""
    w, names = Pair.w, ("synchronous", "two-colour, odd first", "sweep upwards", "synchronous, ω = 1.4")
    found = courses(Pair(), torch.zeros(2, 1), 200, names)
    for name, rate in zip(names[:3], (w, w * w, w * w), strict=True):
        course = found[name]
        assert course.residual[:30] == pytest.approx([rate**t for t in range(1, 31)], rel=1e-5)
        assert course.reaches(1e-4) == math.ceil(math.log(1e-4) / math.log(rate))
        assert course.factor() == pytest.approx(rate, rel=1e-4)
    least = -0.5 / (1 - w * w)
    two = found["two-colour, odd first"].energy[:20]  # h is off by w^2t / (1 - w^2), and o = w h
    assert [e - least for e in two] == pytest.approx(
        [0.5 * w ** (4 * t) / (1 - w * w) for t in range(1, 21)], rel=1e-6, abs=1e-9
    )
    assert found["synchronous, ω = 1.4"].reaches(0.1) is None  # 1 - 1.4 (1 + 0.8) is below -1: it runs away
    assert found["synchronous, ω = 1.4"].factor() is None


def test_over_relaxation_settles_faster_as_its_theory_says():
    """For two colours the factor is omega - 1 once omega is past the best, 2 / (1 + sqrt(1 - w^2)) = 1.25."""
    found = courses(Pair(), torch.zeros(1, 1), 300, ("two-colour, ω = 1.4", "two-colour, ω = 1.6", "two-colour, ω = 1.2"))
    assert found["two-colour, ω = 1.6"].factor() == pytest.approx(0.6, abs=0.03)
    assert found["two-colour, ω = 1.4"].factor() == pytest.approx(0.4, abs=0.05)
    root = (1.2 * 0.8 + math.sqrt((1.2 * 0.8) ** 2 - 4 * 0.2)) / 2  # of u^2 - omega w u + omega - 1
    assert found["two-colour, ω = 1.2"].factor() == pytest.approx(root**2, rel=1e-3)


def test_a_level_is_reached_when_the_residual_stays_below_it():
    course = Course([0.5, 0.05, 0.2, 0.01, 0.005], [0.0] * 5)
    assert [course.reaches(level) for level in (1, 0.1, 0.01, 0.001)] == [1, 4, 4, None]
    assert Course([1.0], [3.0]).above_limit() == [0.0]
    with pytest.raises(ebl.InputError, match="iterations = 0"):
        courses(Pair(), torch.zeros(1, 1), 0)
