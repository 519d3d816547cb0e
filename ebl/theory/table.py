"""All the statements on one energy, as a table."""

from __future__ import annotations

from torch import Tensor

from ebl.costs import Cost
from ebl.theory.phases import ITERATIONS, TOLERANCE, problem
from ebl.theory.rules import Told, statements_on_rules
from ebl.theory.statements import Row, Settled, statements_on_beta
from ebl.types import Energy, State

HEAD = ("statement: what is measured", "paper", "measured", "tolerance", "verdict")


def statements(
    net: Energy,
    x: Tensor,
    y: Tensor,
    *,
    cost: Cost | None = None,
    start: State | None = None,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
    told: Told = lambda done, total: None,
) -> list[Row]:
    """The theorems on this energy, in float64, on a copy of the network; phases relax to `tolerance` or count as unsettled.

    `told` hears how many finite differences are done, and of how many."""
    seen = Settled(problem(net, x, y, cost, tolerance, iterations, own=True), start)
    return [*statements_on_beta(seen), *statements_on_rules(seen, told)]


def cells(row: Row) -> tuple[str, ...]:
    """A row as the table shows it."""
    sign = {"<=": "≤", ">=": "≥", ">": ">"}[row.relation]
    return row.statement, row.where, _number(row.measured), f"{sign} {_number(row.limit)}", row.verdict


def _number(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.0e}"
