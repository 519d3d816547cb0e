"""The command that a report gives for a run makes that run again."""

import json
import shlex
from dataclasses import asdict, replace

import pytest

from ebl.cli import main
from ebl.cli import train as cli_train
from ebl.config import Config, Model
from ebl.errors import InputError
from ebl.presets import PRESETS, preset
from ebl.relax import Schedule
from ebl.report.command import command
from ebl.rules import RULES

OTHERS = {
    "over-relaxed, short": replace(preset("fast"), epochs=30, seed=2, device="cuda"),
    "own relaxation": replace(preset("table1"), free=Schedule(20, 1.5, "even-first"), nudged=Schedule(9, tolerance=1e-6)),
    "all that may be none": replace(preset("fast"), settle=None, beta=None, pad=0, crop=0),
    "flags": replace(preset("quick"), augment=True, flip=False, crop=2, stop_on_collapse=True, val=100),
    "the defaults": Config(),
    "a network of its own": replace(preset("quick"), model=Model("dense", (20, 10), gains=(0.4,)), epochs=2),
}
RULED = {rule: replace(preset("table1"), rule=rule, beta=None if rule in ("cl", "tbp", "rbp") else 0.25) for rule in RULES}


def trained_by(words: list[str], monkeypatch) -> Config:
    """What the command line would train."""

    def caught(config, out, **options):
        seen.append(config)
        raise InputError("caught")

    seen: list[Config] = []
    monkeypatch.setattr(cli_train, "train", caught)
    with pytest.raises(SystemExit):
        main(words)
    return seen[0]


@pytest.mark.parametrize("config", [*PRESETS.values(), *OTHERS.values(), *RULED.values()], ids=[*PRESETS, *OTHERS, *RULED])
def test_the_command_of_a_run_makes_that_run(config, monkeypatch, capsys):
    config = config[1] if isinstance(config, tuple) else config
    program, *words = shlex.split(command(json.loads(json.dumps(asdict(config)))))
    assert program == "ebl"
    assert trained_by(words, monkeypatch) == config


def test_the_command_names_the_nearest_preset_and_what_differs():
    assert command(asdict(replace(preset("fast"), device="cuda", seed=1))) == "ebl train --preset fast --seed 1 --device cuda"
