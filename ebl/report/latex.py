r"""A table as LaTeX, ready for a paper: \usepackage{booktabs,graphicx}, then \input the file."""

from __future__ import annotations

import re
from dataclasses import replace

from ebl.report.layout import Block, Entry, Layout, Row

_SIGNS = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"$\sim$", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$"},
    **{
        "±": r"$\pm$",
        "−": "$-$",
        "≤": r"$\le$",
        "β": r"$\beta$",
        "ω": r"$\omega$",
        "×": r"$\times$",
        "’": "'",
        "–": "--",
        '"': "''",
    },
}


ROOM = 40  # lines of figures on a page


def to_latex(layout: Layout) -> str:
    """One table, or as many as the pages it fills."""
    pages = _pages(layout)
    return "\n".join(_table(page, f"{i} of {len(pages)}" if len(pages) > 1 else "") for i, page in enumerate(pages, 1))


def _pages(layout: Layout) -> list[Layout]:
    """Parted where a page is full."""
    pages: list[list[Block]] = [[]]
    left = ROOM
    for block in layout.blocks:
        pages[-1].append(replace(block, rows=()))
        for row in block.rows:
            lines = 1 + len(row.lines) + 2 * (not pages[-1][-1].rows)  # and the block's heading
            if lines > left and left < ROOM:
                pages.append([replace(block, rows=())])
                left = ROOM
            pages[-1][-1] = replace(pages[-1][-1], rows=(*pages[-1][-1].rows, row))
            left -= lines
    return [replace(layout, blocks=tuple(block for block in page if block.rows)) for page in pages]


def _table(layout: Layout, number: str) -> str:
    notes: dict[str, str] = {}  # letters of what is to be known of single figures
    title = f"{layout.title} ({number})" if number else layout.title
    columns = "l" + "r" * len(layout.columns)
    lines = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table}",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{escaped('. '.join(filter(None, [title, *layout.note])))}.}}",
        rf"\label{{tab:ebl-{layout.name}{f'-{number.split()[0]}' if number else ''}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(["", *(rf"\multicolumn{{{width}}}{{c}}{{{escaped(name)}}}" for name, width in layout.spans)]) + r" \\",
    ]
    at, rules = 2, []
    for _, width in layout.spans:
        rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    lines += ["".join(rules), " & ".join(["", *(escaped(name) for _, name in layout.columns)]) + r" \\"]
    for block in layout.blocks:
        lines.append(r"\midrule")
        if block.heading:
            lines += [rf"\multicolumn{{{len(layout.columns) + 1}}}{{l}}{{\emph{{{escaped(block.heading)}}}}} \\", r"\midrule"]
        for row in block.rows:
            lines += [r"\midrule"] * row.ruled + _row(row, notes)
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if notes:
        told = "; ".join(rf"[{letter}]~{escaped(note)}" for note, letter in notes.items())
        lines.append(rf"\par\smallskip{{\footnotesize {told}}}")
    return "\n".join([*lines, r"\end{table}", ""])


def escaped(text: str) -> str:
    """What LaTeX would read as commands or cannot print, as what it prints."""
    return "".join(_SIGNS.get(c, c if ord(c) < 0x180 else "?") for c in text)


def _row(row: Row, notes: dict[str, str]) -> list[str]:
    """A line of ours, and under it the paper's, the difference, and our best epoch's."""
    lines = [[escaped(row.label), *(_main(entry, notes) for entry in row.entries)]]
    for name in row.lines:
        field = {"paper": "paper", "difference": "difference", "best epoch": "best"}[name]
        words = [_figure(text) if (text := getattr(entry, field)) else "" for entry in row.entries]
        lines.append([rf"\quad\scriptsize {name}", *(rf"{{\scriptsize {text}}}" if text else "" for text in words)])
    return [" & ".join(line) + r" \\" for line in lines]


def _main(entry: Entry, notes: dict[str, str]) -> str:
    letter = rf"\textsuperscript{{[{notes.setdefault(entry.note, _letter(len(notes)))}]}}" if entry.note else ""
    return (_figure(entry.main, entry.lowest) if entry.main else "--" if entry.note else "") + letter


def _figure(text: str, bold: bool = False) -> str:
    """10.44 ± 0.12 with the spread raised, as the paper prints it."""
    found = re.fullmatch(r"([\d.]+) ± ([\d.]+)", text)
    if found is None:
        return rf"\textbf{{{escaped(text)}}}" if bold else escaped(text)
    mean = rf"\mathbf{{{found[1]}}}" if bold else found[1]
    return rf"${mean}^{{\pm {found[2]}}}$"


def _letter(number: int) -> str:
    """a, b, …, z, aa, ab, …"""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
