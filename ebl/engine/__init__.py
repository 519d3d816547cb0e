"""The fast paths on a GPU, and which one a run takes.

fp16   the fused kernels (see `step`): Hopfield networks, 16-bit products, float32 sums: every rule of the paper's
tf32   the plain path, recorded as CUDA graphs unless a tolerance or R-EP's signs are looked at (see `captured`), with TF32
       convolutions: every rule
fp32   the same without TF32
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from ebl.config import Config
from ebl.data.batches import Batches
from ebl.models.hopfield import Hopfield
from ebl.parallel import ALONE, Ranks
from ebl.relax import Schedule
from ebl.rules import RULES
from ebl.rules.backprop import Linearised, Unrolled
from ebl.rules.contrast import Contrast
from ebl.steps import PlainStep, Stepper, evaluate

log = logging.getLogger("ebl")


def make_stepper(config: Config, net: Hopfield, optimiser: torch.optim.SGD, ranks: Ranks = ALONE) -> Stepper:
    """The path for this config and network; one line in the log where it is not the one asked for."""
    if net.biases[0].device.type != "cuda":
        if config.precision not in ("auto", "fp32"):
            log.info("precision = %s needs CUDA: the plain path is used, in float32", config.precision)
        return PlainStep(config, net, optimiser, ranks)
    from ebl.engine.captured import CapturedStep

    precision = config.precision
    if precision in ("auto", "fp16"):
        why = not_fused(config, net)
        if why is None:
            from ebl.engine.step import FusedStep

            return FusedStep(config, net, optimiser, ranks)
        log.info("the fused kernels do not take this run (%s): the plain path is used, with TF32 convolutions", why)
        precision = "tf32"
    return CapturedStep(config, net, optimiser, precision == "tf32", ranks)


def evaluate_as(precision: str, net: Hopfield, batches: Batches, schedule: Schedule) -> dict[str, Any]:
    """`ebl.steps.evaluate` on the fastest path that takes the network at this precision."""
    if net.biases[0].device.type != "cuda":
        return evaluate(net, batches, schedule)
    from ebl.engine.available import triton
    from ebl.engine.fused import Fused, supports

    fits = triton is not None and schedule.tolerance is None and supports(net, schedule.order) is None
    if precision in ("auto", "fp16") and fits:
        from ebl.engine.step import Evaluator

        return Evaluator(Fused(net, schedule.order))(batches, schedule)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=precision != "fp32"):
        return evaluate(net, batches, schedule)


def not_fused(config: Config, net: Hopfield) -> str | None:
    """Why the fused kernels cannot take a run; None if they can."""
    from ebl.engine.available import triton
    from ebl.engine.fused import supports

    if triton is None:
        return "Triton is not installed"
    rule = RULES[config.rule]
    if type(rule) not in (Contrast, Unrolled) and rule != Linearised():  # such as one of the user's own
        return f"rule {config.rule}"
    if isinstance(rule, Unrolled) and isinstance(config.nudged.omega, str):
        return f"{config.rule} with nudged.omega = {config.nudged.omega}"
    if config.free.tolerance is not None or config.nudged.tolerance is not None:
        return "a tolerance"
    if config.free.order != config.nudged.order:
        return "two orders"
    largest = max(2 * 4 * torch.Size(link.shape).numel() for link in net.links)
    if config.batch_size * largest >= 2**31:
        return f"batches of {config.batch_size}"
    return supports(net, config.free.order)
