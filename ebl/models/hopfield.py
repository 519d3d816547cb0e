"""Hopfield networks in layers: dense, and the paper's deep convolutional one (DCHN).

E(x, s) = sum_k 1/2 |s_k|^2 - s_k . up_k(s_{k-1}) - b_k . s_k, with s_0 = x, hidden layers in [0, 1] and a linear output.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import torch
from torch import Tensor, nn

from ebl.boundary import Nudge
from ebl.costs import too_far
from ebl.errors import InputError, choose
from ebl.models.links import Conv, Dense, Extra, Link
from ebl.recording import recording
from ebl.shapes import per_example
from ebl.types import Boundary, Memo, State

POOLS = ("max", "average")


class Hopfield(nn.Module):
    """What the dense and the convolutional network share. Layer k of the paper is block k - 1 of the state."""

    def __init__(self, input_shape: tuple[int, ...], links: Sequence[Link], gains: float | Sequence[float], seed: int):
        super().__init__()
        self.input_shape = input_shape
        self.links = tuple(links)
        self.interactions = tuple((k, k + 1) for k in range(len(links) - 1))
        self.bounds = ((0.0, 1.0),) * (len(links) - 1) + (None,)
        generator = torch.Generator().manual_seed(seed)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for link, gain in zip(links, per_layer("gains", gains, len(links)), strict=True):
            self.weights.append(nn.Parameter(_uniform(link.weight_shape, gain / sqrt(link.fan_in), generator)))
            self.biases.append(nn.Parameter(_uniform(link.shape[:1], 0.5 / sqrt(link.fan_in), generator)))

    def init_state(self, x: Tensor) -> State:
        """All layers at zero."""
        b = self.biases[0]
        zeros = (torch.zeros((len(x), *link.shape), dtype=b.dtype, device=b.device) for link in self.links)
        return tuple(s.contiguous(memory_format=torch.channels_last) if s.dim() == 4 else s for s in zeros)

    def energy(self, x: Tensor, state: State) -> Tensor:
        total = torch.zeros(len(x), dtype=state[0].dtype, device=state[0].device)
        for below, s, k in zip((x, *state), state, range(len(state)), strict=False):
            drive, _ = self._up(k, below, None)
            total = total + (s * (0.5 * s - drive)).flatten(1).sum(1)
        return total

    def field(self, k: int, x: Tensor, state: State, memo: Memo | None = None) -> Tensor:
        """s_k - dE/ds_k: what reaches layer k from below (with its bias) and from above."""
        drive, _ = self._up(k, (x, *state)[k], memo)
        if k + 1 == len(state):
            return drive
        _, extra = self._up(k + 1, state[k], memo)
        return drive + self.links[k + 1].down(self.weights[k + 1], state[k + 1], extra)

    def update(self, k: int, x: Tensor, state: State, boundary: Boundary, memo: Memo | None = None) -> Tensor:
        """Layer k's minimiser, the others held: its field, clamped; at the output, what the boundary makes of it.

        With max pooling it minimises an upper bound of the energy that touches it at `state`: the energy still falls.
        """
        h = self.field(k, x, state, memo)
        return boundary.output(h) if k == len(state) - 1 else h.clamp_(0.0, 1.0)

    def gradients(self, x: Tensor, state: State, weights: Tensor, memo: Memo | None = None) -> list[Tensor]:
        """d/dtheta of sum_b weights[b] E_b, in the order of parameters(): local products of neighbouring layers."""
        by_weight, by_bias = [], []
        for k, link in enumerate(self.links):
            signed = state[k] * -per_example(weights, state[k])
            by_bias.append(signed.sum((0, 2, 3)) if signed.dim() == 4 else signed.sum(0))
            below, kept = (x, *state)[k], memo
            if k == 0 and memo is not None and "twice" in memo:  # one image, so one argmax: contrast before convolving
                below, kept = memo["twice"]
                signed = torch.add(*signed.chunk(2))
            _, extra = self._up(k, below, kept)
            by_weight.append(link.weight_gradient(signed, below, extra))
        return by_weight + by_bias

    def check(self, x: Tensor, boundary: Boundary) -> None:
        b = self.biases[0]
        dense = len(self.input_shape) == 1  # takes any shape with as many numbers
        if x.dim() < 2 or (
            torch.Size(x.shape[1:]).numel() != self.input_shape[0] if dense else tuple(x.shape[1:]) != self.input_shape
        ):
            want = "×".join(map(str, self.input_shape))
            raise InputError(f"x has shape {tuple(x.shape)}: this network takes (batch, {want}); reshape x or the network")
        if x.dtype != b.dtype or x.device != b.device:
            raise InputError(
                f"x is {x.dtype} on {x.device}, the network {b.dtype} on {b.device}: convert one, as in x.to(net.biases[0])"
            )
        if isinstance(boundary, Nudge) and not recording():
            lowest = float(torch.as_tensor(boundary.beta).min())
            if lowest < 0 and lowest <= boundary.cost.lowest_beta:
                raise InputError(too_far(f"beta = {-lowest:g}", boundary.cost))

    def _up(self, k: int, below: Tensor, memo: Memo | None) -> tuple[Tensor, Extra]:
        """Layer k's drive from below, its bias included. States are never changed in place, so what was computed from the
        same tensor still holds: the image's drive is found once, and each convolution serves its layer and the one below."""
        if memo is None:
            return self.links[k].up(self.weights[k], self.biases[k], below)
        if k not in memo or memo[k][0] is not below:
            if k == 0 and "twice" in memo:
                drive, _ = self._up(0, *memo["twice"])
                memo[0] = (below, (torch.cat([drive, drive]), None))
            else:
                memo[k] = (below, self._up(k, below, None))
        return memo[k][1]


class DenseHopfield(Hopfield):
    """A layered Hopfield network with dense weights. `sizes`: inputs, hidden layers, outputs."""

    def __init__(self, sizes: Sequence[int] = (784, 512, 10), *, gains: float | Sequence[float] = 0.5, seed: int = 0):
        if len(sizes) < 2 or min(sizes) < 1:
            raise InputError(f"sizes = {tuple(sizes)}: give at least an input and an output size, such as (784, 512, 10)")
        links = [Dense((below,), (above,)) for below, above in pairwise(sizes)]
        super().__init__((sizes[0],), links, gains, seed)


class ConvHopfield(Hopfield):
    """The paper's deep convolutional Hopfield network: convolutions with 2x2 pooling, then one dense layer."""

    def __init__(
        self,
        in_channels: int = 3,
        image_size: int | tuple[int, int] = 32,
        channels: Sequence[int] = (128, 256, 512, 512),
        num_classes: int = 10,
        *,
        kernel_size: int = 3,
        padding: int = 1,
        pool: str = "max",
        gains: float | Sequence[float] = 0.5,
        seed: int = 0,
    ):
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        links = conv_links((in_channels, height, width), channels, num_classes, kernel_size, padding, pool)
        super().__init__((in_channels, height, width), links, gains, seed)


def conv_links(
    input_shape: tuple[int, int, int], channels: Sequence[int], num_classes: int, kernel_size: int, padding: int, pool: str
) -> list[Link]:
    """The links of a convolutional network, or an error that names what does not fit."""
    choose("pool", pool, POOLS)
    for name, value in (("in_channels", input_shape[0]), ("num_classes", num_classes), ("kernel_size", kernel_size)):
        if value < 1:
            raise InputError(f"{name} = {value}: use a positive number")
    if padding < 0:
        raise InputError(f"padding = {padding}: use 0 or a positive number")
    if not isinstance(channels, Sequence) or not channels or not all(isinstance(c, int) and c > 0 for c in channels):
        raise InputError(f"channels = {channels!r}: give one positive whole number a layer, such as (128, 256, 512, 512)")
    shape: tuple[int, ...] = input_shape
    links: list[Link] = []
    for k, count in enumerate(channels, 1):
        link = Conv((shape[0], shape[1], shape[2]), count, kernel_size, padding, pool)
        if min(link.map_size) < 2 or link.map_size[0] % 2 or link.map_size[1] % 2:
            raise InputError(
                f"image_size = {input_shape[1]}×{input_shape[2]}: layer {k} would pool a map of {link.map_size[0]}×"
                f"{link.map_size[1]}, which 2×2 windows do not tile; use a multiple of {2 ** len(channels)} "
                "(pad the images) with padding = (kernel_size - 1) / 2, or fewer layers"
            )
        links.append(link)
        shape = link.shape
    return [*links, Dense(shape, (num_classes,))]


def per_layer(name: str, value: float | Sequence[float], num_layers: int) -> tuple[float, ...]:
    """One number for each layer: a single one is repeated."""
    values = tuple(float(v) for v in value) if isinstance(value, Sequence) else (float(value),)
    if len(values) not in (1, num_layers):
        raise InputError(f"{name} has {len(values)} values for {num_layers} layers: give one for each layer, or just one")
    return values * num_layers if len(values) == 1 else values


def _uniform(shape: tuple[int, ...], limit: float, generator: torch.Generator) -> Tensor:
    w = (torch.rand(shape, generator=generator) * 2 - 1) * limit
    return w.contiguous(memory_format=torch.channels_last) if w.dim() == 4 else w
