"""Curves of a report: error, iterations and residual by epoch, for each dataset with all its rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebl.report.cells import Cell, Group, Section
from ebl.report.svg import Line, chart
from ebl.report.words import dataset_name

MOST_LINES = 10  # in one picture
MOST_PANELS = 16  # in one report: each is a dataset with four pictures
MOST_POINTS = 150  # of one line
KINDS = (
    ("test_error", "Test error (%)", 100.0),
    ("train_error", "Train error (%)", 100.0),
    ("free_iterations", "Iterations of free phases", 1.0),
    ("free_residual", "Residual of free phases", 1.0),
)
LOOKS = {
    "tbp": "baseline",
    "rbp": "baseline dashed",
    "cl": "cl",
    "p-ep": "ep dotted",
    "n-ep": "ep dashed",
    "c-ep": "ep",
    "p-cpl": "cpl dotted",
    "n-cpl": "cpl dashed",
    "c-cpl": "cpl",
    "r-ep": "random",
}


@dataclass(frozen=True)
class Panel:
    """One dataset's pictures, which share a legend."""

    title: str
    heading: str  # the setting, where not all are in one panel
    name: str  # of its files
    lines: tuple[Line, ...]  # of the first picture
    pictures: tuple[tuple[str, str], ...]  # kind and SVG


def draw(sections: Iterable[Section]) -> tuple[list[Panel], int]:
    """The panels, and how many more there would be."""
    wanted = [(part, dataset, groups) for part in sections for dataset in part.datasets for groups in _together(part, dataset)]
    panels = [_panel(part, dataset, groups) for part, dataset, groups in wanted[:MOST_PANELS]]
    return [panel for panel in panels if panel.pictures], len(wanted[MOST_PANELS:])


def _together(section: Section, dataset: str) -> list[list[Group]]:
    """All settings in one picture where their lines are few enough; else a picture each."""
    groups = [group for group in section.groups if dataset in group.datasets]
    lines = sum((rule, dataset) in group.cells for group in groups for rule in group.rules)
    return [groups] if lines <= MOST_LINES else [[group] for group in groups]


def _panel(section: Section, dataset: str, groups: Sequence[Group]) -> Panel:
    cells = [
        (group, rule, group.cells[rule, dataset]) for group in groups for rule in group.rules if (rule, dataset) in group.cells
    ]
    once = max(Counter(rule for _, rule, _ in cells).values()) == 1
    drawn: list[tuple[str, list[Line]]] = []
    for kind, _, scale in KINDS:
        lines = []
        for i, (group, rule, cell) in enumerate(cells):
            name = ", ".join(filter(None, [group.label(rule), group.heading if len(groups) > 1 else ""]))
            look = LOOKS.get(rule) if once else None
            line = _line(cell, kind, scale, name, look or f"hue{i % 8}{' dashed' * (i >= 8)}")
            lines += [line] if line else []
        if lines:
            drawn.append((kind, lines))
    titles = {kind: title for kind, title, _ in KINDS}
    pictures = tuple((kind, chart(titles[kind], lines)) for kind, lines in drawn)
    heading = groups[0].heading if len(groups) < len([g for g in section.groups if dataset in g.datasets]) else ""
    number = section.groups.index(groups[0]) + 1
    name = f"{section.name}-{''.join(c if c.isalnum() or c in '-_' else '_' for c in dataset)}{f'-{number}' * bool(heading)}"
    return Panel(f"{dataset_name(dataset)}", heading, name, tuple(drawn[0][1]) if drawn else (), pictures)


def _line(cell: Cell, kind: str, scale: float, name: str, look: str) -> Line | None:
    """Mean and range over the seeds that are done; where none is, over those under way, as far as each got."""
    curves = [run.curves[kind] for run in cell.done or cell.runs if run.curves.get(kind)]
    if not curves:
        return None
    longest = max(map(len, curves))
    stride = -(-longest // MOST_POINTS)
    at = sorted({*range(0, longest, stride), longest - 1})
    values = [[scale * curve[i] for curve in curves if i < len(curve)] for i in at]
    means = [sum(found) / len(found) for found in values]
    return Line(name, look, [i + 1 for i in at], means, [min(found) for found in values], [max(found) for found in values])
