"""JSON lines come back as they were written, and what a kill or a damage left is told apart."""

import pytest

from ebl.atomic import append_line, read_lines
from ebl.errors import InputError


def test_lines_come_back_as_they_were_written(tmp_path):
    lines = [{"epoch": 1, "text": "a,]\n[é"}, {}, {"values": [1, [2.5, None]]}]
    for line in lines:
        append_line(tmp_path / "lines", line)
    assert read_lines(tmp_path / "lines") == lines


def test_a_last_line_that_a_kill_cut_short_is_left_out(tmp_path):
    (tmp_path / "lines").write_text('{"epoch": 1}\n{"epoch": 2}', encoding="utf-8")
    assert read_lines(tmp_path / "lines") == [{"epoch": 1}]


@pytest.mark.parametrize("lines", ['{"epoch": 1\n}\n', '{"a": [1\n2]}\n', '{"a": 1}, {"a": 2}\n', "\n{}\n"])
def test_a_line_that_is_no_json_by_itself_is_named_as_damage(tmp_path, lines):
    (tmp_path / "lines").write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match="lines is damaged"):
        read_lines(tmp_path / "lines")
