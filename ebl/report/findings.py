"""The lessons of a report: each setting's verdicts by dataset, and what the paper's own figures say to the same questions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ebl.report.cells import Group, Section
from ebl.report.lessons import LESSONS, SEVEN, Lesson, Samples, Verdict, contradictions, judge, overall
from ebl.report.words import dataset_name


@dataclass(frozen=True)
class Answer:
    """To one lesson."""

    lesson: Lesson
    ours: dict[str, Verdict]  # by dataset
    theirs: dict[str, Verdict]  # where the paper has figures for these datasets and this setting
    against: tuple[tuple[str, str], ...]  # dataset, and where we contradict the paper

    @property
    def ours_overall(self) -> str:
        return overall(self.lesson, self.ours)

    @property
    def theirs_overall(self) -> str:
        return overall(self.lesson, self.theirs)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Each comparison: dataset, pair, here, outcome, in the paper, outcome."""
        found: list[tuple[str, ...]] = []
        for dataset, verdict in self.ours.items():
            theirs = {(pair.first, pair.second): pair for pair in self.theirs[dataset].pairs} if dataset in self.theirs else {}
            for pair in verdict.pairs:
                other = theirs.get((pair.first, pair.second))
                told = (str(other.difference), other.told) if other else ("", "")
                found.append((dataset_name(dataset), pair.name, str(pair.difference), pair.told, *told))
        return found


@dataclass(frozen=True)
class Findings:
    """The five answers of one group of runs."""

    title: str
    heading: str  # its setting
    datasets: tuple[str, ...]
    answers: tuple[Answer, ...]

    @property
    def names(self) -> list[str]:
        return [dataset_name(dataset) for dataset in self.datasets]


def find(sections: Iterable[Section]) -> list[Findings]:
    """For each group with rules to compare."""
    found = [
        _find(section, group)
        for section in sections
        if section.name in ("table1", "table6", "grid")
        for group in section.groups
    ]
    return [findings for findings in found if any(answer.rows for answer in findings.answers)]


def _find(section: Section, group: Group) -> Findings:
    ours = {dataset: _ours(group, dataset) for dataset in group.datasets}
    ours = {dataset: samples for dataset, samples in ours.items() if len(samples) > 1}
    theirs = {dataset: _theirs(group, dataset, samples) for dataset, samples in ours.items()}
    answers = []
    for lesson in LESSONS:
        mine = {dataset: judge(lesson, samples, dataset) for dataset, samples in ours.items()}
        papers = {dataset: judge(lesson, samples, dataset) for dataset, samples in theirs.items() if samples}
        asked = [dataset for dataset in papers if lesson.where in ("", dataset)]
        against = [(dataset_name(d), line) for d in asked for line in contradictions(lesson, mine[d], papers[d])]
        answers.append(Answer(lesson, mine, papers, tuple(against)))
    return Findings(section.title, group.heading, tuple(ours), tuple(answers))


def _ours(group: Group, dataset: str) -> Samples:
    """Test errors over seeds, of the energy-based rules that have finished runs."""
    found = {rule: group.cells[rule, dataset].percent("test_error") for rule in SEVEN if (rule, dataset) in group.cells}
    return {rule: sample for rule, sample in found.items() if sample is not None}


def _theirs(group: Group, dataset: str, rules: Samples) -> Samples:
    """The paper's test errors of the same rules."""
    found = {rule: group.theirs[rule, dataset].test for rule in rules if (rule, dataset) in group.theirs}
    return {rule: published.sample for rule, published in found.items() if published is not None}
