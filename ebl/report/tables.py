"""The tables of a report, laid out as the paper's: rules by datasets here, the best settings in best.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ebl.report import paper
from ebl.report.best import best_settings, speed
from ebl.report.cells import Cell, Group, Section
from ebl.report.layout import OWN, Block, Entry, Layout, Row, beside, clocked, error_entry, mark_lowest, state_of, time_entry
from ebl.report.lessons import SEVEN
from ebl.report.paper import Theirs
from ebl.report.samples import Sample
from ebl.report.settings import described, shared
from ebl.report.words import BASELINES, dataset_name, duration

_SOURCE = {"table1": "its Tables 1 and 7, three runs", "table6": "its Table 6, three runs"}


def lay_out(section: Section) -> Layout:
    return {"table2": best_settings, "table3": speed}.get(section.name, comparison)(section)


def comparison(section: Section) -> Layout:
    """Rules by datasets, test and train: Tables 1 and 6, and whatever has no table in the paper."""
    single = section.name == "table6"
    columns = [(dataset_name(dataset), name) for dataset in section.datasets for name in ("Test", "Train")]
    columns += [("SVHN", "Test, each run")] * single

    def entries(group: Group, rule: str) -> tuple[Entry, ...]:
        found = []
        for dataset in section.datasets:
            cell, theirs = group.cells.get((rule, dataset)), group.theirs.get((rule, dataset), Theirs())
            test = error_entry(cell, "test_error", theirs.test, best=True)
            found.append(replace(test, note=state_of(cell, section.most_seeds)))
            found.append(error_entry(cell, "train_error", theirs.train))
        return (*found, _singles(group.cells[rule, "svhn"], rule)) if single else tuple(found)

    tests = [i for i, (_, name) in enumerate(columns) if name == "Test"]
    blocks = []
    for block, group in zip(_blocks(section, entries), section.groups, strict=True):
        ours = [i for i, rule in enumerate(group.rules) if rule in SEVEN]
        blocks.append(replace(block, rows=mark_lowest(block.rows, ours, tests)))
    under = beside(_SOURCE[section.name]) if section.name in _SOURCE else "under them our best epoch's where that is another"
    note = [f"Error rates (%) of the last epoch, {section.over}; {under}"]
    if section.name not in _SOURCE:
        betas = {b for group in section.groups for b in group.betas.values() if b is not None}
        strength = f", β = {min(betas):g}" if len(betas) == 1 else ""
        note.append(f"All with {described(shared(group.setting for group in section.groups))}{strength}")
    return Layout(section.name, section.title, (*note, section.hardware), tuple(columns), tuple(blocks))


def wall_clock(section: Section) -> Layout:
    """Time of one run and of one epoch, by rule and dataset."""

    def entries(group: Group, rule: str) -> tuple[Entry, ...]:
        found = []
        for cell in (group.cells.get((rule, dataset)) for dataset in section.datasets):
            epochs = [run.seconds / max(run.epoch, 1) for run in cell.done] if cell else []
            found.append(replace(time_entry(cell), note=cell.unfinished if cell else ""))
            found.append(Entry(duration(Sample.of(epochs).mean) if epochs else ""))
        return tuple(found)

    note = "Wall-clock of one run, evaluations included, and of one of its epochs, means over seeds"
    blocks = _blocks(section, entries)
    times = {dataset: theirs.time for group in section.groups for (_, dataset), theirs in group.theirs.items()}
    if times:
        run = [entry for dataset in section.datasets for entry in (Entry(clocked(times[dataset])), Entry())]
        blocks = (Block("", (Row("the paper, on one A100", tuple(run), published=True),)), *blocks)
    columns = tuple((dataset_name(dataset), name) for dataset in section.datasets for name in ("Run", "Epoch"))
    return Layout(f"{section.name}-time", section.title, (note, section.hardware), columns, blocks)


def _blocks(section: Section, entries: Callable[[Group, str], tuple[Entry, ...]]) -> tuple[Block, ...]:
    """A block a setting, a row a rule; a line between the baselines and the others."""
    found = []
    for group in section.groups:
        before = ["", *group.rules]
        rows = [
            Row(group.label(rule), entries(group, rule), ruled=previous in BASELINES and rule not in BASELINES)
            for previous, rule in zip(before, group.rules, strict=False)
        ]
        found.append(Block(group.heading or (OWN if group.theirs else ""), tuple(rows)))
    return tuple(found)


def _singles(cell: Cell, rule: str) -> Entry:
    """Each run's test error, and the paper's where its text gives them."""
    ours = (f"{100 * run.final['test_error']:.2f}" for run in cell.done if run.final)
    return Entry(", ".join(ours), ", ".join(map(str, paper.singles(rule))))
