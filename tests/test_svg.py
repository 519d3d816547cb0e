"""Pictures that stand alone: what their legends say can be read."""

import re

import pytest

from ebl.report.svg import HEIGHT, KEY, LETTER, WIDTH, Line, as_file, chart

LONG = "C-EP, T ≤ 40, Chebyshev 0.95, settle 5e-4, K = 8, ω = 1.4, zero start, {} epochs"


@pytest.mark.parametrize(
    "names",
    [["c-ep", "n-ep", "cl", "tbp"], ["C-EP"], [LONG.format(n) for n in (10, 30, 100)], ["C-EP", LONG.format(9)]],
    ids=len,
)
def test_the_entries_of_a_legend_lie_beside_or_below_each_other_within_the_picture(names):
    lines = [Line(name, f"hue{i}", [1, 2], [3.0, 2.0], [3.0, 2.0], [3.0, 2.0]) for i, name in enumerate(names)]
    picture = as_file(chart("Test error", lines), lines)
    key = [(float(x), float(y), text) for x, y, text in re.findall(r'<text x="([\d.]+)" y="([\d.]+)">([^<]*)</text>', picture)]
    key = [(x, y, text) for x, y, text in key if y > HEIGHT]
    assert " ".join(text for _, _, text in key) == " ".join(names)
    height = float(re.search(r"viewBox='0 0 \d+ ([\d.]+)'", picture)[1])
    for x, y, text in key:
        assert y < height
        end = x + LETTER * len(text)
        assert end <= WIDTH
        for x2, y2, _ in key:
            assert y2 == y or abs(y2 - y) >= 13
            assert not (y2 == y and x < x2 < end + KEY - 30)
