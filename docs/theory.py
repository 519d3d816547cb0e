"""Makes what docs/theory.md shows: tables between its markers, pictures beside it.   python docs/theory.py"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from pages import between
from PIL import Image

from ebl.atomic import write_atomically
from ebl.config import build_network
from ebl.data import load
from ebl.data.batches import Batches
from ebl.presets import preset
from ebl.provenance import provenance
from ebl.theory import report
from ebl.theory.subjects import Subject, from_file
from ebl.train import load_run, train

DOCS = Path(__file__).parent
PAGE = DOCS / "theory.md"
RUN = DOCS.parent / "runs" / "theory"  # trained once
WIDTH = 1200  # of a picture: pages are read on a screen


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    parts = {
        "statements": report.statements_part(),
        "yours": unmet(report.statements_part(yours(text))),
        "counter-examples": report.counterexamples_part(),
        "settling": settling(),
    }
    for name, part in parts.items():
        text = between(text, name, f"{shown(part)}\n")
    write_atomically(PAGE, text.encode())
    with tempfile.TemporaryDirectory() as scratch:
        drawn = [parts[name] for name in parts if name != "yours"] + [report.rules_part()]
        for picture in (path for part in drawn for path in part.draw(Path(scratch))):
            small(picture, DOCS / "theory" / picture.name)
            print(f"{DOCS / 'theory' / picture.name}", file=sys.stderr)


def shown(part: report.Part) -> str:
    """A table with what it was measured on."""
    return f"*{part.title}.*\n\n{part.markdown()}{f'{chr(10)}*{part.note}*{chr(10)}' if part.note else ''}"


def unmet(part: report.Part) -> report.Part:
    """Only the rows that do not hold."""
    rows = [row for row in part.rows if row[-1] != "holds"]
    note = f"{len(part.rows) - len(rows)} of {len(part.rows)} rows hold, the others are shown"
    return replace(part, rows=rows, note=note)


def yours(text: str) -> Subject:
    """The energy that the page shows."""
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "two_wells.py"
        file.write_text(code, encoding="utf-8")
        found = from_file(file, "TwoWells")
    return Subject("TwoWells, its own example", found.net, found.x, found.y)


def settling() -> report.Part:
    train(preset("quick"), RUN, resume=True)
    config, trained = load_run(RUN)
    x, _ = next(Batches(load(config.dataset).test, config.entry, 32).in_order())
    part = report.settling_part({"fresh": (build_network(config), x), "trained": (trained, x)})
    made_with = provenance(torch.device("cpu"))
    where = f"{made_with['hardware']}, torch {made_with['torch']}"
    note = f"the quick preset, seed {config.seed}, before and after its {config.epochs} epochs; {where}"
    return replace(part, note=note)


def small(picture: Path, to: Path) -> None:
    """A few hundred kilobytes for all of them: narrower, with 256 colours."""
    to.parent.mkdir(exist_ok=True)
    with Image.open(picture) as image:
        width = min(WIDTH, image.width)
        narrow = image.convert("RGB").resize((width, image.height * width // image.width), Image.Resampling.LANCZOS)
        narrow.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(to, optimize=True)


if __name__ == "__main__":
    main()
