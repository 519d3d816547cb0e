"""The demo on a handful of images: every rule, the table, the pictures."""

import io

from rich.console import Console
from test_train import few

from ebl.demo import NINE, demo


def test_the_demo_trains_nine_rules_and_leaves_a_table_and_pictures(tmp_path):
    said = io.StringIO()
    for _ in range(2):  # the second time, all is done
        demo(tmp_path / "demo", 1, 2, Console(file=said, width=120), dataset=few(100, 50))
    rows = (tmp_path / "demo" / "comparison.md").read_text().splitlines()
    assert [row.split(" | ")[0].strip("| ") for row in rows[2:]] == list(NINE)
    cosines = {row.split(" | ")[0].strip("| "): float(row.split(" | ")[3]) for row in rows[2:]}
    assert cosines["rbp"] == 1
    assert min(cosines[rule] for rule in ("tbp", "c-ep", "c-cpl")) > 0.99
    for name in ("error_curves", "relaxation"):
        assert (tmp_path / "demo" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / "demo" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert all(rule in said.getvalue() for rule in NINE)
