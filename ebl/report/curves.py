"""Curves of a report: error, iterations and residual by epoch, for each dataset with all its rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ebl.report.cells import Cell, Group, Section
from ebl.report.layout import OWN
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
    among = [group for group in section.groups if dataset in group.datasets]
    told = {id(group): _telling(group, among) for group in among}
    cells = [(group, rule, group.cells.get((rule, dataset))) for group in groups for rule in group.rules]
    present = [(group, rule, cell) for group, rule, cell in cells if cell]
    once = len({rule for _, rule, _ in present}) == len(present)
    names = [", ".join(filter(None, [group.label(rule), told[id(group)] * (len(groups) > 1)])) for group, rule, _ in present]
    hues = [f"hue{i % 8}{' dashed' * (i >= 8)}" for i in range(len(present))]
    looks = [LOOKS.get(rule, hue) if once else hue for (_, rule, _), hue in zip(present, hues, strict=True)]
    drawn: dict[str, list[Line]] = {}
    for kind, _, scale in KINDS:
        lines = [_line(cell, kind, scale, name, look) for (_, _, cell), name, look in zip(present, names, looks, strict=True)]
        if found := [line for line in lines if line]:
            drawn[kind] = found
    pictures = tuple((kind, chart(title, drawn[kind])) for kind, title, _ in KINDS if kind in drawn)
    alone = len(groups) == 1 < len(among)
    number = f"-{section.groups.index(groups[0]) + 1}" if alone else ""
    name = f"{section.name}-{re.sub(r'[^A-Za-z0-9_-]', '_', dataset)}{number}"
    heading = told[id(groups[0])] if alone else ""
    return Panel(dataset_name(dataset), heading, name, tuple(next(iter(drawn.values()), ())), pictures)


def _telling(group: Group, among: Sequence[Group]) -> str:
    """What tells a group from others: its setting, and its number of epochs where that is not in its words."""
    headings = {other.heading for other in among}
    own = group.heading or (OWN if group.theirs else "")
    lengths = {other.epochs for other in among if other.heading == group.heading}
    return ", ".join(filter(None, [own if len(headings) > 1 else "", f"{group.epochs} epochs" if len(lengths) > 1 else ""]))


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
