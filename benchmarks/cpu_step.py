"""One C-EP step on a CPU: the naive definition, our path at the same T and K, and ours over-relaxed, in one run.

    python benchmarks/cpu_step.py [--threads 2] [--repeats 5]

Network 32-64-128-128, batch 64, on images of the embedded dataset padded to 32x32, after a short training. Each row gives
the step's time, its ratio to the naive row, and the relative error of its gradient to the same variant's converged one.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import ebl
from ebl import naive
from ebl.data import load
from ebl.models.links import Conv

BETA = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100, help="training steps before the measurement")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = ebl.ConvHopfield(1, 32, (32, 64, 128, 128), gains=(0.4, 0.7, 0.6, 0.3, 0.4))
    images, labels = training_images()
    train(net, images, labels, args.steps)
    x, y = images[:64], labels[:64]
    target = F.one_hot(y, 10).float()

    def ours(T: int, K: int, omega: float) -> Callable[[], list[Tensor]]:
        def step() -> list[Tensor]:
            ebl.estimate_gradients(
                net, x, y, rule="c-ep", beta=BETA, free=ebl.Schedule(T, omega), nudged=ebl.Schedule(K, omega)
            )
            return [p.grad for p in net.parameters() if p.grad is not None]

        return step

    def twin(T: int, K: int) -> Callable[[], list[Tensor]]:
        return lambda: naive.contrast(net, x, target, -BETA, BETA, T, K)[1]

    rows = [
        ("naive twin", 60, 20, 1.0, twin(60, 20), twin(400, 200)),
        ("ebl", 60, 20, 1.0, ours(60, 20, 1.0), ours(400, 200, 1.0)),
        ("ebl, over-relaxed", 20, 10, 1.5, ours(20, 10, 1.5), ours(400, 200, 1.5)),
    ]
    times: dict[str, list[float]] = {name: [] for name, *_ in rows}
    for _ in range(args.repeats):  # interleaved, so that a slow minute of the machine hits all rows alike
        for name, _, _, _, step, _ in rows:
            begin = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begin)
    ceiling, naive_time = matmul_ceiling(), median(times["naive twin"])
    print(f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, median of {args.repeats}")
    print(
        f"ceiling: {ceiling / 1e9:.0f} GFLOP/s (float32 matmul 2048³); floor: two convolutions an interaction, at the ceiling"
    )
    print("variant              T   K omega       ms  ratio  floor ms  relative error to its converged gradient")
    for name, T, K, omega, step, converged in rows:
        error = relative(step(), converged())
        ms, ratio = 1e3 * median(times[name]), naive_time / median(times[name])
        floor = 1e3 * iteration_flops(net, len(x)) * (T + 2 * K) / ceiling
        print(f"{name:18s} {T:3d} {K:3d} {omega:5.2f} {ms:8.1f} {ratio:6.2f} {floor:9.1f}  {error:.3f}")


def matmul_ceiling() -> float:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - begin)
    return 2 * 2048**3 / best


def iteration_flops(net: ebl.ConvHopfield, batch: int) -> float:
    """Multiplications and additions of one iteration: each interaction between layers once up, once down."""
    total = 0
    for link, w in zip(net.links[1:], net.weights[1:], strict=True):
        positions = link.map_size[0] * link.map_size[1] if isinstance(link, Conv) else 1
        total += 2 * 2 * w.numel() * positions * batch
    return float(total)


def training_images() -> tuple[Tensor, Tensor]:
    """Normalised images, with a little noise: on flat backgrounds pools tie, and ties may fall either way in float32."""
    split = load("fashion-mini").train
    images = F.pad((split.images.float() / 255 - 0.286) / 0.353, (2, 2, 2, 2), value=-0.286 / 0.353)
    images = images + 0.01 * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    return images.contiguous(memory_format=torch.channels_last), split.labels


def train(net: ebl.ConvHopfield, images: Tensor, labels: Tensor, steps: int) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        batch = order[torch.arange(step * 64, step * 64 + 64) % len(order)]
        ebl.estimate_gradients(
            net, images[batch], labels[batch], beta=BETA, free=ebl.Schedule(20, 1.5), nudged=ebl.Schedule(10, 1.5)
        )
        optimiser.step()


def relative(found: list[Tensor], truth: list[Tensor]) -> float:
    a, b = (torch.cat([g.flatten() for g in gs]) for gs in (found, truth))
    return float((a - b).norm() / b.norm())


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
