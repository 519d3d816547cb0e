"""The number of free iterations follows the residual, and a kill changes nothing about it."""

import dataclasses
import math

import pytest
from test_train import SMALL, KilledError, contents, few

from ebl.atomic import read_lines
from ebl.checkpoint import load_checkpoint
from ebl.pace import FIRST, LEAST, Pace
from ebl.relax import Schedule
from ebl.train import train

WANTED, MOST = 1e-3, 40


def looked(start: int, mean: float, most: int = MOST) -> int:
    """The number chosen after 100 examples with this mean residual."""
    pace = Pace(start)
    pace.look(100, 100 * mean, WANTED, most)
    return pace.iterations


def test_a_pace_starts_at_most_where_it_is_allowed_to_and_stands_still_without_a_wish():
    assert Pace.starting(WANTED, 40).iterations == FIRST
    assert Pace.starting(WANTED, 9).iterations == 9
    assert Pace.starting(None, 40).iterations == 40


def test_a_pace_rises_above_the_wanted_residual_and_falls_far_below_it():
    assert looked(12, 1.2 * WANTED) == 13  # 4 ln 1.2 < 1
    assert looked(12, math.e * WANTED * 0.999) == 15  # 4 would be due, a quarter is the most
    assert looked(20, 1e3 * WANTED) == 25
    assert looked(4, 1e3 * WANTED) == 6  # at least 2
    assert looked(12, WANTED * 0.999) == 12
    assert looked(12, WANTED * math.exp(-0.49)) == 12  # near enough
    assert looked(12, WANTED * math.exp(-0.51)) == 11
    assert looked(12, WANTED * 1e-6) == 10  # by 2 at most
    assert looked(12, 0.0) == 10


def test_a_pace_stays_between_the_least_and_the_most():
    assert looked(MOST, 1e3) == MOST
    assert looked(LEAST, 1e-9) == LEAST
    assert looked(LEAST + 1, 1e-9) == LEAST
    assert looked(3, 1e-9, most=3) == 3  # the most may be less than the least
    pace, examples, residual = Pace(FIRST), 0.0, 0.0
    for mean in [1.0] * 20 + [0.0] * 60 + [1.0] * 30:
        examples, residual = examples + 10, residual + 10 * mean
        pace.look(examples, residual, WANTED, MOST)
        assert LEAST <= pace.iterations <= MOST


def test_a_pace_looks_at_what_came_since_the_last_look():
    pace = Pace(12)
    pace.look(100, 100 * WANTED, WANTED, MOST)
    assert pace.iterations == 12
    pace.look(100, 100 * WANTED, WANTED, MOST)  # nothing new
    assert pace.iterations == 12
    pace.look(110, 100 * WANTED + 10 * 3 * WANTED, WANTED, MOST)  # ten examples at three times the wanted value
    assert pace.iterations == 15
    pace.new_epoch()
    pace.look(10, 10 * WANTED, WANTED, MOST)
    assert pace.iterations == 15


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_pace_ignores_what_is_not_finite(value):
    assert looked(12, value) == 12


def test_tests_take_a_quarter_more():
    assert Pace(12).for_test(WANTED, MOST) == 15
    assert Pace(13).for_test(WANTED, MOST) == 17  # 16.25
    assert Pace(39).for_test(WANTED, MOST) == MOST
    assert Pace(12).for_test(None, MOST) == MOST


def test_settling_towards_a_fixed_point_finds_the_iterations_it_takes():
    """Residuals that fall by a fifth with each iteration: 0.8^n = wanted at n = 31."""
    pace, examples, residual = Pace.starting(WANTED, MOST), 0.0, 0.0
    for _ in range(30):
        examples, residual = examples + 100, residual + 100 * 0.8**pace.iterations
        pace.look(examples, residual, WANTED, MOST)
    assert 0.8**pace.iterations <= WANTED
    assert 0.8 ** (pace.iterations - 3) > WANTED


def test_a_run_of_short_epochs_looks_once_in_each(tmp_path):
    """Ten steps, fewer than there are between two looks."""
    config = dataclasses.replace(SMALL, rule="c-ep", epochs=3, batch_size=4, settle=1e-9, free=Schedule(30, 1.4))
    train(config, tmp_path, dataset=few())
    used = [line["free_iterations"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert FIRST == used[0] < used[1] < used[2]


@pytest.mark.parametrize("settle", [1e-9, 0.02], ids=["rises", "falls"])
def test_a_run_that_settles_resumes_to_the_bit_with_its_pace(tmp_path, monkeypatch, settle):
    monkeypatch.setattr("ebl.train.LOOK", 4)  # ten steps an epoch: two looks, and some steps after them
    config = dataclasses.replace(SMALL, rule="c-ep", epochs=2, batch_size=4, settle=settle, free=Schedule(30, 1.4))
    train(config, tmp_path / "whole", dataset=few())
    _, header = load_checkpoint(tmp_path / "whole" / "checkpoint.safetensors")
    used = [line["free_iterations"] for line in read_lines(tmp_path / "whole" / "metrics.jsonl")]
    if settle == 1e-9:  # below what float32 resolves
        assert used[1] > used[0] > FIRST
        assert FIRST < header["pace"]["iterations"] <= 30
    else:
        assert used[1] < used[0] < FIRST
        assert LEAST <= header["pace"]["iterations"] < FIRST

    def stopper(after: int):
        seen = []

        def watch(event):
            seen.append(event)
            if len(seen) == after:
                raise KilledError

        return watch

    for after in (4, 5, 3, 8, 1):  # at a look, just after one, between two, over the epoch's end
        with pytest.raises(KilledError):
            train(config, tmp_path / "cut", dataset=few(), resume=True, watch=stopper(after), checkpoint_seconds=0)
    train(config, tmp_path / "cut", dataset=few(), resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
