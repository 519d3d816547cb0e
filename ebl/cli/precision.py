"""ebl precision"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from ebl.cli.flags import console, parse, pick_device
from ebl.data import load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data
from ebl.errors import InputError
from ebl.precision import compare
from ebl.provenance import provenance
from ebl.train import load_run


@dataclass(frozen=True)
class Arguments:
    """Show how exact each precision's gradients are on a trained network: against float64, from one settled state."""

    run: tyro.conf.Positional[Path]
    """The run folder."""
    images: int = 128
    """Training images to take the gradient of."""
    device: str | None = None
    """cpu or cuda; cuda unless given, where there is a GPU."""
    dataset: str | None = None
    """Where data of your own are now, if they moved since."""
    data_dir: Path | None = None
    """Where dataset files are; otherwise EBL_DATA, or the user's cache folder."""
    json: bool = False
    """Print JSON."""


def run(argv: list[str]) -> None:
    args = parse(Arguments, "ebl precision", argv)
    device = pick_device(args.device)
    config, net = load_run(args.run, str(device), args.dataset)
    data = load(config.dataset, args.data_dir)
    check_data(args.run, data)
    if not 0 < args.images <= len(data.train.labels):
        raise InputError(f"--images {args.images}: use 1 to {len(data.train.labels)}, the number of training images")
    batches = Batches(data.train.to(device), config.entry, args.images, config.seed, augment=False)
    x, y = next(batches.epoch(0))
    rows = compare(config, net, x, y)
    if args.json:
        about = {"run": args.run.resolve().name, "images": args.images, "config": asdict(config), **provenance(device)}
        print(json.dumps({**about, "rows": [_finite(asdict(row)) for row in rows]}))
        return
    table = Table("precision", *(f"layer {k + 1}" for k in range(len(net.links))), "largest size error", box=SIMPLE_HEAD)
    for row in rows:
        off = max(abs(size - 1) for size in row.sizes)
        table.add_row(row.precision, *(f"{value:.5f}" for value in row.cosines), f"{off:.1e}")
    console.print(f"cosine of each layer's weight gradient ({config.rule}) to float64, {args.images} images", highlight=False)
    console.print(table)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no nan, which a gradient of zeros gives."""
    return {k: [x if isfinite(x) else None for x in v] if isinstance(v, list) else v for k, v in row.items()}
