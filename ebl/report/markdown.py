"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ebl.report.collect import Report
from ebl.report.findings import Findings
from ebl.report.layout import Entry, Layout


def to_markdown(report: Report) -> str:
    parts = [f"# {_plain(report.name)}", "\n".join(f"- {what}: {_plain(said)}" for what, said in report.facts)]
    if report.errors:
        parts += ["## Failed, or not readable", "\n".join(f"- {_plain(line)}" for line in report.errors)]
    for layout in report.tables:
        parts += [f"## {layout.title}", table(layout), _note(layout)]
    if report.findings:
        parts += ["## The paper's five lessons, asked of these runs", " ".join(report.method)]
        for found in report.findings:
            parts += _lessons(found)
        if report.findings_left_out:
            parts.append(f"{report.findings_left_out} more settings are in lessons.csv.")
    panels, more = report.drawn
    if panels:
        parts.append("## Curves")
        for panel in panels:
            parts.append(f"### {panel.title}{f': {panel.heading}' if panel.heading else ''}")
            parts.append(
                "\n".join(f"![{kind.replace('_', ' ')}](pictures/{panel.name}-{kind}.svg)" for kind, _ in panel.pictures)
            )
    if more:
        parts.append(f"{more} more are not drawn.")
    if report.times:
        parts.append("## Wall-clock")
        for layout in report.times:
            parts += [f"### {layout.title}", table(layout), _note(layout)]
    if report.provenance:
        heads = ("runs", "version", "commit", "hardware", "engine", "Python")
        parts += [
            "## Provenance",
            grid(heads, report.provenance),
            "`runs.csv` has each run: seed, commit, hardware, settings, the command that repeats it.",
        ]
    parts += ["## About the figures", "\n".join(f"- {said}" for said in report.about)]
    return "\n\n".join(parts) + "\n"


def table(layout: Layout) -> str:
    """Rows by columns; a setting of its own in a line across."""
    names = [f"{shared} {name}" if shared != name else name for shared, name in layout.columns]
    lines = []
    for block in layout.blocks:
        if block.heading:
            lines.append([f"*{_plain(block.heading)}*", *([""] * len(names))])
        lines += [[_plain(row.label), *map(_words, row.entries)] for row in block.rows]
    return grid(["", *names], lines)


def grid(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _words(entry: Entry) -> str:
    main = f"**{entry.main}**" if entry.lowest else entry.main
    paper = f"paper {entry.paper}{f', {entry.difference}' if entry.difference else ''}" if entry.paper else ""
    beside = "; ".join(filter(None, [paper, f"best epoch {entry.best}" if entry.best else ""]))
    return _plain(" ".join(filter(None, [main, f"({beside})" if beside else "", entry.note])))


def _lessons(found: Findings) -> list[str]:
    parts = [f"### {found.title}{f': {found.heading}' if found.heading else ''}"]
    lines = []
    for answer in found.answers:
        said = []
        for dataset in found.datasets:
            theirs = answer.theirs.get(dataset)
            said.append(f"{answer.ours[dataset].word}{f' (paper: {theirs.word})' if theirs else ''}")
        lines.append([f"{answer.lesson.number}. {answer.lesson.claim}", *said])
    parts.append(grid(["", *found.names], lines))
    for answer in found.answers:
        told = [f"**{answer.lesson.number}. {answer.lesson.claim}.** {answer.ours_overall or 'not in these runs'}."]
        if answer.theirs_overall:
            told.append(f"The paper's figures: {answer.theirs_overall}.")
        told += [f"Against the paper, {name}: {line}." for name, line in answer.against]
        parts.append(" ".join(told))
    return parts


def _note(layout: Layout) -> str:
    return f"{'. '.join(map(_plain, filter(None, (*layout.note, layout.more))))}."


def _plain(text: str) -> str:
    """What would start a column, a tag or a new line, as text."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
