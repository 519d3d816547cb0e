"""The statistics of the lessons against scipy and tables, their verdicts against what the paper says of its own figures."""

from itertools import combinations

import pytest

from ebl.report import paper
from ebl.report.lessons import ALIKE, LEAST, LESSONS, MEANING, contradictions, judge, overall
from ebl.report.page import LOOKS
from ebl.report.samples import Sample, compare, quantile

ALIKE_ON_MNIST, WEAK, NEGATIVE, TWO_SIDED, EP = LESSONS


def sample(mean: float, std: float | None = 0.1, runs: int = 3) -> Sample:
    return Sample(mean, std, runs)


def published(dataset: str, figures: paper.Figures) -> dict[str, Sample]:
    return {rule: theirs.test.sample for (rule, d), theirs in figures.items() if d == dataset and theirs.test}


def verdicts(lesson, figures=None):
    figures = paper.comparison() if figures is None else figures
    return {dataset: judge(lesson, published(dataset, figures)) for dataset in dict.fromkeys(d for _, d in figures)}


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (30, 2.0423), (1e6, 1.9600)]
)
def test_quantiles_are_those_of_printed_tables(df, t):
    assert quantile(df) == pytest.approx(t, rel=1e-4)


def test_intervals_are_welchs():
    stats = pytest.importorskip("scipy.stats")
    for a, b in combinations(([3.7, 3.9, 80.4], [10.4, 10.5, 10.2], [9.8, 10.4], [0.5, 0.51, 0.49, 0.6, 0.45]), 2):
        theirs = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        ours = compare(Sample.of(a), Sample.of(b)).interval
        assert ours == pytest.approx(tuple(theirs), rel=2e-3)


def test_a_sample_is_its_mean_and_the_root_of_its_squares_over_one_less():
    assert Sample.of([1.0, 2.0, 6.0]) == Sample(3.0, pytest.approx(7**0.5), 3)  # squares 4 + 1 + 9 over 2
    assert Sample.of([4.0]) == Sample(4.0, None, 1)


def test_every_pair_of_the_papers_rules_is_judged_as_scipy_judges_it():
    stats = pytest.importorskip("scipy.stats")
    seen = set()
    for lesson in LESSONS[1:]:
        for dataset, verdict in verdicts(lesson).items():
            rules = published(dataset, paper.comparison())
            for pair in verdict.pairs:
                a, b = rules[pair.first], rules[pair.second]
                if a.std == b.std == 0:
                    continue
                p = stats.ttest_ind_from_stats(a.mean, a.std, 3, b.mean, b.std, 3, equal_var=False).pvalue
                decided = p < 0.05 and abs(a.mean - b.mean) >= LEAST
                assert (pair.outcome in ("first", "second")) == decided, (dataset, str(pair), p)
                if decided:
                    assert pair.outcome == ("first" if a.mean < b.mean else "second")
                seen.add(pair.outcome)
    assert seen == {"first", "second", "alike", "open"}


# What follows is what the paper's text says of Table 1, with the exceptions that it or the table names.


def test_the_papers_figures_on_mnist_are_alike_for_six_of_seven_rules():
    verdict = judge(ALIKE_ON_MNIST, published("mnist", paper.comparison()))
    assert verdict.word == "mostly alike"
    assert verdict.why.endswith("but for P-EP, which the spread leaves open")  # 1.66 ± 0.80
    assert {v.word for d, v in verdicts(ALIKE_ON_MNIST).items() if d != "mnist"} == {"apart"}


def test_the_papers_figures_never_speak_for_weak_positive_perturbations():
    found = verdicts(WEAK)
    assert {v.word for v in found.values()} <= {"holds", "in part", "open"}
    assert "the sign is for it in 10" in overall(WEAK, found)  # CL is better on all tasks, says the text
    assert found["cifar10"].word == "holds"
    assert found["fashion-mnist"].pairs[1].outcome == "open"  # P-CpL: 64.70 ± 35.77, runs that learned and runs that did not


def test_the_papers_figures_speak_for_negative_perturbations_but_on_svhn():
    found = verdicts(NEGATIVE)
    assert [found[d].word for d in ("cifar10", "cifar100")] == ["holds", "holds"]
    assert found["fashion-mnist"].word == "in part"
    assert all(pair.difference.mean < 0 for d in ("fashion-mnist", "cifar10", "cifar100") for pair in found[d].pairs)
    assert found["svhn"].word == "opposite"
    assert found["svhn"].why == "against: CL better than N-EP and CL better than N-CpL"


def test_with_gain_07_no_pair_on_svhn_speaks_against_negative_perturbations():
    found = judge(NEGATIVE, published("svhn", paper.svhn()))
    assert found.word == "in part"
    assert {pair.outcome for pair in found.pairs if pair.first == "n-ep"} == {"open"}  # 3.73, 3.87 and 80.41


def test_the_papers_figures_speak_for_two_sided_perturbations_but_in_one_pair():
    found = verdicts(TWO_SIDED)
    assert found["cifar100"].word == "holds"
    against = [(d, p.first, p.second) for d, v in found.items() for p in v.pairs if p.outcome == "second"]
    assert against == [("cifar10", "c-cpl", "n-cpl")]  # 14.9 ± 0.1 against 13.5 ± 0.3
    unlocked = {(p.first, p.second): p.outcome for p in found["svhn"].pairs}
    assert unlocked["c-ep", "n-ep"] == unlocked["c-cpl", "n-cpl"] == "first"


def test_the_papers_figures_speak_for_ep():
    """Of negative and of two-sided perturbations; of weak positive ones the text says that CpL performs better."""
    found = verdicts(EP)
    for dataset in ("cifar10", "cifar100"):
        outcome = {(p.first, p.second): p.outcome for p in found[dataset].pairs}
        assert outcome["c-ep", "c-cpl"] == outcome["n-ep", "n-cpl"] == "first"
    against = [(d, p.first) for d, v in found.items() for p in v.pairs if p.outcome == "second"]
    assert against == []
    assert ("p-ep", "p-cpl") not in EP.pairs


# Verdicts on figures made for the purpose.


@pytest.mark.parametrize(
    ("cl", "p_ep", "p_cpl", "word"),
    [
        (sample(10), sample(20), sample(20), "holds"),
        (sample(10), sample(20), sample(10.2), "in part"),
        (sample(10), sample(20), sample(5), "mixed"),
        (sample(10), sample(5), sample(5), "opposite"),
        (sample(10), sample(10.2), sample(9.9), "alike"),
        (sample(10), sample(30, 40), sample(40, 50), "open"),
        (sample(10, None, 1), sample(20, None, 1), sample(20, None, 1), "one seed"),
        (sample(10), sample(20, None, 1), sample(20, None, 1), "one seed"),
        (sample(10), sample(10.05, 0.001), sample(10.05, 0.001), "alike"),
    ],
)
def test_verdicts(cl, p_ep, p_cpl, word):
    assert judge(WEAK, {"cl": cl, "p-ep": p_ep, "p-cpl": p_cpl}).word == word


def test_a_difference_smaller_than_the_least_is_none_however_sure():
    near = {"cl": sample(10, 0), "p-ep": sample(10 + 0.9 * LEAST, 0), "p-cpl": sample(10 + 0.9 * LEAST, 0)}
    assert judge(WEAK, near).word == "alike"
    assert judge(WEAK, {**near, "p-ep": sample(10 + 1.1 * LEAST, 0)}).word == "in part"


def test_one_seed_gives_the_sign_alone():
    verdict = judge(WEAK, {"cl": sample(10, None, 1), "p-ep": sample(20, None, 1), "p-cpl": sample(9, None, 1)})
    assert verdict.why == "the sign is for it in 1 of 2 pairs"
    assert [pair.told for pair in verdict.pairs] == ["CL lower, one seed", "P-CpL lower, one seed"]


def test_pairs_that_were_not_run_are_counted_and_keep_a_lesson_from_holding():
    verdict = judge(WEAK, {"cl": sample(10), "p-ep": sample(20)})
    assert (verdict.word, verdict.why) == ("in part", "1 of 1 pair beyond the spread; 1 pair not run")
    assert judge(WEAK, {"cl": sample(10)}).word == "no runs"


@pytest.mark.parametrize(
    ("others", "word"),
    [
        ({"c-ep": sample(0.44, 0.03), "cl": sample(0.61, 0.02)}, "alike"),
        ({"c-ep": sample(0.44, 0.03), "cl": sample(0.44 + 3 * ALIKE, 0.02)}, "apart"),
        ({"c-ep": sample(0.44, 0.03), "n-ep": sample(0.5, 0.03), "cl": sample(1.6, 0.9)}, "mostly alike"),
        ({"c-ep": sample(0.44, 0.03), "cl": sample(1.6, 0.9)}, "open"),
        ({"c-ep": sample(0.44, None, 1), "cl": sample(1.6, None, 1)}, "one seed"),
        ({"c-ep": sample(0.44), "tbp": sample(90)}, "no runs"),
    ],
)
def test_rules_are_alike_within_a_point_of_the_best(others, word):
    assert judge(ALIKE_ON_MNIST, others).word == word


def test_contradictions_are_pairs_decided_both_ways():
    theirs = judge(WEAK, {"cl": sample(10), "p-ep": sample(20), "p-cpl": sample(11, 5)})
    ours = judge(WEAK, {"cl": sample(30), "p-ep": sample(20), "p-cpl": sample(20)})
    assert contradictions(WEAK, ours, theirs) == ["CL − P-EP = +10.00 [+9.77, +10.23], in the paper −10.00 [−10.23, −9.77]"]
    assert contradictions(WEAK, theirs, theirs) == []


def test_pairs_alike_on_one_side_and_surely_over_a_point_apart_on_the_other_contradict():
    alike = judge(WEAK, {"cl": sample(10), "p-ep": sample(10.1), "p-cpl": sample(10)})
    apart = judge(WEAK, {"cl": sample(10), "p-ep": sample(90), "p-cpl": sample(10.6)})  # the second by less than a point
    said = ["CL − P-EP = −0.10 [−0.33, +0.13], in the paper −80.00 [−80.23, −79.77]"]
    assert contradictions(WEAK, alike, apart) == said
    assert contradictions(WEAK, apart, alike) == ["CL − P-EP = −80.00 [−80.23, −79.77], in the paper −0.10 [−0.33, +0.13]"]


def test_a_lesson_about_one_dataset_is_not_asked_of_others():
    two = {"cl": sample(10), "p-ep": sample(20)}
    assert judge(ALIKE_ON_MNIST, two, "cifar10").word == "not asked"
    assert judge(ALIKE_ON_MNIST, two, "mnist").word == "apart"
    assert judge(WEAK, two, "cifar10").word == "in part"


def test_a_rule_surely_alike_on_one_side_and_surely_apart_on_the_other_contradicts():
    alike = LESSONS[0]
    theirs = judge(alike, {"cl": sample(0.5), "p-ep": sample(1.7, 0.8), "n-ep": sample(0.4), "c-cpl": sample(3)})
    ours = judge(alike, {"cl": sample(2), "p-ep": sample(5), "n-ep": sample(0.5), "c-cpl": sample(0.4)})
    assert contradictions(alike, ours, theirs) == [
        "C-CpL − CL = −1.60 [−1.83, −1.37], in the paper N-EP − CL = −0.10 [−0.33, +0.13]",
        "C-CpL the best, in the paper N-EP − C-CpL = −2.60 [−2.83, −2.37]",
    ]
    assert contradictions(alike, theirs, theirs) == []
    once = judge(alike, {rule: sample(error, None, 1) for rule, error in (("cl", 2), ("n-ep", 0.5), ("c-cpl", 0.4))})
    assert contradictions(alike, once, theirs) == []


def test_every_verdict_has_a_meaning_and_a_look():
    assert set(MEANING) == set(LOOKS)
