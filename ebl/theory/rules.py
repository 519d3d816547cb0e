"""Does a rule descend the exact gradient of its loss? A row for each rule and beta, against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ebl.rules import RULES, estimate_gradients
from ebl.rules.contrast import Contrast
from ebl.rules.differentiate import by_parameters
from ebl.theory.differences import STEP, Slopes, directions, projected, slopes
from ebl.theory.phases import FREE_PHASE, AssumptionError, Loss, Phase, TooSmallError, contrast, level
from ebl.theory.statements import Row, Settled, make_row, unresolved
from ebl.theory.stiffness import output_response
from ebl.types import State

EP = (("p-ep", 0.25), ("p-ep", 10.0), ("n-ep", 0.25), ("n-ep", 0.9), ("c-ep", 0.25), ("c-ep", 0.9))
CPL = (("p-cpl", 0.25), ("n-cpl", 0.25), ("c-cpl", 0.25))
LOSSES = {
    "p-ep": "L_β",
    "n-ep": "L_−β",
    "c-ep": "L_−β;+β",
    "cl": "L_CL",
    "p-cpl": "L⁽²⁾",
    "n-cpl": "L⁽²⁾",
    "c-cpl": "the mean of both L⁽²⁾",
}
EXACT = 1e-6  # relative
SEEN = 1e-3  # a relative difference that counts as one

Told = Callable[[int, int], None]


def statements_on_rules(seen: Settled, told: Told = lambda done, total: None) -> list[Row]:
    """The rules' estimates, over the batch, against the gradients of their losses."""
    check = _Check(seen, told)
    rows = [check.descends(rule, beta, "theorem 2" if rule != "c-ep" else "theorem 3") for rule, beta in EP]
    rows.append(check.descends("cl", 1.0, "theorem 1"))
    for rule, beta in CPL:
        rows += [check.differs(rule, beta), check.missing_term(rule, beta)]
    return [*rows, check.descends("p-cpl", 1.0, "appendix B.1")]


def loss_of(rule: str, beta: float) -> Loss:
    """The loss whose phases are the rule's."""
    row = RULES[rule]
    assert isinstance(row, Contrast)
    return contrast(row.boundary, row.first * beta, row.second * beta)


class _Check:
    """Finite differences of all the losses, made once, and the estimates that are held against them."""

    def __init__(self, seen: Settled, told: Told):
        self.seen, self.told = seen, told
        self.net = seen.p.net
        self.made: dict[float, Slopes | AssumptionError] = {}
        self.along = directions(self.net)
        self.phases = {q: None for rule, beta in (*EP, *CPL, ("cl", 1.0)) for q in loss_of(rule, beta)}
        seen.try_phases(list(self.phases))

    @property
    def slopes(self) -> Slopes:
        return self._slopes(STEP)

    def _slopes(self, step: float) -> Slopes:
        """Made when first asked for; where a phase does not settle on the way, that is said to every row."""
        if step not in self.made:
            states = {q: s for q, s in self.seen.states.items() if q in self.phases}
            try:
                self.made[step] = slopes(self.seen.p, states, self.along, step, self.told)
            except AssumptionError as error:
                self.made[step] = error
        found = self.made[step]
        if isinstance(found, AssumptionError):
            raise found
        return found

    def descends(self, rule: str, beta: float, where: str) -> Row:
        """The difference in parts of the loss's gradient."""

        def measure(truth: Tensor) -> tuple[Tensor, Tensor]:
            return self.estimate(rule, beta) - truth, truth

        text = f"{rule} at β = {beta:g} descends {LOSSES[rule]}: error of its gradient"
        return self._row(text, where, loss_of(rule, beta), measure)

    def differs(self, rule: str, beta: float) -> Row:
        """The difference in parts of the estimate: the gradient of the centred loss may be zero."""

        def measure(truth: Tensor) -> tuple[Tensor, Tensor]:
            estimate = self.estimate(rule, beta)
            return estimate - truth, estimate

        text = f"{rule} at β = {beta:g} does not descend {LOSSES[rule]}: difference"
        return self._row(text, "appendix B.1", loss_of(rule, beta), measure, ">")

    def missing_term(self, rule: str, beta: float) -> Row:
        loss = loss_of(rule, beta)

        def measure(truth: Tensor) -> tuple[Tensor, Tensor]:
            formula = self.formula(loss)
            return truth - self.estimate(rule, beta) - formula, formula

        text = f"{rule} at β = {beta:g} misses (1−β)/β ∂E/∂o·∂o★/∂θ: error"
        return self._row(text, "appendix B.1", loss, measure)

    def nothing_missing(self, loss: Loss, size: float) -> str | None:
        """The term of the appendix vanishes where nothing moves o*."""
        try:
            return "the term that it misses vanishes here" if float(self.formula(loss).norm()) <= SEEN * size else None
        except AssumptionError as error:
            return str(error)

    def estimate(self, rule: str, beta: float) -> Tensor:
        """What the rule leaves in .grad, along the directions."""
        p = self.seen.p
        schedule = p.schedule(near=self.seen.free)
        beta_or_own = None if rule == "cl" else beta
        e = estimate_gradients(
            p.net,
            p.x,
            p.target,
            rule=rule,
            beta=beta_or_own,
            free=schedule,
            nudged=schedule,
            cost=p.cost,
            start=self.seen.free,
        )
        enough = p.enough(e.nudged.state).maximum(p.enough(self.seen.free))
        if not bool((e.nudged.residual <= enough).all()):
            raise AssumptionError(f"{rule} does not settle: residual {float(e.nudged.residual.max()):.0e}")
        return self.components()

    def formula(self, loss: Loss) -> Tensor:
        """sum over the phases of weight (1 - beta) dE/do . do*/dtheta, by implicit differentiation at the free state."""
        p = self.seen.p
        pull = sum(
            (w * (1 - q.beta) * self.push(self.seen.at(q)) for q, w in loss.items() if q.boundary == "clamp"),
            torch.zeros_like(p.target),
        )
        pulled = output_response(self.net, p.x, self.seen.free, pull / len(p.x))
        return projected(pulled, self.net, self.along)

    def push(self, state: State) -> Tensor:
        """dE/do."""
        output = state[-1].detach().requires_grad_()
        with torch.enable_grad():
            total = self.seen.p.net.energy(self.seen.p.x, (*state[:-1], output)).sum()
        return torch.autograd.grad(total, output, allow_unused=True, materialize_grads=True)[0]

    def components(self) -> Tensor:
        found = [torch.zeros_like(q) if q.grad is None else q.grad for q in self.net.parameters()]
        return projected(found, self.net, self.along)

    def _row(
        self, text: str, where: str, loss: Loss, measure: Callable[[Tensor], tuple[Tensor, Tensor]], relation: str = "<="
    ) -> Row:
        """`measure` takes the loss's gradient, and gives a difference and what it is to be compared with, all along the
        directions."""
        limit = EXACT if relation == "<=" else SEEN
        unmet, doubt = None, None
        try:
            if not self.along:
                raise AssumptionError("the energy has no parameters")
            for q in (FREE_PHASE, *loss):
                self.seen.at(q)
            difference, to = measure(self.slopes.of(loss))
            size = float(to.norm())
            if size <= 1e-9 * self.seen.scale:
                raise AssumptionError("the gradient vanishes here")
            figure, limit = float(difference.norm()) / size, max(limit, self.rounding(loss, size))
            if relation == ">":
                unmet = self.nothing_missing(loss, size)
            elif figure > limit:
                finer, to = measure((16 * self._slopes(STEP / 4).of(loss) - self.slopes.of(loss)) / 15)
                figure = min(figure, float(finer.norm()) / size)
                doubt = self.kink(loss, difference, to, limit, figure) if figure > limit else None
        except TooSmallError as error:
            return make_row(text, where, relation, limit, None, unclear=str(error))
        except AssumptionError as error:
            return make_row(text, where, relation, limit, None, str(error))
        return make_row(text, where, relation, limit, figure, unmet, doubt, unresolved(limit))

    def rounding(self, loss: Loss, size: float) -> float:
        """What float64 and unsettled ends leave uncertain of finite differences and estimates, in parts of the gradient."""
        p = self.seen.p
        terms = sum(abs(w) * float(level(p, q, self.seen.at(q)).abs().mean()) for q, w in loss.items())
        pull = sum(  # where o_beta moves with o*, what that is off counts in the first order
            abs(w * (1 - q.beta)) * float(self.push(self.seen.at(q)).flatten(1).norm(dim=1).mean())
            for q, w in loss.items()
            if q.boundary == "clamp"
        )
        unsettled = 10 * float(p.enough(self.seen.free).max()) * max(1.0, pull / size)
        differences = (20 * torch.finfo(torch.float64).eps * terms * len(self.along) ** 0.5 / size + unsettled) / STEP
        return differences + 10 * sum(abs(w) * self.sway(q) for q, w in loss.items()) / size

    def sway(self, phase: Phase) -> float:
        """How much dE/dtheta moves, along the directions, where a phase ends as far off as the tolerance."""
        p, state = self.seen.p, self.seen.at(phase)
        generator = torch.Generator().manual_seed(0)
        push = [torch.randn(s.shape, generator=generator, dtype=s.dtype) for s in state]

        def slope(far: float) -> Tensor:
            there = tuple(s + far * n for s, n in zip(state, push, strict=True))
            with torch.enable_grad():
                found = by_parameters(self.net, [p.net.energy(p.x, there).mean()])
            return projected(found, self.net, self.along)

        return float((slope(STEP) - slope(-STEP)).norm() / (2 * STEP) * p.enough(state).max())

    def kink(self, loss: Loss, difference: Tensor, to: Tensor, limit: float, figure: float) -> str | None:
        """What is not smooth within the finite differences, if something is not and it can explain the figure."""
        smooth = self.slopes.smooth(loss)
        rough = int((~smooth).sum())
        if rough:
            size = float(to[smooth].norm())
            rest = f" ({float(difference[smooth].norm()) / size:.0e} along the others)" if size else ""
            return f"a kink: units or pools switch along {rough} of {len(smooth)} directions within ±{STEP:g}{rest}"
        coarse, fine = self.slopes, self._slopes(STEP / 4)
        apart = float((coarse.of(loss) - fine.of(loss)).norm() / to.norm())
        sharp = float((coarse.bent(loss) - 4 * fine.bent(loss)).norm() / to.norm())  # 0 where the slope has no jump
        found = (apart > limit / 2 or sharp > 20 * limit) and figure < 4 * max(apart, sharp)
        return f"a kink or a sharp bend: finite differences of two steps are {max(apart, sharp):.0e} apart" if found else None
