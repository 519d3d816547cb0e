"""Line charts as SVG that takes its colours from chart.css: one picture is right in light and in dark, on a page and alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from textwrap import wrap

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 28, 32
KEY, LETTER = 36, 5.6  # of a legend: pixels of a line's look and the gaps beside it, and of a letter, about
LOG_FROM = 5.0  # an axis is logarithmic where the largest value is that many times the smallest


@dataclass(frozen=True)
class Line:
    """A curve by epoch, its range over seeds as a band."""

    name: str
    look: str  # classes of chart.css: a colour, and dashed or dotted
    epochs: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def chart(title: str, lines: Sequence[Line]) -> str:
    """All lines in one picture; what is not positive is left out of a logarithmic axis."""
    values = [v for line in lines for v in (*line.low, *line.high) if math.isfinite(v)]
    positive = [v for v in values if v > 0]
    logarithmic = bool(positive) and max(positive) > LOG_FROM * min(positive)
    last = max((line.epochs[-1] for line in lines), default=1)
    low, high = (min(positive), max(positive)) if logarithmic else (min(values, default=0), max(values, default=1))
    if low == high:
        low, high = low - (abs(low) / 2 or 1), high + (abs(high) / 2 or 1)
    if not logarithmic:
        low, high = low - 0.05 * (high - low) if low > 0.05 * (high - low) else min(low, 0), high + 0.05 * (high - low)

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((epoch - 1) / (last - 1) if last > 1 else 0.5)

    def y(value: float) -> float:
        share = (value - low) / (high - low) if not logarithmic else math.log(max(value, low) / low) / math.log(high / low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    said = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    said.append(f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>')
    for tick in _log_ticks(low, high) if logarithmic else _ticks(low, high, 5):
        said.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        said.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    for tick in sorted({1, *(t for t in _ticks(1, last, 6) if t == int(t))} if last > 1 else {1}):
        if tick == 1 or x(tick) - x(1) > 18:
            said.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    said.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 3}" text-anchor="middle">epoch</text>')
    for line in lines:
        points = list(zip(map(x, line.epochs), map(y, line.middle), strict=True))
        band = [*zip(map(x, line.epochs), map(y, line.low), strict=True)]
        band += reversed([*zip(map(x, line.epochs), map(y, line.high), strict=True)])
        said.append(f'<g class="line {line.look} {slug(line.look)}">')
        said.append(f"<title>{escape(line.name)}: {_short(line.middle[-1])} at the end</title>")
        if line.low != line.high:
            said.append(f'<path class="band" d="{_path(band)}Z"/>')
        said.append(f'<path d="{_path(points)}"/><circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.6"/></g>')
    return "".join([*said, "</svg>"])


def swatch(look: str) -> str:
    """A line's look, for legends."""
    return f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><g class="line {look}"><path d="M2 5H26"/></g></svg>'


def slug(look: str) -> str:
    """A look in one word, for what concerns this line alone."""
    return f"is-{look.replace(' ', '-')}"


def as_file(picture: str, lines: Sequence[Line]) -> str:
    """A picture that stands alone: its styles inside, its legend below."""
    longest = max((len(line.name) for line in lines), default=1)
    columns = max(1, min(3, int((WIDTH - LEFT) / (KEY + LETTER * longest))))
    step = (WIDTH - LEFT) / columns
    key, top = [], HEIGHT + 14
    for i in range(0, len(lines), columns):
        names = [wrap(line.name, int((step - KEY) / LETTER)) for line in lines[i : i + columns]]
        for k, (line, words) in enumerate(zip(lines[i : i + columns], names, strict=True)):
            left = LEFT + step * k
            key.append(f'<g class="line {line.look}"><path d="M{left:.0f} {top - 4}h24"/></g>')
            key += [f'<text x="{left + 30:.0f}" y="{top + 13 * n}">{escape(text)}</text>' for n, text in enumerate(words)]
        top += 16 + 13 * (max(map(len, names)) - 1)
    height = top - 6
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{WIDTH}" height="{height}"'
    body = picture.partition(">")[2].removesuffix("</svg>")
    return f"{head} viewBox='0 0 {WIDTH} {height}'><style>{style()}</style>{body}{''.join(key)}</svg>\n"


def style(name: str = "chart.css") -> str:
    return resources.files("ebl.report").joinpath(name).read_text(encoding="utf-8")


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers in a range: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where these are few, multiples between them."""
    powers = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    found: list[float] = []
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        if len(found) < 3:
            found = [factor * power for power in powers for factor in factors if low <= factor * power <= high]
    return found


def _short(value: float) -> str:
    """4.2e−4 rather than 0.00042; 0.5, 20 and 1500 as they are."""
    if value and abs(value) < 0.01:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−")
    return f"{value:.4g}"
