"""The definitions with none of the savings: the twin that tests compare with and benchmarks measure against.

NCHW tensors, every field computed from nothing (three convolutions for each interaction and iteration), one phase after
the other, the gradients of each phase on their own, subtracted at the end. Hopfield networks, plain layers 1, 3, 5 then
2, 4. Nothing here is shared with the fast path but the network's parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.models.hopfield import Hopfield
from ebl.models.links import Conv


def contrast(
    net: Hopfield, x: Tensor, y: Tensor, b1: float, b2: float, T: int, K: int, omega: float = 1.0, clamp: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Free state and gradients, (dE(b2) - dE(b1)) / (b2 - b1) averaged over the batch, for the squared error."""
    with torch.no_grad():
        x = x.contiguous()
        free = relax(net, x, zeros(net, len(x)), T, omega)
        phases = []
        for beta in (b1, b2):
            target = free[-1] + beta * (y - free[-1]) if clamp else y
            end = relax(net, x, free, K, omega, beta, target, clamp)
            phases.append(energy_gradients(net, x, end))
        return free, [(g2 - g1) / (b2 - b1) / len(x) for g1, g2 in zip(*phases, strict=True)]


def relax(
    net: Hopfield,
    x: Tensor,
    start: list[Tensor],
    iterations: int,
    omega: float = 1.0,
    beta: float = 0.0,
    y: Tensor | None = None,
    clamp: bool = False,
) -> list[Tensor]:
    s = list(start)
    last = len(s) - 1
    if clamp and y is not None:
        s[last] = y
    for _ in range(iterations):
        for parity in (0, 1):
            new = list(s)
            for k in range(parity, len(s), 2):
                h = field(net, k, x, s)
                if k < last:
                    new[k] = (s[k] + omega * (h.clamp(0, 1) - s[k])).clamp(0, 1)
                elif not clamp:
                    o = h if y is None else (h + beta * y) / (1 + beta)
                    new[k] = s[k] + omega * (o - s[k])
            s = new
    return s


def field(net: Hopfield, k: int, x: Tensor, s: list[Tensor]) -> Tensor:
    pooled, _ = _up(net, k, x if k == 0 else s[k - 1])
    h = pooled + _column(net.biases[k], pooled)
    if k + 1 == len(s):
        return h
    w = net.weights[k + 1].contiguous()
    if not isinstance(net.links[k + 1], Conv):
        return h + (s[k + 1] @ w.t()).view_as(h)
    _, indices = _up(net, k + 1, s[k])
    return h + F.conv_transpose2d(_unpool(s[k + 1], indices), w, padding=_padding(net, k + 1))


def energy_gradients(net: Hopfield, x: Tensor, s: list[Tensor]) -> list[Tensor]:
    """dE/dtheta summed over the batch, in the order of parameters()."""
    by_weight, by_bias = [], []
    for k, above in enumerate(s):
        below = x if k == 0 else s[k - 1]
        if isinstance(net.links[k], Conv):
            _, indices = _up(net, k, below)
            spread = _unpool(above, indices)
            shape = net.weights[k].shape
            by_weight.append(-torch.nn.grad.conv2d_weight(below, shape, spread, padding=_padding(net, k)))
            by_bias.append(-above.sum((0, 2, 3)))
        else:
            by_weight.append(-below.flatten(1).t() @ above)
            by_bias.append(-above.sum(0))
    return by_weight + by_bias


def zeros(net: Hopfield, batch: int) -> list[Tensor]:
    b = net.biases[0]
    return [torch.zeros(batch, *link.shape, dtype=b.dtype, device=b.device) for link in net.links]


def _up(net: Hopfield, k: int, below: Tensor) -> tuple[Tensor, Tensor | None]:
    w = net.weights[k].contiguous()
    link = net.links[k]
    if not isinstance(link, Conv):
        return below.flatten(1) @ w, None
    z = F.conv2d(below, w, padding=link.padding)
    if link.pool == "average":
        return F.avg_pool2d(z, 2), None
    return F.max_pool2d(z, 2, return_indices=True)


def _unpool(above: Tensor, indices: Tensor | None) -> Tensor:
    if indices is None:
        return above.repeat_interleave(2, 2).repeat_interleave(2, 3) / 4
    return F.max_unpool2d(above, indices, [2, 2])


def _padding(net: Hopfield, k: int) -> int:
    link = net.links[k]
    assert isinstance(link, Conv)
    return link.padding


def _column(bias: Tensor, like: Tensor) -> Tensor:
    return bias.view(-1, *[1] * (like.dim() - 2))
