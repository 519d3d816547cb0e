"""All that a report says, before it is written in any form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ebl.report import paper
from ebl.report.cells import Section, sections
from ebl.report.curves import Panel, draw
from ebl.report.findings import Findings, find
from ebl.report.layout import OWN, Layout
from ebl.report.lessons import METHOD
from ebl.report.settings import described
from ebl.report.tables import lay_out, wall_clock
from ebl.report.words import DATASETS, RULES, dataset_name, duration, joined, order
from ebl.study.record import Record

STATES = ("done", "running", "failed", "waiting")
MOST_ROWS, MOST_FINDINGS, MOST_ERRORS, MOST_CELLS = 300, 12, 20, 500  # shown; files have all


@dataclass(frozen=True)
class Report:
    name: str
    records: Sequence[Record]
    left_out: Sequence[str] = ()  # a line for each run that could not be read

    @cached_property
    def sections(self) -> list[Section]:
        return sections(self.records)

    @cached_property
    def whole_tables(self) -> list[Layout]:
        return [lay_out(section) for section in self.sections]

    @cached_property
    def tables(self) -> list[Layout]:
        return [layout.shortened(MOST_ROWS) for layout in self.whole_tables]

    @cached_property
    def times(self) -> list[Layout]:
        """Of the tables that do not show it."""
        timed = [section for section in self.sections if section.name not in ("table2", "table3")]
        return [wall_clock(section).shortened(MOST_ROWS) for section in timed]

    @cached_property
    def all_findings(self) -> list[Findings]:
        return find(self.sections)

    @property
    def findings(self) -> list[Findings]:
        return self.all_findings[:MOST_FINDINGS]

    @property
    def findings_left_out(self) -> int:
        return len(self.all_findings[MOST_FINDINGS:])

    @cached_property
    def drawn(self) -> tuple[list[Panel], int]:
        return draw(self.sections)

    @cached_property
    def states(self) -> dict[str, int]:
        seen = Counter(record.status for record in self.records)
        return {state: seen[state] for state in STATES}

    @cached_property
    def facts(self) -> list[tuple[str, str]]:
        """What there is, in a few words each."""
        done = [record for record in self.records if record.status == "done"]
        configs = [record.config for record in self.records]
        datasets = sorted({c["dataset"] for c in configs}, key=lambda name: order(name, DATASETS))
        rules = {c["rule"] for c in configs}
        states = ", ".join(f"{number:,} {state}" for state, number in self.states.items() if number)
        facts = [("Runs", f"{states}; {collapsed} collapsed" if (collapsed := sum(r.collapsed for r in done)) else states)]
        facts.append(("Datasets", joined([dataset_name(name) for name in datasets])))
        names = [name for rule, name in RULES.items() if rule in rules] + sorted(rules - set(RULES))
        facts.append(("Rules", joined(names) if len(names) < 9 else f"{len(names)}, {names[0]} to {names[-1]}"))
        seeds = sorted({c["seed"] for c in configs})
        facts.append(
            ("Seeds", joined(list(map(str, seeds))) if len(seeds) < 8 else f"{len(seeds)}, from {seeds[0]} to {seeds[-1]}")
        )
        if done:
            hardware = Counter(record.provenance.get("hardware") or "unknown" for record in done)
            facts.append(("Hardware", joined([name for name, _ in hardware.most_common(4)])))
            facts.append(("Time of all runs", duration(sum(record.seconds for record in done))))
        return facts

    @cached_property
    def provenance(self) -> list[tuple[str, ...]]:
        """What made the finished runs: how many, version, commit, hardware, engine, Python and torch."""
        done = [record.provenance for record in self.records if record.status == "done"]
        made = Counter((_known(p, "version"), _commit(p), _known(p, "hardware"), _known(p, "engine"), _python(p)) for p in done)
        return [(f"{number:,}", *what) for what, number in made.most_common()]

    @cached_property
    def all_cells(self) -> list[tuple[str, ...]]:
        """Each cell: rule, dataset, setting, seeds done, commits, hardware, engines."""
        found = []
        for group in (group for section in self.sections for group in section.groups):
            words = group.heading or (OWN if group.theirs else described(group.setting))
            for (rule, dataset), cell in group.cells.items():
                made = [run.provenance for run in cell.done]
                seeds = ", ".join(str(run.config["seed"]) for run in cell.done) or cell.unfinished
                each = [{_commit(p) for p in made}, *({_known(p, name) for p in made} for name in ("hardware", "engine"))]
                found.append(
                    (group.label(rule), dataset_name(dataset), words, seeds, *(joined(sorted(names)) for names in each))
                )
        return found

    @property
    def cells(self) -> list[tuple[str, ...]]:
        return self.all_cells[:MOST_CELLS]

    @property
    def cells_left_out(self) -> int:
        return len(self.all_cells[MOST_CELLS:])

    @cached_property
    def errors(self) -> list[str]:
        """Of failed runs, and of runs that could not be read."""
        failed: dict[str, list[str]] = {}
        for record in self.records:
            if record.status == "failed":
                failed.setdefault(record.error or "failed", []).append(record.key)
        told = [
            f"{error} ({', '.join(keys[:3])}{f' and {len(keys) - 3} more' * (len(keys) > 3)})" for error, keys in failed.items()
        ]
        rest = [f"{len(told) - MOST_ERRORS} other errors: see runs.csv"] if len(told) > MOST_ERRORS else []
        return [*self.left_out, *told[:MOST_ERRORS], *rest]

    @property
    def method(self) -> list[str]:
        return list(METHOD)

    @property
    def about(self) -> list[str]:
        """What a reader must know to compare."""
        return [
            "The last epoch counts; the best one, chosen by test error (or by validation, where images were held out), "
            "is beside it. The paper does not say which epoch its figures are of; its code saved the best by test error.",
            "Our ± divides by the number of seeds less one, the paper's by the number of runs: "
            "for the same spread of three runs ours is 1.22 times as large. The lessons take this into account.",
            "A collapsed run (an error no better than naming one class, in its last epochs) is a result: "
            "it counts in its mean, and is marked.",
            "Times are of the machines named; the paper's are of one A100.",
            *(f"The paper's {slip}" for slip in paper.slips()),
        ]


def _known(made: dict[str, Any], name: str) -> str:
    return str(made.get(name) or "unknown")


def _commit(made: dict[str, Any]) -> str:
    commit = made.get("commit") or "unknown"
    return commit if len(commit) < 12 else commit[:10] + "+" * commit.endswith("+")


def _python(made: dict[str, Any]) -> str:
    return f"{_known(made, 'python')}, torch {_known(made, 'torch')}"
