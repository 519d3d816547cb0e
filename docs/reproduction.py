"""Makes the tables and pictures of docs/reproduction.md, README.md and results/README.md from the runs in results/.

python docs/reproduction.py            # after runs were added to results/
python docs/reproduction.py STORE ...  # finished runs of these studies (or folders of run folders) are added first
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from pages import between

from ebl.atomic import write_atomically
from ebl.report.cells import Cell, Group
from ebl.report.collect import Report
from ebl.report.command import command
from ebl.report.findings import Findings
from ebl.report.layout import OWN
from ebl.report.markdown import grid, table
from ebl.report.read import read
from ebl.report.svg import as_file
from ebl.report.words import dataset_name, duration, joined, rule_name, signed
from ebl.study.record import Record

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / "results"
PICTURES = DOCS / "reproduction"
DRAWN = ("test_error", "free_iterations")
LEFT_OUT = ("*.safetensors", "*.part")


def main() -> None:
    for source in map(Path, sys.argv[1:]):
        keep(source)
    records, damaged = read(RESULTS)
    if damaged:
        sys.exit("\n".join(damaged))
    report = Report("results", records)
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir()
    pictures = list(draw(report))
    fill(ROOT / "README.md", reproduction=beside_the_paper(report))
    fill(RESULTS / "README.md", runs=runs(records))
    parts = {
        "tables": tables(report),
        "lessons": lessons(report.findings),
        "pictures": "\n".join(pictures),
        "cells": cells(report),
    }
    fill(DOCS / "reproduction.md", **parts)


def keep(source: Path) -> None:
    """Finished runs, without their checkpoints."""
    folder = source / "runs" if (source / "study.json").exists() else source
    for result in sorted(folder.glob("*/result.json")):
        target = RESULTS / result.parent.name
        if not target.exists():
            shutil.copytree(result.parent, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
            print(f"added {target.relative_to(ROOT)}", file=sys.stderr)


def beside_the_paper(report: Report) -> str:
    """Every cell that the paper has a figure for."""
    heads = ("", "test error %", "the paper", "difference", "a run takes", "the paper's (A100)", "seeds")
    lines = []
    for group, rule, dataset, cell in each_cell(report):
        theirs, ours = group.theirs.get((rule, dataset)), cell.percent("test_error")
        if theirs and theirs.test and ours and cell.seconds:
            what = ", ".join([rule_name(rule), dataset_name(dataset), f"{group.epochs} epochs", group.heading or OWN])
            difference = signed(ours.mean - float(theirs.test.mean))
            times = (duration(cell.seconds.mean), theirs.time or "")
            lines.append((what, f"**{ours}**", str(theirs.test), difference, *times, seeds(cell)))
    return f"{grid(heads, lines)}\n"


def cells(report: Report) -> str:
    """How to repeat each figure, and what made it."""
    heads = ("figure", "command (the first of its seeds)", "seeds", "commits", "hardware")
    lines = []
    for group, rule, dataset, cell in each_cell(report):
        if cell.done:
            what = f"{rule_name(rule)}, {dataset_name(dataset)}, {group.epochs} epochs, {group.heading or OWN}"
            commits, hardware = (joined(sorted({made(run, name) for run in cell.done})) for name in ("commit", "hardware"))
            lines.append((what, f"`{command(cell.done[0].config)}`", seeds(cell), commits, hardware))
    return f"{grid(heads, lines)}\n"


def runs(records: Iterable[Record]) -> str:
    """One line a run."""
    heads = ("run", "test error % (best epoch)", "train error %", "wall-clock", "hardware", "commit", "command")
    lines = []
    for run in records:
        if run.final and run.best:
            errors = (
                100 * line[name]
                for line, name in ((run.final, "test_error"), (run.best, "test_error"), (run.final, "train_error"))
            )
            test, best, train = (f"{error:.2f}" for error in errors)
            by = (duration(run.seconds), made(run, "hardware"), made(run, "commit"), f"`{command(run.config)}`")
            lines.append((f"`{run.key}`", f"{test} ({best})", train, *by))
    return f"{grid(heads, lines)}\n"


def tables(report: Report) -> str:
    parts = [f"### {layout.title}\n\n{table(layout)}\n\n{'. '.join(filter(None, layout.note))}.\n" for layout in report.tables]
    return "\n".join(parts)


def lessons(findings: Iterable[Findings]) -> str:
    """What the runs say to the paper's five lessons."""
    parts = []
    for found in findings:
        heading = f"**{found.title}{f' ({found.heading})' if found.heading else ''}**\n\n"
        said = [f"{a.lesson.number}. {a.lesson.claim}: {a.ours_overall or 'not in these runs'}." for a in found.answers]
        parts.append(heading + "\n".join(said) + "\n")
    return "\n".join(parts) or "There are no runs yet of rules to compare.\n"


def draw(report: Report) -> Iterable[str]:
    """Curves of each table and dataset, as files, and what shows them on the page."""
    for panel in report.drawn[0]:
        for kind, picture in panel.pictures:
            if kind in DRAWN:
                path = PICTURES / f"{panel.name}-{kind}.svg"
                write_atomically(path, as_file(picture, panel.lines).encode())
                yield f"![{panel.title}, {kind.replace('_', ' ')}]({path.relative_to(DOCS)})\n"


def each_cell(report: Report) -> Iterable[tuple[Group, str, str, Cell]]:
    for section in report.sections:
        for group in section.groups:
            for (rule, dataset), cell in group.cells.items():
                yield group, rule, dataset, cell


def made(run: Record, name: str) -> str:
    """The hardware a run was made on, or the commit it was made with."""
    return str(run.provenance[name])[: 7 if name == "commit" else None]


def seeds(cell: Cell) -> str:
    return ", ".join(str(run.config["seed"]) for run in cell.done)


def fill(page: Path, **parts: str) -> None:
    text = page.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = between(text, name, content)
    write_atomically(page, text.encode())


if __name__ == "__main__":
    main()
