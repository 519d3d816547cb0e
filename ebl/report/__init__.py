"""Reports: tables beside the paper's, curves, lessons, as Markdown, CSV, LaTeX and one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebl.atomic import write_atomically
from ebl.errors import InputError
from ebl.report.collect import Report
from ebl.report.data import cells_csv, lessons_csv, runs_csv
from ebl.report.latex import to_latex
from ebl.report.markdown import to_markdown
from ebl.report.page import to_html
from ebl.report.svg import as_file
from ebl.study.record import Record


def write_report(name: str, records: Sequence[Record], out: Path, left_out: Sequence[str] = ()) -> tuple[Report, list[Path]]:
    """Write the report of these runs into a folder; what it says, and its files. `left_out`: a line for each run that could not
    be read."""
    report = Report(name, records, left_out)
    files = {"report.html": to_html(report), "report.md": to_markdown(report), "runs.csv": runs_csv(records)}
    for section, layout in zip(report.sections, report.whole_tables, strict=True):
        files |= {f"{section.name}.csv": cells_csv(section), f"{section.name}.tex": to_latex(layout)}
    if report.findings:
        files["lessons.csv"] = lessons_csv(report.all_findings)
    for panel in report.drawn[0]:
        files |= {f"pictures/{panel.name}-{kind}.svg": as_file(picture, panel.lines) for kind, picture in panel.pictures}
    try:
        (out / "pictures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made ({error.strerror}): choose another --out") from error
    for path, text in files.items():
        write_atomically(out / path, text.encode())
    return report, [out / path for path in files]
