"""A table as Markdown, LaTeX and HTML all show it: named columns, blocks of rows, entries of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ebl.report.cells import Cell
from ebl.report.paper import Published
from ebl.report.words import clock, counted, duration, signed

OWN = "the paper's setting"


def beside(source: str) -> str:
    return f"under them the paper's ({source}), the difference, and our best epoch's where that is another"


@dataclass(frozen=True)
class Entry:
    main: str = ""  # ours; in a row of published figures, theirs
    paper: str = ""  # the paper's figure beside ours
    difference: str = ""  # ours - the paper's
    best: str = ""  # the best epoch's figure, where that is another
    note: str = ""  # unfinished, collapsed, fewer seeds than elsewhere
    lowest: bool = False  # of its column


@dataclass(frozen=True)
class Row:
    label: str
    entries: tuple[Entry, ...]
    published: bool = False

    @property
    def lines(self) -> list[str]:
        """Names of the lines under the figures: those that any entry has."""
        there = {"paper": "paper", "difference": "difference", "best": "best epoch"}
        return [name for line, name in there.items() if any(getattr(entry, line) for entry in self.entries)]

    ruled: bool = False  # a thin line above: rows of another kind begin


@dataclass(frozen=True)
class Block:
    heading: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Layout:
    name: str  # of its files
    title: str
    note: tuple[str, ...]  # what the figures are, a sentence each
    columns: tuple[tuple[str, str], ...]  # each a heading, shared by neighbours, and a name under it
    blocks: tuple[Block, ...]
    left_out: int = 0  # rows

    def shortened(self, most: int) -> Layout:
        """The first blocks, up to about so many rows."""
        kept, rows = [], 0
        for block in self.blocks:
            if rows < most:
                kept.append(replace(block, rows=block.rows[: most - rows]))
            rows += len(block.rows)
        return replace(self, blocks=tuple(kept), left_out=self.left_out + max(rows - most, 0))

    @property
    def more(self) -> str:
        """Where the rows are that were left out."""
        return f"{self.left_out} more rows are in {self.name.removesuffix('-time')}.csv" if self.left_out else ""

    @property
    def spans(self) -> list[tuple[str, int]]:
        """Each shared heading, and over how many columns."""
        found: list[tuple[str, int]] = []
        for heading, _ in self.columns:
            if found and found[-1][0] == heading:
                found[-1] = (heading, found[-1][1] + 1)
            else:
                found.append((heading, 1))
        return found


def error_entry(cell: Cell | None, name: str, theirs: Published | None, best: bool = False) -> Entry:
    """An error of a cell's last epochs (`test_error` and such), the paper's, and the best epochs' where that is another."""
    if cell is None:
        return Entry()
    ours, at_best = cell.percent(name), cell.percent(name, best=True) if best else None
    if ours is None:
        return Entry(paper=str(theirs or ""))
    another = at_best is not None and f"{at_best.mean:.2f}" != f"{ours.mean:.2f}"
    return Entry(
        str(ours),
        str(theirs or ""),
        "" if theirs is None else signed(ours.mean - float(theirs.mean)),
        f"{at_best.mean:.2f}" if another and at_best else "",
    )


def state_of(cell: Cell | None, most: int) -> str:
    """What is to be known of a cell beside its figures; `most`: the seeds of others."""
    if cell is None:
        return ""
    few = counted(len(cell.done), "seed") if 0 < len(cell.done) < most else ""
    fallen = "collapsed" if len(cell.done) == 1 else f"{cell.collapsed} of {len(cell.done)} collapsed"
    return ", ".join(filter(None, [few, cell.unfinished, fallen if cell.collapsed else ""]))


def time_entry(cell: Cell | None, theirs: str | None = None) -> Entry:
    """The time of one run, and the paper's (H:MM) beside it."""
    return Entry(duration(cell.seconds.mean), clocked(theirs)) if cell and cell.seconds else Entry()


def clocked(text: str | None) -> str:
    """H:MM in words."""
    return "" if text is None else "~" * text.startswith("~") + duration(clock(text))


def mark_lowest(rows: Sequence[Row], candidates: Sequence[int], columns: Sequence[int]) -> tuple[Row, ...]:
    """The lowest figure of each of these columns among these rows, as the paper prints it bold."""
    marked = list(rows)
    for column in columns if len(candidates) > 1 else ():
        values = {i: float(rows[i].entries[column].main.split()[0]) for i in candidates if rows[i].entries[column].main}
        for i in (i for i in values if values[i] == min(values.values())):
            entries = list(marked[i].entries)
            entries[column] = replace(entries[column], lowest=True)
            marked[i] = replace(marked[i], entries=tuple(entries))
    return tuple(marked)
