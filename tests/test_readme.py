"""What the README shows runs as it stands."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=["network", "run", "energy"])
def test_examples_run_and_learn(code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    said = capsys.readouterr().out
    if "result" in names:
        assert names["result"]["final"]["test_error"] < 0.4
        assert abs(float((names["found"] != names["labels"]).float().mean()) - names["result"]["final"]["test_error"]) < 0.05
        return
    assert "cost" in said
    assert float(names["seen"].cost) < (0.01 if "Springs" in code else 0.35)


def test_commands_in_the_readme_are_real(monkeypatch, tmp_path):
    from ebl.cli.flags import parse, typed
    from ebl.presets import preset

    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", images=np.zeros((20, 28, 28), np.uint8), labels=np.arange(20) % 2)

    for line in re.findall(r"^ebl (.*?)(?:\s+#.*)?$", README, re.MULTILINE):
        words = line.split()
        command = importlib.import_module(f"ebl.cli.{words[0]}")
        start = command.Arguments(config=preset(typed(words, "--preset") or "quick")) if words[0] == "train" else None
        parse(command.Arguments, f"ebl {words[0]}", words[1:], start)
