"""How near a trained network's C-EP estimate is to the one with both phases settled from the same free state.

    python benchmarks/settling_error.py RUN [--images 48] [--batches 4] [--data-dir DIR]

For the paper's T = 60, K = 20 and for 16 Chebyshev and 8 over-relaxed iterations; of each weight's gradient the cosine to its
limit and their norms' ratio, for several batches: they differ, since a few images make most of the norm. Limits are each
schedule's own, since max pooling makes equilibria plural.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.costs import SquaredError
from ebl.data import load
from ebl.data.batches import Batches
from ebl.data.fingerprint import check_data
from ebl.models.hopfield import Hopfield
from ebl.relax import Schedule, relax
from ebl.rules import RULES, as_target
from ebl.train import load_run
from ebl.types import Settled

ROWS = (  # free, nudged, and what settles the free phase from there
    ("T=60, K=20", Schedule(60), Schedule(20), Schedule(340)),
    ("T=16 Chebyshev 0.95, K=8 omega 1.4", Schedule(16, "chebyshev:0.95"), Schedule(8, 1.4), Schedule(100, 1.5)),
)
NUDGED = Schedule(100, 1.4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    config, net = load_run(args.run)
    data = load(config.dataset, args.data_dir)
    check_data(args.run, data)
    beta = config.beta or 0.25
    print(f"{args.run.name}, batches of {args.images} training images, beta = {beta:g}, float32")
    epoch = Batches(data.train, config.entry, args.images, config.seed, augment=False).epoch(0)
    for x, y in itertools.islice(epoch, args.batches):
        show(net, x, y, beta)


def show(net: Hopfield, x: Tensor, y: Tensor, beta: float) -> None:
    for name, free, nudged, rest in ROWS:
        reached = relax(net, x, free)
        settled = relax(net, x, rest, start=reached.state)
        found, limit = gradients(net, x, y, reached, nudged, beta), gradients(net, x, y, settled, NUDGED, beta)
        pairs = list(zip(found, limit, strict=True))
        cosines = (f"{float(F.cosine_similarity(a.flatten(), b.flatten(), 0)):.3f}" for a, b in pairs)
        sizes = (f"{float(a.norm() / b.norm()):.3f}" for a, b in pairs)
        print(f"{name}: residual {reached.residual.mean():.1e}, of the limit {settled.residual.mean():.1e}")
        print(f"  cosine {' '.join(cosines)}\n  norm   {' '.join(sizes)}", flush=True)


def gradients(net: Hopfield, x: Tensor, y: Tensor, free: Settled, nudged: Schedule, beta: float) -> list[Tensor]:
    """Of the weights, from this free state."""
    target = as_target(y, free.state[-1])
    found, _ = RULES["c-ep"].gradients(net, x, target, free, {}, nudged, SquaredError(), beta, torch.Generator())
    return [g.double() for g in found[: len(net.weights)]]


if __name__ == "__main__":
    main()
