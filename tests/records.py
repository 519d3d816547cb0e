"""Records of runs that were never made, for tests of what is done with records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ebl.config import Config
from ebl.presets import preset
from ebl.report import paper
from ebl.study.record import CURVES, PROVENANCE, Record

MADE = dict(zip(PROVENANCE, ("0.1.0", "1234567890abcdef" * 2, "a GPU", 4, "3.11.7", "2.13.0", "fused fp16", 1), strict=True))
NINE = ("tbp", "rbp", "cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")


def config(name: str, rule: str = "c-ep", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A preset's, as JSON has it; a dotted name changes a part: free__iterations=20."""
    c = preset(name)
    c = replace(c, rule=rule, seed=seed, beta=None if rule in ("cl", "tbp", "rbp") else c.beta)
    for key, value in changes.items():
        part, _, field = key.partition("__")
        c = replace(c, **{part: replace(getattr(c, part), **{field: value}) if field else value})
    return json.loads(json.dumps(asdict(c)))


def done(made_with: dict[str, Any], test: float, train: float = 0.1, *, best: float | None = None, **more: Any) -> Record:
    """A finished run with these errors (shares); its curves fall to them in three epochs."""
    lines = [_line(i, made_with["epochs"], e, t) for i, (e, t) in enumerate(((0.9, 0.8), (best or test, 0.5), (test, train)))]
    lines[-1]["epoch"] = made_with["epochs"]
    at_best = min(lines, key=lambda line: line["test_error"])
    curves = {name: [line[name] for line in lines] for name in CURVES} | {"seconds": [30.0] * 3}
    key = f"{made_with['dataset']}-{made_with['rule']}-s{made_with['seed']}-{abs(hash(json.dumps(made_with))):x}"
    values = {"seconds": 90.0, "provenance": dict(MADE)} | more
    return Record(key, made_with, "done", made_with["epochs"], lines[-1], at_best, curves=curves, **values)


def undone(made_with: dict[str, Any], status: str, epoch: int = 0, error: str = "") -> Record:
    return replace(done(made_with, 0.5), status=status, epoch=epoch, final=None, best=None, error=error, provenance={})


def table1(**changes: Any) -> list[Record]:
    """The whole comparison, three seeds, each as far from the paper's mean as its spread says."""
    found = []
    for (rule, dataset), theirs in paper.comparison().items():
        mean, spread = float(theirs.test.mean), float(theirs.test.std)
        for seed, step in enumerate(
            (-1.2, 0.0, 1.2)
        ):  # three runs so spaced have that standard deviation, dividing by 3, nearly
            test = min(max(mean + step * spread, 0.2), 99.0) / 100
            found.append(done(config("table1", rule, seed, dataset=dataset, **changes), test, float(theirs.train.mean) / 100))
    return found


def write_run(folder: Path, record: Record) -> Path:
    """As `ebl train` leaves it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(record.config))
    count = len(record.curves["test_error"])
    lines = [{"epoch": i + 1, **{name: record.curves[name][i] for name in CURVES}} for i in range(count)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    times = [{"epoch": i + 1, "seconds": 30.0, "training_seconds": 25.0} for i in range(count)]
    (folder / "times.jsonl").write_text("".join(json.dumps(line) + "\n" for line in times))
    if record.status == "done":
        result = {"final": record.final, "best": record.best, "collapsed": record.collapsed, "seconds": record.seconds}
        (folder / "result.json").write_text(json.dumps(result | record.provenance))
    return folder


def as_config(record: Record) -> Config:
    from ebl.config import from_json

    return from_json(json.dumps(record.config))


def _line(i: int, epochs: int, test: float, train: float) -> dict[str, Any]:
    errors = {"test_error": test, "train_error": train, "test_top5_error": test / 4, "train_top5_error": train / 4}
    return {"epoch": i + 1, **errors, "free_iterations": 12.0 + i, "free_residual": 4e-4 / (i + 1)}
