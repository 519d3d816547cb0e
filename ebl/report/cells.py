"""Runs sorted into the tables of a report: a section a table, a group a setting, a cell a rule on a dataset with its seeds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ebl.report import paper
from ebl.report.paper import Figures
from ebl.report.samples import Sample
from ebl.report.settings import Setting, belongs, beta, paper_setting, setting, shared, unlike
from ebl.report.words import DATASETS, RULES, joined, order, rule_name
from ebl.study.record import Record


@dataclass(frozen=True)
class Cell:
    """One rule on one dataset, a run a seed."""

    runs: tuple[Record, ...]

    @cached_property
    def done(self) -> list[Record]:
        return [run for run in self.runs if run.status == "done" and run.final]

    @cached_property
    def collapsed(self) -> int:
        return sum(run.collapsed for run in self.done)

    def percent(self, name: str, best: bool = False) -> Sample | None:
        """An error over seeds: of the last epoch, or of each run's best one."""
        lines: Iterable[dict[str, Any] | None] = (run.best if best else run.final for run in self.done)
        values = [100 * line[name] for line in lines if line and name in line]
        return Sample.of(values) if values else None

    @cached_property
    def seconds(self) -> Sample | None:
        return Sample.of([run.seconds for run in self.done]) if self.done else None

    @property
    def unfinished(self) -> str:
        """What is still to come, or went wrong; empty where every run is done."""
        pending = [run for run in self.runs if run.status != "done" or not run.final]
        states = Counter(run.status for run in pending)
        said = [f"{states[state]} {state}" for state in ("running", "failed", "waiting") if states[state]]
        if states["running"]:
            at = (f"{run.epoch}/{run.config['epochs']}" for run in pending if run.status == "running")
            said[0] += f" ({', '.join(at)})"
        return ", ".join(said) if len(self.runs) > 1 else "".join(said).removeprefix("1 ")


@dataclass(frozen=True)
class Group:
    """Runs that differ in rule, dataset and seed only, but for a strength of perturbation that is a rule's own."""

    heading: str  # how the setting differs: from the paper's, or among these runs
    epochs: int
    setting: Setting  # of its first run
    cells: dict[tuple[str, str], Cell]
    betas: dict[tuple[str, str], float | None]  # by rule and dataset
    theirs: Figures  # the paper's

    @cached_property
    def rules(self) -> list[str]:
        return sorted({rule for rule, _ in self.cells}, key=lambda rule: order(rule, RULES))

    @cached_property
    def datasets(self) -> list[str]:
        return sorted({dataset for _, dataset in self.cells}, key=lambda dataset: order(dataset, DATASETS))

    def label(self, rule: str) -> str:
        """A row's name: the rule, with its strength where others have another."""
        own = {b for (name, _), b in self.betas.items() if name == rule}
        others = {b for (name, _), b in self.betas.items() if name != rule} - {None}
        told = len(own) == 1 and None not in own and bool(others - own)
        return f"{rule_name(rule)} (β = {next(iter(own)):g})" if told else rule_name(rule)


@dataclass(frozen=True)
class Section:
    name: str  # table1, table2, table3, table6, or grid
    title: str
    groups: tuple[Group, ...]

    @cached_property
    def datasets(self) -> list[str]:
        found = {dataset for group in self.groups for dataset in group.datasets}
        return sorted(found, key=lambda dataset: order(dataset, DATASETS))

    @cached_property
    def cells(self) -> list[Cell]:
        return [cell for group in self.groups for cell in group.cells.values()]

    @cached_property
    def most_seeds(self) -> int:
        return max((len(cell.done) for cell in self.cells), default=0)

    @property
    def over(self) -> str:
        """What the figures are, and over how many seeds."""
        numbers = sorted({len(cell.done) for cell in self.cells} - {0})
        if len(numbers) == 1:
            return "from one seed each" if numbers == [1] else f"mean ± standard deviation over {numbers[0]} seeds"
        return f"mean ± standard deviation over {numbers[0]} to {numbers[-1]} seeds" if numbers else "none is finished yet"

    @property
    def hardware(self) -> str:
        """What the runs that are done ran on."""
        seen: Counter[str] = Counter()
        for run in (run for cell in self.cells for run in cell.done):
            engine = run.provenance.get("engine")
            where = run.provenance.get("hardware") or "unknown hardware"
            seen[f"{where} with the {engine} engine" if engine else where] += 1
        return f"Run on {joined(list(seen))}" if seen else ""


def sections(records: Iterable[Record]) -> list[Section]:
    """The paper's tables that have runs here, then the runs that are in none of them."""
    kinds = _kinds(list(records))
    compared, best = kinds["comparison"], kinds["best"]
    on_mnist = [run for run in compared if run.config["rule"] == "c-ep" and run.config["dataset"] == "mnist"]
    if best or len(on_mnist) == len(compared):  # the best setting on MNIST is the comparison's
        best = best + on_mnist
        compared = [] if len(on_mnist) == len(compared) else compared
    settled = [run for run in best if not _is_synchronous(run)]
    lengths = {run.config["epochs"] for run in best if _is_synchronous(run)}  # of what there is to compare with
    speed = [run for run in best if run.config["dataset"] == "cifar10" and run.config["epochs"] in lengths]
    found = [
        _section("table1", "Comparison of the rules", compared, _unlike("comparison"), lambda _: paper.comparison()),
        _section("table2", "Best settings", settled, _unlike_best, lambda run: paper.best(run.config["epochs"])),
        _section("table3", "Synchronous and asynchronous updates", speed, _unlike_best, _speed),
        _section("table6", "SVHN with gain 0.7", kinds["svhn"], _unlike("svhn"), lambda _: paper.svhn()),
        _grid(kinds[None]),
    ]
    return [section for section in found if section.groups]


def _kinds(records: Sequence[Record]) -> dict[str | None, list[Record]]:
    """The runs by the paper's table they belong to. Rules without a strength go with those they were run beside: to their own
    table where these have another strength than the paper's, to both where some have."""
    found: dict[str | None, list[Record]] = defaultdict(list)
    beside: dict[tuple[Setting, str], set[str | None]] = defaultdict(set)
    kind_of = [belongs(record.config) for record in records]
    for record, kind in zip(records, kind_of, strict=True):
        if beta(record.config) is not None:
            beside[setting(record.config), record.config["dataset"]].add(kind)
    for record, kind in zip(records, kind_of, strict=True):
        others = beside[setting(record.config), record.config["dataset"]] if beta(record.config) is None else set()
        for one in {kind} if kind is None or not others else others & {kind, None} or {kind}:
            found[one].append(record)
    return found


def _section(
    name: str, title: str, runs: Sequence[Record], heading: Callable[[Record], str], theirs: Callable[[Record], Figures]
) -> Section:
    """Groups by how a run differs from the paper's; the paper's own setting has no words and comes first."""
    groups: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for run in runs:
        groups[heading(run), run.config["epochs"]].append(run)
    ordered = sorted(groups.items(), key=lambda item: item[0])
    return Section(name, title, tuple(g for (words, _), found in ordered for g in _by_beta(words, found, theirs(found[0]))))


def _grid(runs: Sequence[Record]) -> Section:
    """Groups by the whole setting, named by their study's label where that tells them apart, else by what they do not share."""
    groups: dict[Setting, list[Record]] = defaultdict(list)
    strengths: dict[str, set[float | None]] = defaultdict(set)
    for run in runs:
        groups[setting(run.config)].append(run)
        strengths[run.config["rule"]].add(beta(run.config))
    differ = any(len(found) > 1 for found in strengths.values())
    common = shared(groups) if groups else ()
    strong = {words: [run for run in found if beta(run.config) is not None] or found for words, found in groups.items()}
    labels = {words: {run.label for run in found} for words, found in strong.items()}
    often = Counter(label for found in labels.values() for label in found)
    made: list[Group] = []
    for words, found in groups.items():
        label = next(iter(labels[words])) if len(labels[words]) == 1 else ""
        named = bool(label) and often[label] == 1
        made += _by_beta(label if named else unlike(words, common), found, {}, differ and not named)
    return Section("grid", "Rules and datasets", tuple(made))


def _by_beta(heading: str, runs: Sequence[Record], theirs: Figures, told: bool = False) -> list[Group]:
    """One group, unless a rule was run with several strengths: then one for each, all with the rules that have none. `told`:
    name the strength also where there is one only."""
    strengths: dict[tuple[str, str], set[float | None]] = defaultdict(set)
    for run in runs:
        strengths[run.config["rule"], run.config["dataset"]].add(beta(run.config))
    if all(len(found) == 1 for found in strengths.values()):
        only = {b for found in strengths.values() for b in found if b is not None}
        words = f"β = {min(only):g}" if told and len(only) == 1 else ""
        return [_group(", ".join(filter(None, [heading, words])), runs, theirs)]
    each = sorted({b for found in strengths.values() for b in found if b is not None})
    named = {b: ", ".join(filter(None, [heading, f"β = {b:g}"])) for b in each}
    return [_group(named[b], [run for run in runs if beta(run.config) in (b, None)], theirs) for b in each]


def _group(heading: str, runs: Sequence[Record], theirs: Figures) -> Group:
    cells: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for run in runs:
        cells[run.config["rule"], run.config["dataset"]].append(run)
    by_seed = {key: Cell(_one_a_seed(found)) for key, found in cells.items()}
    betas = {(run.config["rule"], run.config["dataset"]): beta(run.config) for run in runs}
    return Group(heading, runs[0].config["epochs"], setting(runs[0].config), by_seed, betas, theirs)


def _one_a_seed(runs: Sequence[Record]) -> tuple[Record, ...]:
    """A seed that was run twice, say on two machines, tells nothing of the spread: one run is taken, a finished one first."""
    by_seed: dict[int, Record] = {}
    for run in sorted(runs, key=lambda run: (run.config["seed"], run.status != "done", run.key)):
        by_seed.setdefault(run.config["seed"], run)
    return tuple(by_seed.values())


def _unlike(column: str) -> Callable[[Record], str]:
    return lambda run: unlike(setting(run.config), paper_setting(column))


def _unlike_best(run: Record) -> str:
    return unlike(setting(run.config), paper_setting(run.config["dataset"]), ignore=("epochs",))


def _is_synchronous(run: Record) -> bool:
    return bool(run.config["free"]["order"] == "synchronous")


def _speed(run: Record) -> Figures:
    return paper.speed("synchronous" if _is_synchronous(run) else "asynchronous")
