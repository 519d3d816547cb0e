"""Tables 2 and 3: what C-EP reaches at its best settings, how fast, and what the schedule of updates does to it."""

from __future__ import annotations

from dataclasses import replace

from ebl.report import paper
from ebl.report.cells import Group, Section
from ebl.report.layout import OWN, Block, Entry, Layout, Row, beside, clocked, error_entry, state_of, time_entry
from ebl.report.paper import Published, Theirs
from ebl.report.settings import paper_setting, unlike
from ebl.report.words import clock, counted, dataset_name

COLUMNS = (
    *(("mnist", "top1"), ("mnist", "time"), ("cifar10", "top1"), ("cifar10", "time")),
    *(("cifar100", "top1"), ("cifar100", "top5"), ("cifar100", "time")),
)
NAMES = {"top1": "Top-1", "top5": "Top-5", "time": "Time"}


def best_settings(section: Section) -> Layout:
    """Table 2: who by datasets, with the time of a run."""
    ours: dict[str, list[Row]] = {}
    for group in section.groups:
        entries = tuple(_entry(section, group, *column) for column in COLUMNS)
        ours.setdefault(group.heading or OWN, []).append(Row(f"{group.epochs} epochs", entries))
    blocks = (Block("published", _literature()), *(Block(heading, tuple(rows)) for heading, rows in ours.items()))
    note = (
        f"Test error rates (%) of C-EP after the last epoch, {section.over}, and the time of one run; "
        f"{beside('its Table 2, three runs on an A100')}"
    )
    columns = tuple((dataset_name(dataset), NAMES[name]) for dataset, name in COLUMNS)
    return Layout(section.name, section.title, (note, section.hardware), columns, blocks)


def speed(section: Section) -> Layout:
    """Table 3: schedules by test error, train error and time."""
    ours: list[tuple[bool, Row]] = []
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for group in section.groups:
        cell, theirs, words = group.cells["c-ep", "cifar10"], group.theirs["c-ep", "cifar10"], dict(group.setting)
        is_synchronous = words["order"] == "synchronous"
        seconds[is_synchronous] += [run.seconds for run in cell.done]
        told = [words["order"] or "asynchronous", words["free"], words["nudged"]]
        told.append(unlike(group.setting, paper_setting("cifar10"), ignore=("order", "free", "nudged")))
        label = f"{', '.join(filter(None, told))} ({counted(len(cell.done), 'run')})"
        test = replace(error_entry(cell, "test_error", theirs.test, best=True), note=state_of(cell, 0))
        row = Row(label, (test, error_entry(cell, "train_error", theirs.train), time_entry(cell, theirs.time)))
        ours.append((not is_synchronous, row))
    ours.sort(key=lambda pair: pair[0])
    first, second = (clock(row["time"]) for row in paper.table(3)["rows"])
    ratio = f"In the paper the synchronous setting takes {first / second:.1f} times as long"
    if all(seconds.values()):
        ratio += f", here {min(seconds[True]) / min(seconds[False]):.1f} times (the fastest run of each)"
    note = (
        f"C-EP on CIFAR-10 at its best setting: error rates (%) of the last epoch, {section.over}, "
        f"and the time of one run; {beside('its Table 3, on an A100')}"
    )
    columns = (("CIFAR-10", "Test"), ("CIFAR-10", "Train"), ("CIFAR-10", "Time"))
    blocks = (Block("published", _schedules()), Block("here", tuple(row for _, row in ours)))
    return Layout(section.name, section.title, (note, ratio, section.hardware), columns, blocks)


def _entry(section: Section, group: Group, dataset: str, name: str) -> Entry:
    cell, theirs = group.cells.get(("c-ep", dataset)), group.theirs.get(("c-ep", dataset), Theirs())
    if name == "time":
        return time_entry(cell, theirs.time)
    if name == "top5":
        return error_entry(cell, "test_top5_error", theirs.top5)
    return replace(error_entry(cell, "test_error", theirs.test, best=True), note=state_of(cell, section.most_seeds))


def _literature() -> tuple[Row, ...]:
    """What others and the paper had reported."""
    printed: dict[str, dict[tuple[str, str], str]] = {}
    for row in paper.table(2)["rows"]:
        who = f"{row['who']}, {row['epochs']} epochs" if "epochs" in row else row["who"]
        figures = {(row["dataset"], name): str(row[name]) for name in ("top1", "top5") if name in row}
        printed.setdefault(who, {}).update(figures | {(row["dataset"], "time"): clocked(row.get("time"))})
    return tuple(
        Row(who, tuple(Entry(figures.get(c, "")) for c in COLUMNS), published=True, ruled=who == "the paper, 100 epochs")
        for who, figures in printed.items()
    )


def _schedules() -> tuple[Row, ...]:
    rows = []
    for row in paper.table(3)["rows"]:
        figures = (Published(row[name], row.get(f"{name}_std")) for name in ("test", "train"))
        label = f"{row['order']}, {row['bits']} bits, T = {row['free']}, K = {row['nudged']} ({counted(row['runs'], 'run')})"
        rows.append(Row(label, (*(Entry(str(figure)) for figure in figures), Entry(clocked(row["time"]))), published=True))
    return tuple(rows)
