"""ebl report"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ebl.atomic import read_json
from ebl.cli.flags import console, parse
from ebl.cli.matrix import wide
from ebl.errors import InputError, choose
from ebl.report import write_report
from ebl.report.collect import Report
from ebl.report.layout import Layout
from ebl.report.read import read
from ebl.study.grid import BUILT_IN, read_study
from ebl.study.store import STUDIES

SHOWN = 40  # rows of a table


@dataclass(frozen=True)
class Arguments:
    """Write a report: tables beside the paper's, its five lessons, curves, provenance; as HTML, Markdown, CSV and LaTeX."""

    study: tyro.conf.Positional[str]
    """A study's name or file, its store, or a folder of run folders."""
    out: Path | None = None
    """Where the report goes; a folder `report` in the study's unless given."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl report", argv)
    folder = _find(args.study)
    out = args.out or folder / "report"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give --out a folder")
    about = read_json(folder / "study.json") if (folder / "study.json").exists() else {}
    records, damaged = read(folder)
    gc.freeze()  # else the collector goes through thousands of records again and again
    report, files = write_report(str(about.get("name") or folder.resolve().name), records, out, damaged)
    for layout in report.tables:
        wide(console).print(_brief(layout.shortened(SHOWN)))
    for line in _lessons(report):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    for line in report.errors:
        console.print(f"[yellow]{escape(line)}[/]", highlight=False, soft_wrap=True)
    said = f"{files[0]} (a page for a browser); beside it {len(files) - 1} files: Markdown, CSV, LaTeX, pictures"
    console.print(said, highlight=False, soft_wrap=True, markup=False)


def _brief(layout: Layout) -> Table:
    """Test errors, with the difference to the paper's in brackets."""
    shown = [i for i, (_, name) in enumerate(layout.columns) if name in ("Test", "Top-1")]
    beside = any(entry.difference for block in layout.blocks for row in block.rows for entry in row.entries)
    head = "test error % (to the paper)" if beside else "test error %"
    table = Table(head, *(layout.columns[i][0] for i in shown), box=SIMPLE_HEAD, title=layout.title)
    for block in layout.blocks:
        if block.heading and len(layout.blocks) > 1:
            table.add_row(Text(block.heading, style="italic"))
        for row in block.rows:
            entries = (row.entries[i] for i in shown)
            words = (f"{e.main}{f' ({e.difference})' if e.difference else ''} {e.note}".strip() for e in entries)
            table.add_row(Text(row.label), *map(Text, words))
    table.caption = f"{layout.left_out} more rows in the files" if layout.left_out else None
    return table


def _lessons(report: Report) -> list[str]:
    lines = []
    shown = report.findings[: SHOWN // 10]
    for found in shown:
        if len(report.findings) > 1:
            lines.append(": ".join(filter(None, [found.title, found.heading])))
        for answer in found.answers:
            said = answer.ours_overall or "not in these runs"
            lines.append(f"{answer.lesson.number}. {answer.lesson.claim}: {said}")
            lines += [f"   against the paper, {name}: {line}" for name, line in answer.against]
    if more := len(report.all_findings) - len(shown):
        lines.append(f"{more} more settings are in lessons.csv")
    return lines


def _find(name: str) -> Path:
    """The folder of a study that was begun, or any other."""
    folder = Path(name).expanduser()
    if folder.is_dir() and name not in BUILT_IN:
        return folder
    if folder.suffix in (".yaml", ".yml"):
        name = read_study(name).name
    stores = [path.parent.name for path in STUDIES.glob("*/study.json")]
    if name not in stores and (name in BUILT_IN or folder.suffix in (".yaml", ".yml")):
        raise InputError(f"study {name} has no runs yet: `ebl study run {name}` makes them")
    if not stores:
        raise InputError(f"{name} is no folder, and no study has runs yet: `ebl study run quick` makes some in a few minutes")
    return STUDIES / choose("study", name, stores)
