"""The numbers of a report as CSV: one file a table, one line a cell; and one line a run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from ebl.report.cells import Group, Section
from ebl.report.command import command
from ebl.report.findings import Findings
from ebl.report.paper import Published, Theirs
from ebl.report.settings import paper_setting, setting, unlike
from ebl.report.words import clock
from ebl.study.record import Record

_CELL = (
    *("setting", "rule", "beta", "dataset", "epochs", "runs", "done", "collapsed"),
    *(f"{name}_{part}" for name in ("test", "train", "top5", "best_test", "seconds") for part in ("mean", "std")),
    *("paper_test", "paper_test_std", "paper_train", "paper_train_std", "paper_top5", "paper_seconds"),
    *("test_difference", "train_difference", "unfinished"),
)
_RUN = (
    *("key", "label", "dataset", "rule", "seed", "status", "epoch", "epochs"),
    *("test_error", "train_error", "best_test_error", "best_epoch", "collapsed", "seconds"),
    *("version", "commit", "hardware", "engine", "threads", "python", "torch"),
    *("unlike_the_papers_comparison", "command", "error"),
)


def cells_csv(section: Section) -> str:
    """Error rates in percent, dividing spreads by runs - 1; the paper's as printed, which divide by runs."""
    lines = [_cell(group, rule, dataset) for group in section.groups for rule, dataset in group.cells]
    return _csv(_CELL, lines)


def runs_csv(records: Iterable[Record]) -> str:
    return _csv(_RUN, [_run(record) for record in records])


def lessons_csv(findings: Iterable[Findings]) -> str:
    """A line for each lesson and dataset, and one for each pair of rules."""
    names = ("table", "setting", "lesson", "claim", "dataset", "verdict", "why", "the_papers_figures", "pairs")
    lines = []
    for found in findings:
        for answer in found.answers:
            for dataset, verdict in answer.ours.items():
                theirs = answer.theirs.get(dataset)
                said = (verdict.word, verdict.why, theirs.word if theirs else "", "; ".join(map(str, verdict.pairs)))
                lines.append((found.title, found.heading, answer.lesson.number, answer.lesson.claim, dataset, *said))
    return _csv(names, lines)


def _cell(group: Group, rule: str, dataset: str) -> Sequence[Any]:
    cell, theirs = group.cells[rule, dataset], group.theirs.get((rule, dataset), Theirs())
    test, train = cell.percent("test_error"), cell.percent("train_error")
    samples = (test, train, cell.percent("test_top5_error"), cell.percent("test_error", best=True), cell.seconds)
    ours = [figure for s in samples for figure in ((_plain(s.mean), _plain(s.std)) if s else (None, None))]
    printed = [*_printed(theirs.test), *_printed(theirs.train), theirs.top5 and theirs.top5.mean]
    pairs = ((test, theirs.test), (train, theirs.train))
    differences = [_plain(s.mean - float(p.mean)) if s and p else None for s, p in pairs]
    counts = (len(cell.runs), len(cell.done), cell.collapsed)
    time = clock(theirs.time) if theirs.time else None
    row = (group.heading, rule, group.betas[rule, dataset], dataset, group.epochs, *counts, *ours)
    return (*row, *printed, time, *differences, cell.unfinished)


def _run(run: Record) -> Sequence[Any]:
    final, best, config = run.final or {}, run.best or {}, run.config
    errors = (final.get("test_error"), final.get("train_error"), best.get("test_error"), best.get("epoch"))
    asked = (
        run.key,
        run.label,
        *(config[name] for name in ("dataset", "rule", "seed")),
        run.status,
        run.epoch,
        config["epochs"],
    )
    made = (run.provenance.get(name) for name in ("version", "commit", "hardware", "engine", "threads", "python", "torch"))
    unlike_theirs = unlike(setting(config), paper_setting("comparison"))
    return (
        *asked,
        *errors,
        run.collapsed,
        run.seconds,
        *made,
        unlike_theirs,
        command(config, run.provenance.get("threads")),
        run.error,
    )


def _printed(figure: Published | None) -> tuple[Any, Any]:
    return (None, None) if figure is None else (figure.mean, figure.std)


def _plain(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _csv(names: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([value for _, value in zip(names, line, strict=True)] for line in lines)
    return out.getvalue()
