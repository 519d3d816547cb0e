"""The paper's section 2.4 and appendices A and B as a table: statement, measured figure, tolerance, verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from ebl.costs import SquaredError
from ebl.models.hopfield import Hopfield
from ebl.theory.kinks import pattern, switches
from ebl.theory.minima import several_minima
from ebl.theory.phases import FREE_PHASE, AssumptionError, Phase, Problem, States, TooSmallError, level, settle
from ebl.types import State

PULLS = (0.01, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0, 100.0)
PUSHES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
SMALL = (4e-3, 2e-3, 1e-3)  # halved each time, for orders; less on a soft energy
COARSE = 1e-2  # a tolerance that rounding may not exceed
NEAR = (2e-4, 1e-4)  # for the derivative at 0; less on a soft energy


@dataclass(frozen=True)
class Row:
    """A statement and what was measured of it."""

    statement: str
    where: str  # in the paper
    measured: float | None  # None: it could not be
    relation: str  # of the measured figure to the limit: <= >= >
    limit: float
    verdict: str  # holds, fails, "assumption not met: " and which, or "not measurable: " and why


def make_row(
    statement: str,
    where: str,
    relation: str,
    limit: float,
    measured: float | None,
    unmet: str | None = None,
    doubt: str | None = None,
    unclear: str | None = None,
) -> Row:
    """`unmet`: an assumption that does not hold. `doubt`: one that may not, which excuses a figure off the limit.
    `unclear`: why float64 cannot tell."""
    if measured is not None and not math.isfinite(measured):
        measured, unmet = None, unmet or "the energies are not finite numbers"
    good = measured is not None and (
        measured <= limit if relation == "<=" else measured >= limit if relation == ">=" else measured > limit
    )
    excuse = unmet or (None if good else doubt)
    verdict = f"not measurable: {unclear}" if unclear else f"assumption not met: {excuse}" if excuse else ""
    verdict = verdict or ("holds" if good else "fails")
    return Row(statement, where, measured, relation, limit, verdict)


class Settled:
    """A problem with its free phase and its nudged phases at many betas, each settled by itself: one that does not settle
    spoils no other."""

    def __init__(self, p: Problem, begin: State | None = None):
        self.p = p
        self.states: States = {}
        self.lost: dict[Phase, str] = {}
        try:
            self.states = settle(p, [], begin=begin)
        except AssumptionError as error:
            self.lost[FREE_PHASE] = str(error)
        unit = self._unit()
        self.small, self.near = ([unit * b for b in betas] for betas in (SMALL, NEAR))
        betas = [*PULLS, *(-b for b in PUSHES), *(s * b for b in (*self.small, *self.near) for s in (1, -1))]
        self.try_phases([Phase("nudge", b) for b in dict.fromkeys(betas)])

    def _unit(self) -> float:
        """Of small betas: 1, or ten times the output's stiffness a if that is less (on a quadratic L_b = a / (a + b) C)."""
        b = NEAR[0]
        self.try_phases([Phase("nudge", b)])
        if self.lost:
            return 1.0
        pulled = self.surrogate(b)
        stiffness = b * pulled / (self.cost - pulled).clamp_min(self.noise / b)
        stiffness = stiffness[self.cost > 1e7 * self.noise]  # whose target is reached has none
        return min([1.0, *(10 * stiffness.clamp_min(1e-6)).tolist()])

    def try_phases(self, phases: Sequence[Phase]) -> None:
        for q in phases:
            if q in self.states or q in self.lost:
                continue
            if FREE_PHASE in self.lost:
                self.lost[q] = self.lost[FREE_PHASE]
                continue
            try:
                self.states[q] = settle(self.p, [q], {FREE_PHASE: self.free})[q]
            except AssumptionError as error:
                self.lost[q] = str(error)

    def at(self, phase: Phase) -> State:
        if phase in self.lost:
            raise AssumptionError(self.lost[phase])
        return self.states[phase]

    @property
    def free(self) -> State:
        return self.at(FREE_PHASE)

    @cached_property
    def cost(self) -> Tensor:
        return self.p.cost.value(self.free[-1], self.p.target)

    @cached_property
    def scale(self) -> float:
        """Of costs and surrogates: the batch's mean cost."""
        cost, energy = float(self.cost.mean()), float(self.F(0.0).abs().mean())
        if cost <= 1e7 * torch.finfo(torch.float64).eps:
            raise TooSmallError(f"the target is reached: a cost of {cost:.0e} is zero up to rounding")
        if cost <= 1e7 * self.noise:
            raise TooSmallError(
                f"a cost of {cost:.0e} is lost in the rounding of energies of {energy:.0e}: leave constants out"
            )
        return cost

    @cached_property
    def noise(self) -> float:
        """What rounding leaves uncertain of an energy."""
        return torch.finfo(torch.float64).eps * (1 + float(self.F(0.0).abs().mean()))

    def limit(self, wanted: float, smallest: float) -> float:
        """`wanted`, or what rounding leaves uncertain of a difference of energies over `smallest` of beta, in parts of C."""
        try:
            return max(wanted, 100 * self.noise / (smallest * self.scale))
        except AssumptionError:
            return wanted

    def F(self, beta: float) -> Tensor:  # noqa: N802 - the paper's name
        q = Phase("nudge", beta)
        return level(self.p, q, self.at(q))

    def surrogate(self, beta: float) -> Tensor:
        return (self.F(beta) - self.F(0.0)) / beta if beta else self.cost

    def kept(self, betas: Sequence[float]) -> list[float]:
        """Those that settle; at least one must."""
        found = [b for b in betas if Phase("nudge", b) not in self.lost]
        if not found:
            raise AssumptionError(self.lost[Phase("nudge", betas[0])])
        return found

    def unmet(self, betas: Sequence[float]) -> str | None:
        return next((self.lost[Phase("nudge", b)] for b in betas if Phase("nudge", b) in self.lost), None)

    def kink(self, betas: Sequence[float]) -> str | None:
        """How much switches between the free phase and these, if anything does."""
        before = pattern(self.p, self.free)
        count = sum(switches(before, pattern(self.p, self.at(Phase("nudge", b)))) for b in self.kept(betas))
        if count:
            return f"a kink: {count} units or pools switch within β = ±{max(map(abs, betas)):g}"
        coarse, fine = (self._bend(b) for b in self.near)
        if fine <= max(0.75 * coarse, 1e-3):
            return None
        return "a kink, or a minimum that is flat: F″ is not the same on both sides of β = 0"

    def _bend(self, b: float) -> float:
        """How far apart F'' is on both sides of 0, relatively: on a smooth energy that halves with b."""
        right, left = ((self.surrogate(s * b) - self.cost) * s for s in (1, -1))
        return float((right - left).abs().sum() / (right.abs() + left.abs()).sum())

    @cached_property
    def minima(self) -> str | None:
        betas = self.kept([0.0, -max(PUSHES), max(PULLS)])
        return several_minima(self.p, self.states, [Phase("nudge", b) for b in betas])


def statements_on_beta(seen: Settled) -> list[Row]:
    """Theorems on F and the surrogates as functions of beta."""
    return [
        _derivative(seen),
        *_bounds(seen),
        *_shape(seen),
        *([_no_bottom(seen)] if isinstance(seen.p.net, Hopfield) and isinstance(seen.p.cost, SquaredError) else []),
        *_orders(seen),
    ]


def _derivative(seen: Settled) -> Row:
    h, half = seen.near

    def measure() -> float:
        coarse, fine = ((seen.F(b) - seen.F(-b)) / (2 * b) for b in (h, half))
        return float(((4 * fine - coarse) / 3 - seen.cost).abs().max()) / seen.scale  # Richardson's extrapolation

    text = "dF/dβ at β = 0 is C: error / C"
    return guarded(text, "theorem 4", "<=", seen.limit(1e-6, half), measure, doubt=lambda: seen.kink((h, -h)))


def _bounds(seen: Settled) -> list[Row]:
    pushes = [-b for b in PUSHES]

    def below() -> float:
        return max(float((seen.surrogate(b) - seen.cost).max()) for b in seen.kept(PULLS)) / seen.scale

    def above() -> float:
        return max(float((seen.cost - seen.surrogate(b)).max()) for b in seen.kept(pushes)) / seen.scale

    limit = seen.limit(1e-9, min(PULLS))
    one, two = (f"{min(betas):g} … {max(betas):g}" for betas in (PULLS, PUSHES))
    return [
        guarded(f"L_β ≤ C, β = {one}: max (L_β − C)/C", "theorem 2", "<=", limit, below, lambda: seen.unmet(PULLS)),
        guarded(f"C ≤ L_−β, β = {two}: max (C − L_−β)/C", "theorem 2", "<=", limit, above, lambda: seen.unmet(pushes)),
    ]


def _shape(seen: Settled) -> list[Row]:
    wanted = [*(-b for b in reversed(PUSHES)), 0.0, *PULLS]

    def rise() -> float | None:
        return most([seen.surrogate(b) for b in seen.kept(wanted)])

    def bend() -> float | None:
        return most([(seen.F(b) - seen.F(a)) / (b - a) for a, b in pairwise(seen.kept(wanted))])

    def most(values: list[Tensor]) -> float | None:
        """The largest rise from one to the next."""
        return max((float((b - a).max()) / seen.scale for a, b in pairwise(values)), default=None)

    def unmet() -> str | None:
        return seen.unmet(wanted) or seen.minima

    limit = seen.limit(1e-9, min(PULLS))
    over = f"β = −{max(PUSHES):g} … {max(PULLS):g}"
    return [
        guarded(f"L_β never rises, {over}: max rise / C", "appendix A", "<=", limit, rise, unmet),
        guarded(f"F is concave, {over}: max bend / C", "appendix A", "<=", limit, bend, unmet),
    ]


def _orders(seen: Settled) -> list[Row]:
    small = seen.small

    def one_sided() -> float:
        return min(_order(seen, [float((seen.surrogate(s * b) - seen.cost).abs().sum()) for b in small]) for s in (1, -1))

    def centred() -> float:
        return _order(seen, [float(((seen.F(b) - seen.F(-b)) / (2 * b) - seen.cost).abs().sum()) for b in small])

    def doubt() -> str | None:
        return seen.kink([s * b for b in small for s in (1, -1)])

    return [
        guarded("L_±β = C + O(β): fitted order", "theorem 2", ">=", 0.95, one_sided, doubt=doubt),
        guarded("L_−β;+β = C + O(β²): fitted order", "theorem 3", ">=", 1.9, centred, doubt=doubt),
    ]


def _order(seen: Settled, errors: list[float]) -> float:
    if min(errors) <= 100 * seen.noise * len(seen.p.x) / min(seen.small):
        raise TooSmallError("surrogate and cost are equal up to rounding: there is no order to fit")
    return order_of(errors)


def _no_bottom(seen: Settled) -> Row:
    """With n outputs moved by t, E + beta C tends to n (1 + beta)/2 t^2."""
    beta, t, p = -1.1, 1e6, seen.p

    def measure() -> float:
        far = (*seen.free[:-1], seen.free[-1] + t)
        with torch.no_grad():
            return float((p.net.energy(p.x, far) + beta * p.cost.value(far[-1], p.target)).max()) / t**2

    text = "F = −∞ below β = −1: (E + βC)/t² at β = −1.1, o = o★ + t"
    return guarded(text, "appendix A", "<=", -1e-3, measure)


def guarded(
    statement: str,
    where: str,
    relation: str,
    limit: float,
    measure: Callable[[], float | None],
    unmet: Callable[[], str | None] = lambda: None,
    doubt: Callable[[], str | None] = lambda: None,
) -> Row:
    """A row whose measurement may find that an assumption does not hold."""
    try:
        unclear = unresolved(limit) if relation == "<=" else None
        return make_row(statement, where, relation, limit, measure(), unmet(), doubt(), unclear)
    except TooSmallError as error:
        return make_row(statement, where, relation, limit, None, unclear=str(error))
    except AssumptionError as error:
        return make_row(statement, where, relation, limit, None, str(error))


def unresolved(limit: float) -> str | None:
    """Beyond this tolerance a figure would say little."""
    why = "rounding hides it, energies or states are so large: leave constants out, or take larger units"
    return why if limit > COARSE else None


def order_of(errors: Sequence[float]) -> float:
    """The power of beta (or eta) that three errors follow, each at half the last one's; extrapolated to where that is 0."""
    coarse, fine = (math.log2(a / b) for a, b in pairwise(errors))
    return 2 * fine - coarse
