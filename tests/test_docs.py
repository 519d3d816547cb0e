"""The pages that scripts make say what the runs in results/ say."""

import shutil
import sys
from pathlib import Path

import reproduction
from records import config, done, write_run

from ebl.study.store import make_store

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "results/README.md", "docs/reproduction.md")


def make_pages(monkeypatch, root: Path, *stores: Path) -> None:
    """docs/reproduction.py, at work on a copy."""
    for page in PAGES:
        (root / page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / page, root / page)
    shutil.copytree(ROOT / "results", root / "results", dirs_exist_ok=True)
    places = {"ROOT": root, "DOCS": root / "docs", "RESULTS": root / "results", "PICTURES": root / "docs/reproduction"}
    for name, place in places.items():
        monkeypatch.setattr(reproduction, name, place)
    monkeypatch.setattr(sys, "argv", ["reproduction.py", *map(str, stores)])
    reproduction.main()


def test_the_pages_are_those_of_the_runs_in_results(tmp_path, monkeypatch):
    make_pages(monkeypatch, tmp_path)
    made = [*PAGES, *(f"docs/reproduction/{path.name}" for path in (ROOT / "docs/reproduction").iterdir())]
    for page in made:
        assert (tmp_path / page).read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8"), page
    assert len(list((tmp_path / "docs/reproduction").iterdir())) == len(made) - len(PAGES)


def test_finished_runs_of_a_study_are_kept_without_checkpoints_and_shown_beside_the_paper(tmp_path, monkeypatch):
    store = make_store(tmp_path / "store", "table1")
    for rule, error in (("n-ep", 0.123), ("p-ep", 0.234)):
        folder = write_run(store.run_folder(rule), done(config("table1", rule, device="cuda"), error))
        (folder / "checkpoint.safetensors").write_bytes(b"large")
    (store.run_folder("p-ep") / "result.json").unlink()
    make_pages(monkeypatch, tmp_path, store.folder)
    kept = {path.name for path in (tmp_path / "results/n-ep").iterdir()}
    assert kept == {"config.json", "metrics.jsonl", "times.jsonl", "result.json"}
    assert not (tmp_path / "results/p-ep").exists()
    (line,) = (line for line in (tmp_path / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| N-EP"))
    assert line.startswith("| N-EP, CIFAR-10, 100 epochs, the paper's setting | **12.30** | 11.9 ± 0.3 | +0.40 |")
