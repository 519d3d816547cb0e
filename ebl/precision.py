"""How exact each precision's gradients are: against float64, on one network, from one settled state.

Equilibria are plural, so all start their perturbed phases from the same free equilibrium, found in float64."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.config import Config
from ebl.costs import SquaredError
from ebl.engine import not_fused
from ebl.models.hopfield import Hopfield
from ebl.relax import Schedule, relax
from ebl.rules import RULES, as_target
from ebl.types import Settled

log = logging.getLogger("ebl")

ROUNDED = "fp16, against float64 with 16-bit weights"  # what is left once the weights' own rounding is set aside


@dataclass(frozen=True)
class Row:
    precision: str
    cosines: list[float]  # of each layer's weight gradient to the one in float64
    sizes: list[float]  # norm over norm


def compare(config: Config, net: Hopfield, x: Tensor, y: Tensor, settling: int = 200) -> list[Row]:
    """One row for each precision this device has. `settling`: iterations at omega 1.5 that find the free state."""
    exact = copy.deepcopy(net).double()
    rule = RULES[config.rule]
    beta = rule.check_beta(config.rule, config.beta)
    free = relax(exact, x.double(), Schedule(settling, omega=1.5, order=config.free.order))

    def gradients(model: Hopfield) -> list[Tensor]:
        dtype = model.biases[0].dtype
        state = tuple(s.to(dtype) for s in free.state)
        start = Settled(state, free.residual.to(dtype), free.iterations)
        target = as_target(y, state[-1])
        return rule.gradients(model, x.to(dtype), target, start, {}, config.nudged, SquaredError(), beta, torch.Generator())[0]

    layers = len(net.links)
    right = gradients(exact)[:layers]
    found: dict[str, list[Tensor]] = {}
    references: dict[str, list[Tensor]] = {}
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found["fp32"] = gradients(net)
    if x.device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
            found["tf32"] = gradients(net)
        settings = replace(config, batch_size=len(x), precision="fp16")
        why = not_fused(settings, net)
        if why is not None:
            log.info("without fp16: the fused kernels do not take this network (%s)", why)
        else:
            from ebl.engine.step import FusedStep

            step = FusedStep(settings, net, torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9))
            found["fp16"] = step.gradients_from(x, y, tuple(s.float() for s in free.state))
            found[ROUNDED] = found["fp16"]
            references[ROUNDED] = gradients(_with_rounded_weights(exact))[:layers]
    rows = []
    for name, values in found.items():
        pairs = [(a.double().flatten(), b.flatten()) for a, b in zip(values[:layers], references.get(name, right), strict=True)]
        cosines = [float(F.cosine_similarity(a, b, 0)) for a, b in pairs]
        rows.append(Row(name, cosines, [float(a.norm() / b.norm()) for a, b in pairs]))
    return rows


def _with_rounded_weights(net: Hopfield) -> Hopfield:
    """The network whose products the fused kernels take: 16-bit weights between hidden layers."""
    rounded = copy.deepcopy(net)
    with torch.no_grad():
        for w in list(rounded.weights)[1:-1]:
            w.copy_(w.half())
    return rounded
