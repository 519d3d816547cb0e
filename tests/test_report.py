"""Reports: which table a run belongs to, the figures in it, what is said of unfinished and damaged runs, and the files."""

import csv
import json
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from records import MADE, NINE, as_config, config, done, table1, undone, write_run

from ebl.cli import main
from ebl.errors import InputError
from ebl.report import write_report
from ebl.report.cells import sections
from ebl.report.collect import Report
from ebl.report.curves import MOST_LINES, draw
from ebl.report.latex import escaped
from ebl.report.read import read
from ebl.report.settings import belongs, beta, paper_setting, setting, unlike
from ebl.report.tables import lay_out
from ebl.report.words import clock, duration
from ebl.study.grid import Cell
from ebl.study.store import make_store

FAST = "T ≤ 40, Chebyshev 0.95, settle 5e-4, K = 8, ω = 1.4, zero start"
RESULTS = Path(__file__).parent.parent / "results"


def entries(records, table: str, row: str) -> dict[tuple[str, str], object]:
    """A row's entries by column."""
    layout = next(lay_out(section) for section in sections(records) if section.name == table)
    found = next(r for block in layout.blocks for r in block.rows if r.label == row and not r.published)
    return dict(zip(layout.columns, found.entries, strict=True))


@pytest.mark.parametrize(
    ("made_with", "table"),
    [
        *((config("table1", rule, dataset="svhn"), "comparison") for rule in NINE),
        (config("table1", beta=None), "comparison"),  # the rule's own is the paper's
        (config("table1", beta=0.1), None),
        (config("table1", "r-ep"), "comparison"),
        (config("table1", dataset="kmnist"), None),
        (config("table1", model__hidden=(64, 64, 64, 64)), None),
        (config("table1", model__gains=(0.5,)), "comparison"),
        (config("table1", epochs=30, free__omega=1.5), "comparison"),
        (config("table6", "cl"), "svhn"),
        (config("table6", "cl", dataset="mnist"), None),
        (config("cifar10-sota-300"), "best"),
        (config("cifar10-sota-100", "n-ep"), None),
        (config("cifar100-sota-100"), "best"),
        (config("mnist-sota"), "comparison"),
        (config("fast"), "best"),
        (config("quick"), None),
    ],
)
def test_a_run_belongs_to_the_table_its_settings_are_from(made_with, table):
    assert belongs(made_with) == table


def test_what_is_not_the_papers_is_said_in_words():
    assert unlike(setting(config("table1")), paper_setting("comparison")) == ""
    assert unlike(setting(config("fast")), paper_setting("cifar10")) == FAST
    changed = config("table1", epochs=30, free__order="synchronous", nudged__order="synchronous", precision="fp32", val=5000)
    words = "30 epochs, synchronous, 32 bits, 5,000 images for validation"
    assert unlike(setting(changed), paper_setting("comparison")) == words
    assert setting(config("table1", device="cuda", test_batch_size=7)) == setting(config("table1", "cl", 3))


def test_rules_without_a_strength_go_with_those_they_were_run_beside():
    """cl, tbp and rbp have no beta that could be the paper's or not."""
    others = [done(config("table1", rule, dataset="mnist", beta=0.5), 0.1) for rule in ("c-ep", "n-ep")]
    alone = [done(config("table1", rule, dataset="mnist"), 0.1) for rule in ("cl", "tbp")]
    elsewhere = done(config("table1", "cl", dataset="svhn"), 0.1)

    def rules(records):
        return {
            section.name: {(rule, dataset) for group in section.groups for rule, dataset in group.cells}
            for section in sections(records)
        }

    assert rules([*alone, elsewhere]) == {"table1": {("cl", "mnist"), ("tbp", "mnist"), ("cl", "svhn")}}
    mine = {("c-ep", "mnist"), ("n-ep", "mnist"), ("cl", "mnist"), ("tbp", "mnist")}
    assert rules([*others, *alone, elsewhere]) == {"table1": {("cl", "svhn")}, "grid": mine}
    papers = [done(config("table1", rule, dataset="mnist"), 0.1) for rule in ("c-ep", "n-ep")]
    assert rules([*others, *alone, *papers]) == {"table1": mine, "grid": mine}


def test_a_label_stays_where_rules_without_a_strength_join():
    strong = [
        replace(done(config("table1", rule, dataset="mnist", beta=0.5), 0.1), label="strong") for rule in ("c-ep", "n-ep")
    ]
    (section,) = sections([*strong, done(config("table1", "cl", dataset="mnist"), 0.1)])
    assert [(group.heading, len(group.cells)) for group in section.groups] == [("strong", 3)]


def test_a_strength_that_goes_with_another_setting_is_named():
    runs = [
        done(config("quick", rule, beta=b, nudged__iterations=k), 0.1)
        for rule in ("c-ep", "n-ep")
        for b, k in ((0.1, 12), (0.5, 8))
    ]
    (section,) = sections(runs)
    assert {group.heading for group in section.groups} == {"K = 12, ω = 1.4, β = 0.1", "K = 8, ω = 1.4, β = 0.5"}
    same = [done(config("quick", "c-ep", beta=0.1, nudged__iterations=k), 0.1) for k in (12, 8)]
    (section,) = sections(same)
    assert {group.heading for group in section.groups} == {"K = 12, ω = 1.4", "K = 8, ω = 1.4"}
    assert lay_out(section).note[1].endswith(", β = 0.1")


def test_the_strength_of_a_rule_is_its_own_unless_given():
    assert beta(config("quick", "n-ep")) == 0.25
    assert beta(config("quick", "n-ep", beta=0.1)) == 0.1
    assert beta(config("quick", "cl")) is beta(config("quick", "tbp")) is None


def test_figures_are_means_over_seeds_beside_the_papers_and_the_best_epochs():
    runs = [
        done(config("table1", seed=s), e, t, best=e - 0.001)
        for s, (e, t) in enumerate([(0.11, 0.05), (0.115, 0.07), (0.12, 0.09)])
    ]
    row = entries(runs, "table1", "C-EP")
    test, train = row["CIFAR-10", "Test"], row["CIFAR-10", "Train"]
    assert (test.main, test.paper, test.difference, test.best) == ("11.50 ± 0.50", "11.1 ± 0.1", "+0.40", "11.40")
    assert (train.main, train.paper, train.difference) == ("7.00 ± 2.00", "5.6", "+1.40")
    assert test.note == ""


def test_a_single_seed_has_no_spread_and_a_seed_run_twice_counts_once():
    one = config("table1", seed=4)
    again = replace(done(one, 0.5), key="zzz")
    assert entries([done(one, 0.12), again], "table1", "C-EP")["CIFAR-10", "Test"].main == "12.00"


def test_the_lowest_of_the_seven_is_marked_and_baselines_are_not():
    runs = [done(config("table1", rule), e) for rule, e in (("tbp", 0.10), ("cl", 0.3), ("c-ep", 0.11))]
    marks = {rule: entries(runs, "table1", rule)["CIFAR-10", "Test"].lowest for rule in ("TBP", "CL", "C-EP")}
    assert marks == {"TBP": False, "CL": False, "C-EP": True}


def test_unfinished_failed_and_collapsed_runs_are_said():
    runs = [
        done(config("table1", "p-ep", 0), 0.9, collapsed=True),
        done(config("table1", "p-ep", 1), 0.5),
        undone(config("table1", "p-ep", 2), "running", 34),
        done(config("table1", "cl", 0), 0.3),
        undone(config("table1", "cl", 1), "failed", error="OSError: no space"),
        undone(config("table1", "tbp", 0), "running", 7),
        undone(config("table1", "rbp", 0), "waiting"),
        undone(config("table1", "rbp", 1), "failed", error="OSError: no space"),
    ]
    notes = {rule: entries(runs, "table1", rule)["CIFAR-10", "Test"] for rule in ("P-EP", "CL", "TBP", "RBP")}
    assert notes["P-EP"].note == "1 running (34/100), 1 of 2 collapsed"
    assert (notes["CL"].note, notes["CL"].main) == ("1 seed, 1 failed", "30.00")
    assert (notes["TBP"].note, notes["TBP"].main, notes["TBP"].difference) == ("running (7/100)", "", "")
    assert notes["RBP"].note == "1 failed, 1 waiting"
    assert Report("x", runs).errors == [f"OSError: no space ({runs[4].key}, {runs[7].key})"]


def test_settings_are_kept_apart_and_named_the_papers_own_first():
    runs = [done(config("table1", free__iterations=20), 0.2), done(config("table1"), 0.1)]
    (section,) = sections(runs)
    assert [group.heading for group in section.groups] == ["", "T = 20"]
    layout = lay_out(section)
    assert [block.heading for block in layout.blocks] == ["the paper's setting", "T = 20"]
    assert [block.rows[0].entries[0].main for block in layout.blocks] == ["10.00", "20.00"]


def test_strengths_are_kept_apart_where_a_rule_has_several_and_share_the_rules_without_one():
    runs = [done(config("quick", rule, beta=b), 0.1) for rule, b in (("c-ep", 0.1), ("c-ep", 0.5), ("n-ep", 0.1), ("cl", None))]
    (section,) = sections(runs)
    assert {group.heading: group.rules for group in section.groups} == {
        "β = 0.1": ["cl", "n-ep", "c-ep"],
        "β = 0.5": ["cl", "c-ep"],
    }
    (alone,) = sections(runs[1:])[0].groups
    assert [alone.label(rule) for rule in alone.rules] == ["CL", "N-EP (β = 0.1)", "C-EP (β = 0.5)"]


def test_a_grid_of_ones_own_is_named_by_its_labels_or_by_what_differs():
    quick = [done(config("quick", free__iterations=T), 0.1) for T in (6, 12)]
    assert [group.heading for group in sections(quick)[0].groups] == ["T = 6, ω = 1.4", "T = 12, ω = 1.4"]
    labelled = [replace(run, label=label) for run, label in zip(quick, ("short", "long"), strict=True)]
    assert [group.heading for group in sections(labelled)[0].groups] == ["short", "long"]
    note = " ".join(lay_out(sections(quick)[0]).note)
    assert "conv 16-32" in note
    assert "K = 8, ω = 1.4" in note


def test_table_2_has_the_literature_and_the_papers_row_of_as_many_epochs():
    runs = [done(config(n), e, seconds=s) for n, e, s in (("cifar10-sota-100", 0.104, 315), ("cifar10-sota-300", 0.099, 7260))]
    runs += [done(config("mnist-sota"), 0.0044), done(config("cifar100-sota-100"), 0.35)]
    assert [section.name for section in sections(runs)] == ["table2"]
    row = entries(runs, "table2", "300 epochs")
    assert (row["CIFAR-10", "Top-1"].main, row["CIFAR-10", "Top-1"].difference) == ("9.90", "+0.20")
    assert (row["CIFAR-10", "Time"].main, row["CIFAR-10", "Time"].paper) == ("2 h 01 min", "9 h 54 min")
    row = entries(runs, "table2", "100 epochs")
    assert (row["CIFAR-10", "Time"].main, row["MNIST", "Top-1"].paper) == ("5 min 15 s", "0.44")
    assert (row["CIFAR-100", "Top-5"].main, row["CIFAR-100", "Top-5"].difference) == ("8.75", "−5.45")
    layout = lay_out(sections(runs)[0])
    assert [r.label for r in layout.blocks[0].rows if r.entries[0].main] == [
        "Ernoult et al., 2019",
        "Laydevant et al., 2021",
        "the paper, 100 epochs",
    ]


def test_table_3_compares_the_two_schedules_and_their_times():
    slow = {"free__order": "synchronous", "nudged__order": "synchronous", "free__iterations": 250, "nudged__iterations": 30}
    runs = [done(config("cifar10-sota-100", precision="fp32", **slow), 0.1085, seconds=4000)]
    runs += [done(config("cifar10-sota-100", seed=s), 0.104, seconds=500 + s) for s in (0, 1)]
    runs += [done(config("cifar10-sota-300"), 0.09)]  # of another length: no part of this comparison
    section = next(section for section in sections(runs) if section.name == "table3")
    layout = lay_out(section)
    labels = [row.label for row in layout.blocks[1].rows]
    assert labels == ["synchronous, T = 250, K = 30, 32 bits (1 run)", "asynchronous, T = 60, K = 20 (2 runs)"]
    assert [row.entries[0].difference for row in layout.blocks[1].rows] == ["0.00", "0.00"]
    assert "13.5 times as long, here 8.0 times" in " ".join(layout.note)  # 44:29 over 3:18, 4000 over 500


def test_table_6_gives_each_run_beside_those_of_the_text():
    runs = [done(config("table6", "n-ep", seed), e) for seed, e in enumerate((0.0373, 0.8041, 0.04))]
    single = entries(runs, "table6", "N-EP")["SVHN", "Test, each run"]
    assert (single.main, single.paper) == ("3.73, 80.41, 4.00", "3.73, 3.87, 80.41")


def test_the_paper_is_contradicted_only_where_both_are_sure():
    """C-CpL at 80 % on CIFAR-100 is worse than P-CpL (77.9 ± 0.5) and N-CpL (51.9 ± 1.3) for sure, not than CL (71.4 ± 3.6)."""
    changed = []
    for run in table1():
        is_it = (run.config["rule"], run.config["dataset"]) == ("c-cpl", "cifar100")
        error = 0.8 + run.config["seed"] / 1000 if is_it else run.final["test_error"]
        changed.append(replace(run, final=run.final | {"test_error": error}))
    (found,) = Report("x", changed).findings
    against = [
        (answer.lesson.number, name, line.partition(" = ")[0]) for answer in found.answers for name, line in answer.against
    ]
    assert against == [(4, "CIFAR-100", "C-CpL − P-CpL"), (4, "CIFAR-100", "C-CpL − N-CpL")]
    assert not [line for answer in Report("x", table1()).findings[0].answers for line in answer.against]


def test_curves_are_means_with_their_range_of_finished_runs_and_few_lines_share_a_picture():
    runs = [done(config("quick", seed=s), e) for s, e in ((0, 0.1), (1, 0.3))]
    (panel,), more = draw(sections([*runs, undone(config("quick", seed=2), "running", 3)]))
    (line,) = panel.lines
    assert (list(line.middle), list(line.low), list(line.high)) == (
        pytest.approx([90, 20, 20]),
        pytest.approx([90, 10, 10]),
        pytest.approx([90, 30, 30]),
    )
    assert (list(line.epochs), more, len(panel.pictures)) == ([1, 2, 3], 0, 4)
    many = [done(config("quick", free__iterations=i + 1), 0.1) for i in range(MOST_LINES)]
    assert len(draw(sections(many))[0]) == 1
    many.append(done(config("quick", free__iterations=99), 0.1))
    assert len(draw(sections(many))[0]) == MOST_LINES + 1


def test_lines_are_named_by_what_tells_them_apart():
    lengths = [done(config(f"cifar10-sota-{epochs}"), 0.1) for epochs in (100, 300)]
    assert [line.name for line in draw(sections(lengths))[0][0].lines] == ["C-EP, 100 epochs", "C-EP, 300 epochs"]
    schedules = [done(config("table1"), 0.1), done(config("table1", free__iterations=20), 0.1)]
    assert [line.name for line in draw(sections(schedules))[0][0].lines] == ["C-EP, the paper's setting", "C-EP, T = 20"]
    (panel,), _ = draw(sections([done(config("table1", rule), 0.1) for rule in ("cl", "c-ep")]))
    assert [(line.name, line.look) for line in panel.lines] == [("CL", "cl"), ("C-EP", "ep")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Of the whole comparison, with a dataset and a name that would break every format."""
    out = tmp_path_factory.mktemp("report")
    hostile = done(config("quick", dataset="fashion-mini"), 0.2, label="<b>50% & more_</b>")
    hostile.config["dataset"] = "./<script>_&%$#{}~^\\|.npz"
    other = replace(hostile, config=hostile.config | {"epochs": 9}, label="other", key="other")
    write_report("<i>a & b</i>", [*table1(), hostile, other], out)
    return out


def test_csv_holds_the_figures(report):
    rows = {(r["rule"], r["dataset"]): r for r in rows_of(report / "table1.csv")}
    assert len(rows) == 45
    row = rows["c-ep", "cifar10"]
    assert float(row["test_mean"]) == pytest.approx(11.1)
    assert float(row["test_std"]) == pytest.approx(0.12)  # of 10.98, 11.1, 11.22
    assert (row["paper_test"], row["paper_test_std"], row["paper_train"], row["runs"]) == ("11.1", "0.1", "5.6", "3")
    assert float(row["paper_seconds"]) == 3 * 3600
    runs = rows_of(report / "runs.csv")
    assert len(runs) == 137
    assert {(r["commit"], r["hardware"], r["torch"]) for r in runs} == {(MADE["commit"], MADE["hardware"], MADE["torch"])}
    assert {r["unlike_the_papers_comparison"] for r in runs if r["dataset"] == "mnist"} == {""}
    assert "ebl train --preset table1 --dataset svhn --rule n-cpl --seed 2 --threads 4" in {r["command"] for r in runs}
    assert (report / "lessons.csv").read_text(encoding="utf-8").count("\n") == 1 + 25


def test_the_page_needs_nothing_else_and_shows_names_as_text(report):
    page = (report / "report.html").read_text(encoding="utf-8")
    assert "&lt;i&gt;a &amp; b&lt;/i&gt;" in page
    assert not re.search(r"<script|<i>|<b>|<img|@import|https?://|url\(", page)
    assert page.count("<table") >= 5
    assert page.count('<svg class="chart"') == 4 * 6


def test_markdown_links_pictures_that_are_there_and_tables_are_whole(report):
    text = (report / "report.md").read_text(encoding="utf-8")
    links = re.findall(r"\((pictures/[^)]*)\)", text)
    assert len(links) == 4 * 6
    for link in links:
        assert ET.parse(report / link).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1
    assert "| **6.22 ± 0.12** (paper 6.22 ± 0.10, 0.00) |" in text


def test_what_latex_would_read_as_commands_is_escaped():
    assert escaped("50 % of a_b & c$ #1 {x} ~ ^ \\") == (
        r"50 \% of a\_b \& c\$ \#1 \{x\} $\sim$ \textasciicircum{} \textbackslash{}"
    )
    assert escaped("± − ≤ β 中") == r"$\pm$ $-$ $\le$ $\beta$ ?"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_latex_compiles_and_fits_the_page(report, tmp_path):
    tables = sorted(report.glob("*.tex"))
    assert [path.stem for path in tables] == ["grid", "table1"]
    said = compiled(tables, tmp_path)
    assert "Overfull \\hbox" not in said
    assert "Float too large" not in said


def compiled(tables: list[Path], folder: Path) -> str:
    """What LaTeX says of a paper with these tables."""
    inputs = r"\clearpage".join(rf"\input{{{path}}}" for path in tables)
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\extrafloats{100}\begin{document}"
    (folder / "all.tex").write_text(head + inputs + r"\end{document}", encoding="utf-8")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    ran = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    said = ran.stdout.decode(errors="replace")
    assert ran.returncode == 0, said[-2000:]
    return said


def test_what_a_long_table_leaves_out_is_said_and_latex_has_it_on_several_pages(tmp_path, capsys):
    settings = [config("quick", "c-ep", epochs=n) for n in range(1, 351)]
    for i, made_with in enumerate(settings):
        write_run(tmp_path / "runs" / f"{i}", done(made_with, 0.1))
    main(["report", str(tmp_path / "runs")])
    assert "310 more rows in the files" in capsys.readouterr().out
    report = tmp_path / "runs" / "report"
    text = (report / "report.md").read_text(encoding="utf-8")
    assert text.count("50 more rows are in grid.csv.") == 2  # of errors and of times
    assert "50 more rows are in grid.csv." in (report / "report.html").read_text(encoding="utf-8")
    assert (report / "grid.csv").read_text(encoding="utf-8").count("\n") == 1 + 350
    latex = (report / "grid.tex").read_text(encoding="utf-8")
    assert latex.count("C-EP &") == 350
    pages = -(-350 // 13)  # of 40 lines; a setting's heading, its rules and its row take 3
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == pages
    assert f"(2 of {pages})" in latex
    assert len(set(re.findall(r"\\label\{(.*?)\}", latex))) == pages
    if shutil.which("pdflatex"):
        assert "Float too large" not in compiled([report / "grid.tex"], tmp_path)


def test_the_runs_of_this_repository_are_reported():
    records, damaged = read(RESULTS / "cifar10-fast-100-seed0")
    row = entries(records, "table2", "100 epochs")["CIFAR-10", "Top-1"]
    assert (row.main, row.paper, row.difference, row.best) == ("10.44", "10.40", "+0.04", "10.35")
    assert damaged == []
    assert dict(Report("x", records).facts)["Hardware"] == "NVIDIA H200"
    assert read(RESULTS)[1] == []


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["report", *words])
    assert stop.value.code == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "`ebl study run quick` makes some" in refused(capsys, "nowhere")
    assert "study table1 has no runs yet" in refused(capsys, "table1")
    (tmp_path / "empty").mkdir()
    assert "empty holds no runs" in refused(capsys, "empty")
    write_run(tmp_path / "runs" / "a", done(config("quick"), 0.1))
    (tmp_path / "file").write_text("")
    assert "give --out a folder" in refused(capsys, "runs", "--out", "file")
    make_store(tmp_path / "runs/studies/mine", "mine")
    assert "did you mean mine?" in refused(capsys, "mime")
    assert "mine holds no runs" in refused(capsys, "mine")


def test_lessons_of_several_tables_are_told_apart(capsys, tmp_path):
    runs = [done(config(name, rule), 0.1) for name in ("table6", "quick") for rule in ("cl", "p-ep")]
    runs += [done(config("quick", rule, free__iterations=30), 0.2) for rule in ("cl", "p-ep")]
    for i, run in enumerate(runs):
        write_run(tmp_path / "runs" / f"{i}", run)
    main(["report", str(tmp_path / "runs")])
    lines = capsys.readouterr().out.splitlines()
    titles = [lines[i - 1] for i, line in enumerate(lines) if line.startswith("1. The rules are alike")]
    assert titles == ["SVHN with gain 0.7", "Rules and datasets: T = 12, ω = 1.4", "Rules and datasets: T = 30, ω = 1.4"]


def test_a_damaged_run_is_named_and_left_out(capsys, tmp_path):
    for i, rule in enumerate(("cl", "c-ep", "n-ep", "p-ep")):
        write_run(tmp_path / f"run{i}", done(config("quick", rule), 0.1))
    (tmp_path / "run1" / "result.json").write_text('{"final": {')
    (tmp_path / "run2" / "metrics.jsonl").write_text("nonsense\n")
    (tmp_path / "run3" / "config.json").write_text('{"rule": "p-ep", "dataset": "mnist"}')
    main(["report", str(tmp_path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    for name in ("run1", "run2", "run3"):
        assert len(re.findall(rf"{name} is damaged \(.*\): left out", said)) == 1
    assert [r["key"] for r in rows_of(tmp_path / "out/runs.csv")] == ["run0"]
    (tmp_path / "run0" / "result.json").write_text("[]")
    with pytest.raises(InputError, match="run0 is damaged"):
        read(tmp_path)


def test_a_store_is_reported_by_its_name_unfinished_and_damaged_runs_too(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = make_store(tmp_path / "runs/studies/mine", "mine")
    cells = [Cell(as_config(done(config("quick", rule), 0.1))) for rule in ("cl", "n-ep", "c-ep", "p-ep")]
    store.add(cells)
    write_run(store.run_folder(cells[0].key), done(config("quick", "cl"), 0.25))
    write_run(store.run_folder(cells[1].key), undone(config("quick", "n-ep"), "waiting"))
    (store.folder / "failures" / f"{cells[1].key}.txt").write_text("Traceback\nOSError: no space\n")
    store.tell("failed", cells[1].key, error="OSError: no space")
    main(["report", "mine"])
    first = capsys.readouterr().out
    write_run(store.run_folder(cells[3].key), done(config("quick", "p-ep"), 0.3)).joinpath("result.json").write_text("{")
    main(["report", "mine"])
    second = capsys.readouterr().out
    for said in (first, second):
        assert re.search(r"CL\s+25\.00", said)
        assert re.search(r"N-EP\s+failed", said)
        assert re.search(r"C-EP\s+waiting", said)
        assert f"OSError: no space ({cells[1].key})" in said
    assert re.search(r"P-EP\s+waiting", first)
    assert re.search(r"P-EP\s+failed", second)
    assert "result.json is damaged" in second
    assert (store.folder / "report/report.html").exists()


def test_ten_thousand_runs_are_reported_in_seconds(tmp_path):
    five = ("mnist", "fashion-mnist", "svhn", "cifar10", "cifar100")
    template = {rule: done(config("table1", rule), 0.2) for rule in NINE}
    runs = []
    for i in range(10_000):
        rule, seed, dataset, iterations = NINE[i % 9], i // 9 % 3, five[i // 27 % 5], 10 + i // 135
        made = template[rule].config
        changed = made | {"dataset": dataset, "seed": seed, "free": made["free"] | {"iterations": iterations}}
        error = {"test_error": 0.1 + (i * 7919 % 1000) / 5000}
        runs.append(replace(template[rule], key=str(i), config=changed, final=template[rule].final | error))
    began = time.process_time()
    _, files = write_report("many", runs, tmp_path)
    assert time.process_time() - began < 8
    assert len(files) < 100
    assert (tmp_path / "report.html").stat().st_size < 8e6
    assert len(rows_of(tmp_path / "runs.csv")) == 10_000


TIMES = [(0.42, "0.4 s"), (42, "42 s"), (315, "5 min 15 s"), (120, "2 min"), (11880, "3 h 18 min"), (3599.7, "1 h 00 min")]


@pytest.mark.parametrize(("seconds", "words"), TIMES)
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


def test_clocks_are_hours_and_minutes():
    assert (clock("44:29"), clock("~24:00")) == (44 * 3600 + 29 * 60, 86400)


def test_a_run_that_was_made_before_a_setting_was_there_is_as_its_default():
    made = config("table1")
    old = {name: value for name, value in made.items() if name not in ("settle", "start")}
    assert setting(old) == setting(made)
    assert json.loads(json.dumps(made)) == made
