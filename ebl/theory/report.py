"""The theory's tables and pictures, ready to be shown or written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebl.theory.counterexamples import coupled_steps, nine_rules, statements_on_counterexamples, steps
from ebl.theory.landscape import seven_rules
from ebl.theory.losses import coupled_loss_1_at
from ebl.theory.phases import FREE_PHASE, ITERATIONS, TOLERANCE, AssumptionError, Loss, contrast, problem, settle, value
from ebl.theory.settling import LEVELS, Course, courses
from ebl.theory.subjects import Subject, small_network
from ebl.theory.table import HEAD, cells, statements
from ebl.types import Energy

Told = Callable[[int, int], None]

BETA = 0.25  # at which losses are shown


@dataclass(frozen=True)
class Part:
    """A table, its numbers, and how it is drawn."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    data: dict[str, Any]
    draw: Callable[[Path], list[Path]]  # into a folder
    note: str = ""  # a line under the table
    failed: bool = False

    def markdown(self) -> str:
        head, *rows = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (self.head, *self.rows))
        return "\n".join([head, "|" + "---|" * len(self.head), *rows]) + "\n"


def quiet(done: int, total: int) -> None:
    pass


def statements_part(
    subject: Subject | None = None, tolerance: float = TOLERANCE, iterations: int = ITERATIONS, told: Told = quiet
) -> Part:
    """The statements on a user's energy, or on the small network and the counter-examples."""
    chosen = subject or small_network()
    found = statements(chosen.net, chosen.x, chosen.y, tolerance=tolerance, iterations=iterations, told=told)
    if subject is None:
        found += statements_on_counterexamples()
    many = f"{len(chosen.x)} example{'s' if len(chosen.x) > 1 else ''}"
    title = f"{chosen.name}; {many}, float64, phases relaxed to {tolerance:g}"
    means = _means(chosen, tolerance, iterations)
    known = ", ".join(f"{name} {_few(mean)}" for name, mean in means.items())
    data = {"on": title, "rows": [asdict(row) for row in found], "losses": means}
    return Part(
        title,
        HEAD,
        [cells(row) for row in found],
        data,
        lambda folder: _draw_surrogates(chosen, tolerance, iterations, folder),
        f"means at β = {BETA:g}: {known}",
        any(row.verdict == "fails" for row in found),
    )


def _means(subject: Subject, tolerance: float, iterations: int) -> dict[str, float | None]:
    """The cost and every loss at BETA, averaged over the examples; None where an assumption does not hold."""
    p = problem(subject.net, subject.x, subject.y, tolerance=tolerance, iterations=iterations)

    def of(loss: Loss) -> Callable[[], Tensor]:
        return lambda: value(p, loss, settle(p, loss))

    made: dict[str, Callable[[], Tensor]] = {
        "C": lambda: p.cost.value(settle(p, [])[FREE_PHASE][-1], p.target),
        "L_β": of(contrast("nudge", 0, BETA)),
        "L_−β": of(contrast("nudge", -BETA, 0)),
        "L_−β;+β": of(contrast("nudge", -BETA, BETA)),
        "L_CL": of(contrast("clamp", 0, 1)),
        "L⁽¹⁾": lambda: coupled_loss_1_at(p, settle(p, [])[FREE_PHASE]),
        "L⁽²⁾": of(contrast("clamp", 0, BETA)),
    }
    found: dict[str, float | None] = {}
    for name, make in made.items():
        try:
            found[name] = float(make().mean())
        except AssumptionError:
            found[name] = None
    return found


def _few(mean: float | None) -> str:
    return "—" if mean is None else f"{mean:.4g}"


def counterexamples_part(rate: float = 0.01) -> Part:
    """What one step of each of the nine rules does on both examples."""
    found = nine_rules(rate)
    head = ("rule", "example 1: |o★ − y|²", "example 1: L⁽¹⁾", "example 2: |o★ − y|²", "example 2: L⁽¹⁾")
    rows = []
    for rule, both in found.items():
        changes = [c for example in both.values() for c in (example.squared_error, example.l1)]
        rows.append((rule, *(f"{c:+.5f}".replace("-", "−") for c in changes)))
    title = f"what one step of η = {rate:g} changes in the appendix's counter-examples (β = 0.25; 1 for cl)"
    data = {"rate": rate, "steps": {rule: {k: asdict(v) for k, v in both.items()} for rule, both in found.items()}}
    return Part(title, head, rows, data, _draw_counterexamples)


def rules_part(beta: float = 0.4) -> Part:
    """The seven rules on an energy of two outputs."""
    from ebl.theory.pictures import TITLES, draw_seven_rules

    seen = seven_rules(beta)
    rows = [
        (TITLES[rule], *(f"({a:.2f}, {b:.2f})".replace("-", "−") for a, b in (p.raised, p.lowered, p.free, p.moved)))
        for rule, p in seen.panels.items()
    ]
    data = {rule: {k: v for k, v in asdict(p).items() if k != "change"} for rule, p in seen.panels.items()}
    return Part(
        f"the rules on a landscape of two outputs: y = ({seen.target[0]:g}, {seen.target[1]:g}), β = {beta:g} (1 for CL)",
        ("rule", "raises the energy at", "lowers it at", "o★ before the step", "after"),
        rows,
        data,
        lambda folder: [draw_seven_rules(seen, folder / "seven_rules")],
    )


def settling_part(networks: dict[str, tuple[Energy, Tensor]], iterations: int = 200, told: Told = quiet) -> Part:
    """Iterations that each schedule needs to reach a residual, on one or more networks."""
    from ebl.theory.pictures import draw_settling

    done, found = 0, {}
    for name, (net, x) in networks.items():
        found[name] = courses(net, x, iterations, told=lambda k, n, before=done: told(before + k, n * len(networks)))  # type: ignore[misc]
        done += len(found[name])
    rows = [
        (name, schedule, *(_iterations(course, level) for level in LEVELS), _rate(course))
        for name, several in found.items()
        for schedule, course in several.items()
    ]
    x = next(iter(networks.values()))[1]
    return Part(
        f"iterations until the mean residual of {len(x)} examples is there to stay; float64, from zeros, at most {iterations}",
        ("network", "schedule", *(f"{level:.0e}" for level in LEVELS), "factor"),
        rows,
        {name: {schedule: asdict(course) for schedule, course in several.items()} for name, several in found.items()},
        lambda folder: [draw_settling(found, folder / "settling")],
    )


def _iterations(course: Course, level: float) -> str:
    reached = course.reaches(level)
    return "—" if reached is None else str(reached)


def _rate(course: Course) -> str:
    rate = course.factor()
    return "—" if rate is None else f"{rate:.2f}"


def _draw_surrogates(subject: Subject, tolerance: float, iterations: int, folder: Path) -> list[Path]:
    from ebl.theory.pictures import draw_surrogates

    p = problem(subject.net, subject.x, subject.y, tolerance=tolerance, iterations=iterations)
    betas = torch.linspace(0.03, 0.9, 30).tolist()
    losses = {"$L_{-\\beta}$": (-1, 0), "$L_\\beta$": (0, 1), "$L_{-\\beta;+\\beta}$": (-1, 1)}
    curves: dict[str, list[float]] = {name: [] for name in losses}
    try:
        for beta in betas:
            states = settle(p, contrast("nudge", -beta, beta))
            for name, (one, two) in losses.items():
                curves[name].append(float(value(p, contrast("nudge", one * beta, two * beta), states).mean()))
    except AssumptionError:
        betas = betas[: len(curves["$L_\\beta$"])]  # what settles is drawn
    if not betas:
        return []
    cost = float(p.cost.value(settle(p, [])[FREE_PHASE][-1], p.target).mean())
    return [draw_surrogates(betas, curves, cost, folder / "surrogates")]


def _draw_counterexamples(folder: Path) -> list[Path]:
    from ebl.theory.pictures import TITLES, draw_l1_example, draw_squared_error_example

    groups = {"CL and CpL": "c-cpl", "RBP, TBP": "rbp", "P-EP": "p-ep", "N-EP": "n-ep", "C-EP": "c-ep"}
    rates = [k / 400 for k in range(41)]
    seen = {name: steps("squared-error", rule, rates) for name, rule in groups.items()}
    ways = {name: [t / rates[-1] for t in found[-1].theta] for name, found in seen.items()}
    curves = {name: [1 + s.squared_error for s in found] for name, found in seen.items()}
    rate = 1e-3
    betas = [k / 10 for k in range(-12, 13) if k]
    changes = [coupled_steps("l1", b, [rate])[0].l1 / (2 * rate) for b in betas]
    names = {TITLES[rule]: rule for rule in ("cl", "p-cpl", "c-cpl", "n-cpl", "p-ep", "c-ep", "n-ep")} | {"RBP, TBP": "rbp"}
    along = {name: (steps("l1", rule, [rate])[0].theta[0] - 1) / rate for name, rule in names.items()}
    return [
        draw_squared_error_example(ways, rates, curves, folder / "squared_error_rises"),
        draw_l1_example(along, betas, changes, rate, folder / "l1_rises"),
    ]
