"""The paper's five lessons, asked of any set of error rates: ours, or the paper's own.

Two rules are compared by Welch's interval for the difference of their mean test errors over seeds. One is better where the
interval leaves out 0 and the difference is at least LEAST; they are alike where it lies within ALIKE; else nothing is known.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from ebl.report.samples import LEVEL, Difference, Sample, compare
from ebl.report.words import counted, joined, rule_name

LEAST = 0.1  # percentage points of test error
ALIKE = 1.0
METHOD = (
    "Two rules are compared by the difference of their mean test errors after the last epoch, "
    f"with Welch's {LEVEL:.0%} interval over seeds, each pair by itself.",
    f"Better: the interval leaves out 0 and the difference is at least {LEAST:g} points. Alike: the interval lies within "
    f"±{ALIKE:g} point. All else is open. One seed shows a sign and no spread.",
)

Samples = Mapping[str, Sample]
"""Test errors (%) by rule."""


@dataclass(frozen=True)
class Lesson:
    number: int
    claim: str
    pairs: tuple[tuple[str, str], ...]  # the first is claimed to be better; none: all are claimed to be alike
    where: str = ""  # the one dataset it is about


SEVEN = ("cl", "p-ep", "n-ep", "c-ep", "p-cpl", "n-cpl", "c-cpl")
LESSONS = (
    Lesson(1, "The rules are alike on MNIST", (), "mnist"),
    Lesson(2, "Weak positive perturbations are worse than a strong one", (("cl", "p-ep"), ("cl", "p-cpl"))),
    Lesson(3, "Negative perturbations beat positive ones", tuple(product(("n-ep", "n-cpl"), ("cl", "p-ep", "p-cpl")))),
    Lesson(
        4,
        "Two-sided perturbations beat one-sided ones",
        (*product(("c-ep",), ("p-ep", "n-ep")), *product(("c-cpl",), ("cl", "p-cpl", "n-cpl"))),
    ),
    Lesson(5, "EP beats CpL", (("n-ep", "n-cpl"), ("c-ep", "c-cpl"))),  # of weak positive ones the paper says the opposite
)


@dataclass(frozen=True)
class Pair:
    first: str
    second: str
    difference: Difference  # of the first's error to the second's: negative where the first is better
    outcome: str  # first, second, alike, open; or, from one seed, lower, higher

    @property
    def name(self) -> str:
        return f"{rule_name(self.first)} − {rule_name(self.second)}"

    @property
    def told(self) -> str:
        """The outcome in words."""
        better = {"first": self.first, "second": self.second}
        lower = {"lower": self.first, "higher": self.second}
        if self.outcome in better:
            return f"{rule_name(better[self.outcome])} better"
        return f"{rule_name(lower[self.outcome])} lower, one seed" if self.outcome in lower else self.outcome

    @property
    def reach(self) -> str:
        """Where the first is the best of all: whether the second is surely within a point of it."""
        low, high = self.difference.interval or (-math.inf, math.inf)
        return "far" if high < -ALIKE else "near" if low > -ALIKE else "open"

    @property
    def far_apart(self) -> bool:
        """Surely more than a point."""
        low, high = self.difference.interval or (-math.inf, math.inf)
        return high < -ALIKE or low > ALIKE

    def __str__(self) -> str:
        return f"{self.name} = {self.difference}"


@dataclass(frozen=True)
class Verdict:
    word: str  # a key of MEANING
    pairs: tuple[Pair, ...]
    why: str


MEANING = {
    "holds": "every pair shows it beyond the spread",
    "in part": "some pairs show it beyond the spread, none the opposite",
    "mixed": "some pairs show it and some the opposite, beyond the spread",
    "opposite": "some pairs show the opposite beyond the spread, none the lesson",
    "alike": "no difference beyond a point",
    "mostly alike": "most rules within a point of the best, none surely further",
    "apart": "some rules are surely over a point from the best",
    "open": "the spread over seeds is too large to tell",
    "one seed": "signs only: with one seed no spread is known",
    "no runs": "the rules it compares are not here",
    "not asked": "it is about another dataset",
}


def judge(lesson: Lesson, samples: Samples, dataset: str = "") -> Verdict:
    """What one dataset's test errors say of a lesson."""
    if lesson.where not in ("", dataset) and dataset:
        return Verdict("not asked", (), "")
    if not lesson.pairs:
        return _alike({rule: samples[rule] for rule in SEVEN if rule in samples})
    pairs = tuple(_pair(a, b, samples) for a, b in lesson.pairs if a in samples and b in samples)
    seen = Counter(pair.outcome for pair in pairs)
    missing = len(lesson.pairs) - len(pairs)
    known = sum(seen[outcome] for outcome in ("first", "second", "alike", "open"))
    if not pairs:
        return Verdict("no runs", (), "")
    if not known:
        word = "one seed"
        why = f"the sign is for it in {seen['lower']} of {counted(len(pairs), 'pair')}"
    elif seen["second"]:
        word = "mixed" if seen["first"] else "opposite"
        why = _list("against", [pair for pair in pairs if pair.outcome == "second"])
    elif seen["first"]:
        word = "holds" if seen["first"] == len(lesson.pairs) else "in part"
        why = f"{seen['first']} of {counted(len(pairs), 'pair')} beyond the spread"
    else:
        word = "alike" if seen["alike"] == len(pairs) else "open"
        why = "" if word == "alike" else _leaning(pairs)
    return Verdict(word, pairs, "; ".join(filter(None, [why, f"{counted(missing, 'pair')} not run" if missing else ""])))


def overall(lesson: Lesson, verdicts: Mapping[str, Verdict]) -> str:
    """A line on all datasets together."""
    if lesson.where:
        verdict = verdicts.get(lesson.where)
        return "" if verdict is None else f"{verdict.word}: {verdict.why}" if verdict.why else verdict.word
    pairs = [pair for verdict in verdicts.values() for pair in verdict.pairs]
    seen = Counter(pair.outcome for pair in pairs)
    if not pairs:
        return ""
    lower = sum(pair.difference.mean < 0 for pair in pairs)
    told = {"for it": seen["first"], "against it": seen["second"], "alike": seen["alike"], "open": seen["open"]}
    told["with one seed only"] = seen["lower"] + seen["higher"]
    counts = ", ".join(f"{number} {what}" for what, number in told.items() if number)
    return f"of {counted(len(pairs), 'pair')}, {counts}; the sign is for it in {lower}"


def contradictions(lesson: Lesson, ours: Verdict, papers: Verdict) -> list[str]:
    """Pairs where both are beyond their spreads, in opposite directions, or that are alike on one side and surely more than a
    point apart on the other. Where all are claimed to be alike: rules surely within a point of the best on one side, and surely
    further on the other."""
    found = []
    if not lesson.pairs:
        here, there = _reaches(ours), _reaches(papers)
        for rule in (rule for rule in here if {here[rule][0], there.get(rule, ("", ""))[0]} == {"near", "far"}):
            found.append(f"{here[rule][1]}, in the paper {there[rule][1]}")
        return found
    theirs = {(pair.first, pair.second): pair for pair in papers.pairs}
    for pair in ours.pairs:
        other = theirs.get((pair.first, pair.second))
        if other is None:
            continue
        opposite = {pair.outcome, other.outcome} == {"first", "second"}
        if opposite or any(a.outcome == "alike" and b.far_apart for a, b in ((pair, other), (other, pair))):
            found.append(f"{pair}, in the paper {other.difference}")
    return found


def _reaches(alike: Verdict) -> dict[str, tuple[str, str]]:
    """How far each rule is from the best, and how it is told."""
    found = {pair.second: (pair.reach, str(pair)) for pair in alike.pairs}
    if any(pair.difference.interval for pair in alike.pairs):
        best = alike.pairs[0].first
        found[best] = ("near", f"{rule_name(best)} the best")
    return found


def _pair(a: str, b: str, samples: Samples) -> Pair:
    difference = compare(samples[a], samples[b])
    if difference.interval is None:
        return Pair(a, b, difference, "lower" if difference.mean < 0 else "higher")
    low, high = difference.interval
    if (low > 0 or high < 0) and abs(difference.mean) >= LEAST:
        outcome = "first" if high < 0 else "second"
    else:
        outcome = "alike" if low > -ALIKE and high < ALIKE else "open"
    return Pair(a, b, difference, outcome)


def _alike(samples: Samples) -> Verdict:
    """How far each rule is from the best one."""
    if len(samples) < 2:
        return Verdict("no runs", (), "")
    best = min(samples, key=lambda rule: samples[rule].mean)
    pairs = tuple(_pair(best, rule, samples) for rule in samples if rule != best)
    worst = max(pairs, key=lambda pair: -pair.difference.mean)
    span = f"{samples[best].mean:.2f} to {samples[worst.second].mean:.2f} %"
    if any(pair.difference.interval is None for pair in pairs):
        return Verdict("one seed", pairs, span)
    apart, near, unclear = ([rule_name(p.second) for p in pairs if p.reach == reach] for reach in ("far", "near", "open"))
    if apart:
        return Verdict("apart", pairs, f"{span}; {joined(apart)} over a point from {rule_name(best)}")
    if not unclear:
        return Verdict("alike", pairs, span)
    word = "mostly alike" if 1 + len(near) > len(unclear) else "open"
    left = f"within a point of {rule_name(best)} but for {joined(unclear)}, which the spread leaves open"
    if not near:
        left = f"the spread leaves open who is within a point of {rule_name(best)}"
    return Verdict(word, pairs, f"{span}; {left}")


def _leaning(pairs: tuple[Pair, ...]) -> str:
    lower = sum(pair.difference.mean < 0 for pair in pairs)
    return f"the sign is for it in {lower} of {counted(len(pairs), 'pair')}"


def _list(what: str, pairs: list[Pair]) -> str:
    return f"{what}: {joined([f'{rule_name(pair.second)} better than {rule_name(pair.first)}' for pair in pairs])}"
