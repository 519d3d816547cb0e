"""Steps on a GPU: TBP and RBP by precision, a few other rules, and several networks side by side on one GPU.

    python benchmarks/gpu_steps.py

Random images of CIFAR-10's shape, batch 128, the paper's network; means of 40 steps after three.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from ebl.config import Config, build_network
from ebl.engine import make_stepper
from ebl.presets import preset
from ebl.provenance import provenance

GPU = torch.device("cuda")


def main() -> None:
    print(provenance(GPU))
    fast = replace(preset("fast"), device="cuda")
    paper = replace(preset("table1"), dataset="cifar10", device="cuda")
    relaxed = replace(paper, free=fast.free, nudged=fast.nudged, settle=fast.settle, start=fast.start)
    for rule in ("tbp", "rbp"):
        for precision in ("fp16", "tf32"):
            for config, iterations in ((relaxed, 20), (paper, 60)):
                config = replace(config, rule=rule, beta=None, precision=precision)
                show(f"{rule} {precision}", config, iterations)
    for rule, beta in (("c-ep", 0.25), ("n-ep", 0.25), ("cl", None)):
        show(rule, replace(relaxed, rule=rule, beta=beta), 20)
    show("c-ep", paper, 60)
    for iterations in (15, 20):
        side_by_side(fast, iterations)


def show(name: str, config: Config, iterations: int) -> None:
    step, path = stepping(config, iterations)
    print(f"{name:10s} {path:14s} T={iterations:2d} K={config.nudged.iterations:2d} {timed(step):6.2f} ms", flush=True)
    torch.cuda.empty_cache()


def side_by_side(config: Config, iterations: int) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    steps = []
    for stream in streams:
        with torch.cuda.stream(stream):
            steps.append(stepping(config, iterations)[0])
    for count in (1, 2, 3):

        def together(count: int = count) -> None:
            for step, stream in zip(steps[:count], streams, strict=False):
                with torch.cuda.stream(stream):
                    step()

        print(f"fast T={iterations}, {count} at once: a step of each in {timed(together):.2f} ms", flush=True)


def stepping(config: Config, iterations: int) -> tuple[Callable[[], None], str]:
    """A training step that is compiled and recorded, and the path it takes."""
    net = build_network(config).to(GPU)
    groups = [{"params": [w, b]} for w, b in zip(net.weights, net.biases, strict=True)]
    stepper = make_stepper(config, net, torch.optim.SGD(groups, lr=1e-4, momentum=0.9, weight_decay=3e-4))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(config.batch_size, *config.input_shape, generator=generator)
    x = x.to(GPU).contiguous(memory_format=torch.channels_last)
    y = torch.randint(config.entry.num_classes, (config.batch_size,), generator=generator).to(GPU)

    def step() -> None:
        stepper.step(x, y, iterations, generator)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return step, stepper.name


def timed(run: Callable[[], None], repeats: int = 40) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / repeats


if __name__ == "__main__":
    main()
