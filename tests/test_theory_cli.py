"""`ebl theory` as a user meets it, and the page that its tables are on."""

import json
import re
from pathlib import Path

import pytest
import theory as page
from test_cli import TINY, refused

from ebl.cli import main
from ebl.theory import report
from ebl.theory.subjects import find_subject

PAGE = Path(__file__).parent.parent / "docs" / "theory.md"
TEXT = PAGE.read_text(encoding="utf-8")

ENERGIES = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.full((2, 1), 0.5))
    def init_state(self, x):
        return (x.new_zeros(len(x), 1),)
    def energy(self, x, state):
        return (0.5 * (state[0] - x @ self.a) ** 2).sum(1)

class Own(Base):
    def example(self):
        return torch.tensor([[1.0, 0.0]]), torch.tensor([[0.2]])

class Attribute(Base):
    example = (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.2]]))

class Loud(Base):
    def energy(self, x, state):
        raise RuntimeError("no\\nshape fits")

class Six(Base):
    def energy(self, x, state):
        return super().energy(x, state) + torch.ones(6)

class Whole(Base):
    def energy(self, x, state):
        return super().energy(x, state).sum()

class Late(Base):
    def __init__(self, size):
        super().__init__()

class Plain:
    def energy(self, x, state):
        return x.sum(1)

class Mute(nn.Module):
    def init_state(self, x):
        return (x,)

class WrongTarget(Base):
    def example(self):
        return torch.zeros(2, 2), torch.zeros(3, 1)

class WrongExample(Base):
    def example(self):
        return torch.zeros(2, 5), torch.zeros(2, 1)

class NoExample(Base):
    def example(self):
        raise OSError("no data")

class Cut(Base):
    def energy(self, x, state):
        return super().energy(x, state).detach()

class NotANumber(Base):
    def energy(self, x, state):
        return super().energy(x, state) / 0 * 0

class Single(Base):
    def init_state(self, x):
        return (torch.zeros(len(x), 1),)

class List(Base):
    def init_state(self, x):
        return [x.new_zeros(len(x), 1)]
"""


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(ENERGIES.splitlines(), 1) if words in line)


@pytest.fixture
def energies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(ENERGIES, encoding="utf-8")
    Path("broken.py").write_text("x = 1\nimport nothing_of_this_name\n", encoding="utf-8")
    Path("empty.py").write_text("x = 1\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rulez"], "invalid choice 'rulez'"),
        (["--net", "mine.py"], "give FILE.py:Class"),
        (["--net", "nowhere"], "or the folder of an `ebl train`"),
        (["--net", "."], "not a run folder"),
        (["--net", "gone.py:Own"], "gone.py does not exist"),
        (["--net", "mine.py:own"], "did you mean Own?"),
        (["--net", "broken.py:A"], "broken.py cannot be executed, line 2: ModuleNotFoundError"),
        (["--net", "empty.py:A"], "defines no torch.nn.Module"),
        (["--net", "mine.py:Late"], "it must be made without arguments"),
        (["--net", "mine.py:Mute"], "has no method energy"),
        (["--net", "mine.py:Plain"], "mine.py:Plain is no torch.nn.Module: derive it from that"),
        (
            ["--net", "mine.py:Loud"],
            f"no shape of x was found that Loud of mine.py takes, line {line_of('raise')}: RuntimeError: no shape fits",
        ),
        (["--net", "mine.py:Six"], f"mine.py:Six fails, line {line_of('ones(6)')}: RuntimeError"),
        (["--net", "mine.py:Whole"], "has shape () for 6 examples"),
        (["--net", "mine.py:List"], "must give a tuple of blocks"),
        (["--net", "mine.py:WrongTarget"], "y has shape (3, 1)"),
        (["--net", "mine.py:WrongExample"], f"WrongExample of mine.py fails on its own example, line {line_of('x @ self.a')}"),
        (["--net", "mine.py:NoExample"], f"the example of NoExample of mine.py fails, line {line_of('no data')}"),
        (["--net", "mine.py:Cut"], "energy of Cut of mine.py does not depend on the state for autograd: use no detach"),
        (["--net", "mine.py:NotANumber"], "energy of NotANumber of mine.py is nan at its init_state"),
        (["--net", "mine.py:Single"], "gives torch.float32 where x and the parameters are float64: use x.new_zeros"),
        (["rules", "--net", "mine.py:Own"], "it goes with statements and settling"),
        (["settling", "--net", "mine.py:Own"], "not a run folder"),
        (["--tolerance", "0"], "--tolerance 0"),
        (["--tolerance", "1e-6"], "use 1e-9 or less"),
        (["--iterations", "0"], "--iterations 0"),
        (["--out", "mine.py"], "give --out a folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(energies, capsys, words, said):
    line = refused(capsys, "theory", *words)
    assert line.startswith("ebl: ")
    assert said in line


def test_an_energy_of_ones_own_gets_a_table_json_and_pictures(energies, capsys):
    main(["theory", "--net", "mine.py:Own", "--out", "out"])
    said = capsys.readouterr().out
    assert "Own of mine.py, its own example; 1 example, float64, phases relaxed to 1e-12" in said
    assert said.count("holds") == 21
    found = json.loads(Path("out/theory.json").read_text())
    assert {row["verdict"] for row in found["statements"]["rows"]} == {"holds"}
    assert found["statements"]["losses"]["C"] == pytest.approx(0.5 * (0.5 - 0.2) ** 2)  # o* = x a
    assert found["statements"]["losses"]["L⁽¹⁾"] == pytest.approx((0.5 - 0.2) ** 2)
    assert found["made_with"]["torch"]
    assert Path("out/theory.md").read_text(encoding="utf-8").count("| holds |") == 21
    assert Path("out/surrogates.png").read_bytes().startswith(b"\x89PNG")
    assert Path("out/surrogates.pdf").read_bytes().startswith(b"%PDF")
    main(["theory", "--net", "mine.py:Attribute", "--json"])
    again = json.loads(capsys.readouterr().out)["statements"]
    assert again["losses"] == found["statements"]["losses"]


def test_without_an_example_input_and_target_are_random_and_said(energies):
    subject = find_subject("mine.py:Base", seed=3)
    assert subject.name == "Base of mine.py; x random in [0, 1], (6, 2); y random normal, (6, 1)"
    assert subject.x.equal(find_subject("mine.py:Base", seed=3).x)
    assert not subject.x.equal(find_subject("mine.py:Base", seed=4).x)


def test_a_statement_that_fails_is_exit_code_one(energies, capsys):
    zero = "    def gradients(self, x, state, weights, memo):\n        return [0 * p for p in self.parameters()]\n"
    Path("wrong.py").write_text(f"{ENERGIES}\nclass Zero(Own):\n{zero}", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        main(["theory", "--net", "wrong.py:Zero"])
    assert stop.value.code == 1
    assert "fails" in capsys.readouterr().out


def test_a_trained_network_is_a_subject_and_settles(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", "--out", run, *TINY])
    capsys.readouterr()
    main(["theory", "--net", run, "--images", "1", "--json"])
    found = json.loads(capsys.readouterr().out)["statements"]
    assert "c-ep on fashion-mini; 1 example" in found["on"]
    assert not [row for row in found["rows"] if row["verdict"] == "fails"]
    main(["theory", "settling", "--net", run, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert "two-colour, odd first" in said
    assert (tmp_path / "out" / "settling.pdf").read_bytes().startswith(b"%PDF")


def table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def on_page(name: str) -> list[list[str]]:
    (found,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", TEXT, re.DOTALL)
    return table(found)


def alike(shown: str, found: str) -> bool:
    """The same figure, or two that are both rounding errors."""
    if shown == found:
        return True
    a, b = (float(v.replace("−", "-")) for v in (shown, found))
    return abs(a - b) <= 0.02 * max(abs(a), abs(b)) or max(abs(a), abs(b)) < 1e-6


def test_the_page_shows_what_the_code_says():
    parts = {
        "statements": report.statements_part(),
        "yours": page.unmet(report.statements_part(page.yours(TEXT))),
        "counter-examples": report.counterexamples_part(),
    }
    for name, part in parts.items():
        shown, found = on_page(name), table(part.markdown())
        assert len(shown) == len(found) > 1, name
        for one, two in zip(shown, found, strict=True):
            figures = {2} if part.head[2] == "measured" else set(range(1, len(one)))
            for i, (a, b) in enumerate(zip(one, two, strict=True)):
                assert a == b or (i in figures and alike(a, b)), (name, one, two)
    assert all(row[-1] == "holds" for row in on_page("statements")[1:])
    assert all(row[-1].startswith("assumption not met: several minima: 2") for row in on_page("yours")[1:])


def test_the_pages_commands_and_pictures_are_real():
    from ebl.cli.flags import parse
    from ebl.cli.theory import Arguments

    lines = re.findall(r"^ebl theory ?(.*?)(?:\s+#.*)?$", TEXT, re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        parse(Arguments, "ebl theory", line.split())
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", TEXT)
    assert len(pictures) == 5
    assert all((PAGE.parent / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    text = page.between("a\n<!-- x -->\nold\n<!-- /x -->\nb", "x", "new \\1\n")
    assert text == "a\n<!-- x -->\nnew \\1\n<!-- /x -->\nb"
