"""What this machine does: its matmul ceiling, the presets' training steps and tests, and the naive definition beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from ebl import naive
from ebl.config import Config, build_network
from ebl.data.batches import Batches
from ebl.data.splits import Split
from ebl.engine import make_stepper
from ebl.models.hopfield import Hopfield
from ebl.models.links import Conv
from ebl.pace import Pace
from ebl.presets import preset
from ebl.provenance import provenance
from ebl.relax import Schedule
from ebl.steps import Stepper

PRESETS = ("quick", "cifar10-sota-100", "fast")  # each beside the naive twin of `TWINS`
TWINS = {"quick": "quick", "cifar10-sota-100": "cifar10-sota-100", "fast": "cifar10-sota-100"}
CPU_BATCH = 2  # of the paper's network: a whole batch would take a minute a step
TESTED = 10_000  # images of a test


@dataclass(frozen=True)
class Timing:
    preset: str
    engine: str
    batch: int
    free_iterations: int
    nudged_iterations: int
    milliseconds: float
    tflops_per_second: float
    share_of_ceiling: float
    naive_milliseconds: float  # at the twin's own numbers of iterations
    ratio: float  # naive over ours
    test_iterations: int
    test_seconds: float  # of TESTED images; on a CPU a batch of them is tested


def bench(device: torch.device, repeats: int = 10) -> dict[str, Any]:
    """One after another in one run; our times are medians, the ceiling is the best of twelve, the naive twin runs once."""
    ceiling = matmul_ceiling(device)
    twins: dict[str, float] = {}
    rows = []
    for name in PRESETS:
        config = _config(name, device)
        twin = TWINS[name]
        if twin not in twins:
            twins[twin] = naive_seconds(_config(twin, device), device)
        seconds, engine = step_seconds(config, device, repeats)
        iterations = _pace(config).iterations
        flops = step_flops(build_network(config), config.batch_size, iterations, config.nudged.iterations)
        rows.append(
            Timing(
                name,
                engine,
                config.batch_size,
                iterations,
                config.nudged.iterations,
                1e3 * seconds,
                flops / seconds / 1e12,
                flops / seconds / ceiling,
                1e3 * twins[twin],
                twins[twin] / seconds,
                _test_schedule(config).iterations,
                test_seconds(config, device),
            )
        )
    return {**provenance(device), "ceiling_tflops_per_second": ceiling / 1e12, "steps": [asdict(row) for row in rows]}


def matmul_ceiling(device: torch.device) -> float:
    """Operations a second of a large product: 16-bit on a GPU, float32 on a CPU."""
    size, dtype = (8192, torch.float16) if device.type == "cuda" else (2048, torch.float32)
    a = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / min(_median(lambda: a @ a, 1, device) for _ in range(12))  # a busy machine is no ceiling


def step_seconds(config: Config, device: torch.device, repeats: int) -> tuple[float, str]:
    """A training step's time, and the path it took."""
    stepper = _stepper(config, device)
    x, y = _batch(config, device)
    generator = torch.Generator().manual_seed(0)
    iterations = _pace(config).iterations
    for _ in range(3):  # compiled, recorded, and once more
        stepper.step(x, y, iterations, generator)
    return _median(lambda: stepper.step(x, y, iterations, generator), repeats, device), stepper.name


def test_seconds(config: Config, device: torch.device) -> float:
    """The time of testing TESTED random images as a run does, from bytes to errors."""
    count = TESTED if device.type == "cuda" else config.batch_size
    generator = torch.Generator().manual_seed(0)
    spec = config.entry
    images = torch.randint(256, (count, spec.channels, *spec.size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(spec.num_classes, (count,), generator=generator)
    batches = Batches(Split(images, labels).to(device), spec, config.test_batch_size)
    stepper, schedule = _stepper(config, device), _test_schedule(config)
    for _ in range(2 if device.type == "cuda" else 0):  # compiled, recorded
        stepper.evaluate(batches, schedule)
    return TESTED / count * _median(lambda: stepper.evaluate(batches, schedule), 3, device)


def naive_seconds(config: Config, device: torch.device) -> float:
    """The naive definition's time for the same step, at omega = 1, without its optimiser."""
    net = build_network(config).to(device)
    x, y = _batch(config, device)
    target = F.one_hot(y, net.links[-1].shape[0]).float()

    def step(free: int, nudged: int) -> None:
        naive.contrast(net, x, target, -0.1, 0.1, free, nudged)

    step(1, 1)
    return _median(lambda: step(config.free.iterations, config.nudged.iterations), 1, device)


def step_flops(net: Hopfield, batch: int, free: int, nudged: int) -> float:
    """Operations a step cannot do without: two products for each pair of layers and iteration; both phases nudged."""
    total = 0
    for link in net.links[1:]:
        positions = link.map_size[0] * link.map_size[1] if isinstance(link, Conv) else 1
        total += 2 * 2 * batch * positions * torch.Size(link.weight_shape).numel()
    return float(total * (free + 2 * nudged))


def _config(name: str, device: torch.device) -> Config:
    config = replace(preset(name), device=device.type)
    if name != "quick":
        config = replace(config, dataset="cifar10")
        if device.type == "cpu":
            config = replace(config, batch_size=CPU_BATCH)
    return config


def _pace(config: Config) -> Pace:
    return Pace.starting(config.settle, config.free.iterations)


def _test_schedule(config: Config) -> Schedule:
    return replace(config.free, iterations=_pace(config).for_test(config.settle, config.free.iterations))


def _stepper(config: Config, device: torch.device) -> Stepper:
    net = build_network(config).to(device)
    groups = [{"params": [w, b]} for w, b in zip(net.weights, net.biases, strict=True)]
    optimiser = torch.optim.SGD(groups, lr=1e-4, momentum=config.optimiser.momentum, weight_decay=config.optimiser.weight_decay)
    return make_stepper(config, net, optimiser)


def _batch(config: Config, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images: a step's time does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(config.batch_size, *config.input_shape, generator=generator)
    y = torch.randint(config.entry.num_classes, (config.batch_size,), generator=generator)
    return x.to(device).contiguous(memory_format=torch.channels_last), y.to(device)


def _median(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 2]
