"""The learning rules, a row each. A new rule is a new row, or an object with the two methods of `Rule`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.costs import Cost, SquaredError
from ebl.errors import InputError, choose
from ebl.models.hopfield import Hopfield
from ebl.recording import recording
from ebl.relax import Schedule, as_schedule, relax
from ebl.rules.backprop import Linearised, Unrolled
from ebl.rules.contrast import Contrast
from ebl.types import Energy, Memo, Settled, State


class Rule(Protocol):
    def check_beta(self, name: str, beta: float | None, cost: Cost | None = None) -> float: ...  # the beta to use, or an error

    def gradients(
        self,
        net: Energy,
        x: Tensor,
        target: Tensor,
        free: Settled,
        free_memo: Memo,
        nudged: Schedule,
        cost: Cost,
        beta: float,
        generator: torch.Generator | None,
    ) -> tuple[list[Tensor], Settled]: ...  # batch means, in the order of parameters(); where the last phase ended


RULES: dict[str, Rule] = {
    "cl": Contrast("clamp", 0, 1, beta=1.0, beta_is_fixed=True),
    "p-ep": Contrast("nudge", 0, 1),
    "n-ep": Contrast("nudge", -1, 0),
    "c-ep": Contrast("nudge", -1, 1),
    "p-cpl": Contrast("clamp", 0, 1),
    "n-cpl": Contrast("clamp", -1, 0),
    "c-cpl": Contrast("clamp", -1, 1),
    "r-ep": Contrast("nudge", 0, 1, random_sign=True),
    "tbp": Unrolled(),
    "rbp": Linearised(),
}


METHODS = ("check_beta", "gradients")
COST = ("value", "gradient", "prox", "lowest_beta")


@dataclass(frozen=True)
class Estimate:
    """What one call of `estimate_gradients` saw, beside the gradients it left in `.grad`."""

    output: Tensor  # (B, ...), at the free equilibrium
    cost: Tensor  # the batch mean
    top1_error: Tensor  # shares of the batch between 0 and 1; NaN where y gives no classes
    top5_error: Tensor
    free: Settled
    nudged: Settled  # its state is the second phase's; its residual the worse of the two phases'

    @property
    def state(self) -> State:
        """Where the last phase ended: the start to carry over to the next batch."""
        return self.nudged.state


def estimate_gradients(
    net: Energy,
    x: Tensor,
    y: Tensor,
    *,
    rule: str | Rule = "c-ep",
    beta: float | None = None,
    free: Schedule | int = 60,
    nudged: Schedule | int = 20,
    cost: Cost | None = None,
    start: State | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Let the network settle, apply a learning rule and leave its estimate of the cost's gradient in every `.grad`.

    x          (B, ...) inputs
    y          (B,) class labels, or targets of the output's shape
    rule       cl p-ep n-ep c-ep p-cpl n-cpl c-cpl r-ep tbp rbp, or an object like those in `RULES`
    beta       strength of the perturbation; None takes the rule's own (0.25; 1 for cl; tbp and rbp have none)
    free       how the free phase relaxes
    nudged     how each perturbed phase relaxes. tbp backpropagates through that many iterations, whatever the tolerance;
               rbp makes that many synchronous ones of the adjoint (`Linearised(order)` for another order), at omega = 1
    cost       SquaredError() unless given
    start      the state the free phase starts from; None: zeros
    generator  draws the signs of r-ep

    The estimate is the mean over the batch and replaces what `.grad` held: a torch.optim step may follow at once.
    """
    if not isinstance(rule, str) and (isinstance(rule, type) or not all(hasattr(rule, name) for name in METHODS)):
        wanted = f"give one of {', '.join(RULES)}, or an object with {' and '.join(METHODS)}, like those in ebl.RULES"
        raise InputError(f"rule = {rule!r}: {wanted}")
    name, chosen = (rule, RULES[choose("rule", rule, RULES)]) if isinstance(rule, str) else (type(rule).__name__, rule)
    for what, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise InputError(f"{what} is a {type(value).__name__}: give a tensor, as torch.as_tensor makes one")
    if beta is not None and not isinstance(beta, int | float):
        raise InputError(f"beta = {beta!r}: give a number such as 0.25")
    cost = SquaredError() if cost is None else cost
    for given, methods, example in ((net, ("init_state", "energy"), "ebl.ConvHopfield()"), (cost, COST, "ebl.SquaredError()")):
        if isinstance(given, type) or not all(hasattr(given, name) for name in methods):
            raise InputError(f"{given!r} lacks one of {', '.join(methods)}: give an object that has them, such as {example}")
    strength = chosen.check_beta(name, beta, cost if isinstance(net, Hopfield) else None)
    memo: Memo = {}
    try:
        settled = relax(net, x, free, start=start, memo=memo)
    except RuntimeError as error:
        _check_dtype(net, x, error)
        raise
    output = settled.state[-1]
    target = as_target(y, output)
    value = cost.value(output, target)
    if value.shape != (len(x),):
        raise InputError(f"the cost has shape {tuple(value.shape)} for {len(x)} examples: return one number for each, (B,)")
    gradients, last = chosen.gradients(net, x, target, settled, memo, as_schedule(nudged), cost, strength, generator)
    parameters, gradients = list(net.parameters()), list(gradients)
    if len(gradients) != len(parameters):
        raise InputError(
            f"rule {name} gives {len(gradients)} gradients: return one for each of the {len(parameters)} parameters"
        )
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g.to(p.dtype) if p.requires_grad else None
    top1, top5 = error_rates(output, y)
    return Estimate(output, value.mean(), top1, top5, settled, last)


def _check_dtype(net: Energy, x: Tensor, error: RuntimeError) -> None:
    """A line for what PyTorch says less plainly of an energy of the user's own."""
    kinds = {p.dtype for p in net.parameters()}
    of_dtypes = any(word in str(error) for word in ("dtype", "scalar type", "floating point"))
    if of_dtypes and kinds and x.dtype not in kinds:
        wanted = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise InputError(f"x is {str(x.dtype).removeprefix('torch.')}, the network {wanted}: convert one of them") from error


def as_target(y: Tensor, output: Tensor) -> Tensor:
    """Labels as one-hot codes; targets as they are."""
    if y.is_floating_point():
        if y.shape != output.shape:
            raise InputError(
                f"y has shape {tuple(y.shape)}: targets need the output's, {tuple(output.shape)}; labels are integers (.long())"
            )
        if not bool(torch.isfinite(y).all()):
            raise InputError("y holds values that are NaN or infinite: clean the targets before training")
        return y.to(output)
    if output.dim() != 2:
        raise InputError(f"y holds labels, but the output has shape {tuple(output.shape)}: give targets of that shape")
    num_classes = output.shape[1]
    if y.shape != output.shape[:1]:
        raise InputError(f"y has shape {tuple(y.shape)}: give one label for each of the {len(output)} examples")
    if not recording():
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= num_classes:
            bad = low if low < 0 else high
            raise InputError(
                f"label {bad} is out of range: the network has {num_classes} outputs, labels run from 0 to {num_classes - 1}"
            )
    return F.one_hot(y.long(), num_classes).to(output)


def error_rates(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the examples whose label is not the largest output, and not among the five largest."""
    if y.is_floating_point():
        nan = output.new_full((), torch.nan)
        return nan, nan
    rank = rank_of_label(output, y)
    return (rank >= 1).double().mean(), (rank >= 5).double().mean()


def rank_of_label(output: Tensor, y: Tensor) -> Tensor:
    """How many outputs are larger than the label's; of equal ones the first counts as larger, and NaN beats everything."""
    mine = output.gather(1, y[:, None])
    place = torch.arange(output.shape[1], device=output.device)
    return (~(output <= mine) | ((output == mine) & (place < y[:, None]))).sum(1)
