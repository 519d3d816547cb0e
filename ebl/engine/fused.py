"""A Hopfield network as the fused kernels want it: 16-bit weights, states in halves, the relaxation over fixed buffers.

What it computes is what `ebl.relax` and `Hopfield.gradients` compute; buffers are changed in place, so that the whole can be
recorded as a CUDA graph. Hidden layers meet in kernels; the image's drive and the readout are small and stay in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ebl.boundary import FREE, Clamp
from ebl.engine.choose import Kernels
from ebl.engine.gradient import SCALE
from ebl.engine.kernels import CLAMP, POOL, SLOTS, STORE, Layer, Update
from ebl.engine.readout import LARGEST, readout, triton_readout
from ebl.models.hopfield import Hopfield
from ebl.models.links import Conv
from ebl.relax import Schedule, update_groups
from ebl.types import State

ORDERS = ("odd-first", "even-first")


@dataclass
class Phase:
    """Where a relaxation of B examples happens."""

    layers: list[Layer]  # the hidden ones
    stored: list[Tensor | None]  # what comes from the layer above, for layers that also hear from below
    drive: Tensor  # (1, B, H, W, C): what reaches layer 1 from the image, its bias included
    from_output: Tensor  # (1, B, H, W, C): what the last hidden layer hears from the output
    output: Tensor  # (B, classes)
    output_gap: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.output)

    def half(self) -> Phase:
        """The first half of the examples, in the same memory."""
        n = len(self) // 2
        layers = [
            replace(
                v,
                hi=v.hi[:n],
                lo=v.lo[:n],
                u=None if v.u is None else v.u[:n],
                gaps=None if v.gaps is None else v.gaps.flatten()[: v.gaps.numel() // 2].view(len(v.gaps), n, *v.gaps.shape[2:]),
            )
            for v in self.layers
        ]
        stored = [None if t is None else torch.empty_like(t[:, :n]) for t in self.stored]
        return Phase(layers, stored, self.drive[:, :n], self.from_output[:, :n], self.output[:n], self.output_gap[:n])


class Fused:
    """The kernels' view of a network. `cast` after every change of its parameters."""

    def __init__(self, net: Hopfield, order: str = "odd-first", drive_dtype: torch.dtype = torch.float16):
        self.net, self.order, self.drive_dtype = net, order, drive_dtype
        self.device = net.biases[0].device
        self.kernels = Kernels(self.device)
        self.side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.num_hidden = len(net.links) - 1
        self.shapes = [_map_shape(link.shape) for link in net.links[:-1]]  # (H, W, C), C a multiple of 8
        self.ops = [_product(link) for link in net.links[:-1]]
        self.weights: list[Tensor] = []
        for k in range(1, self.num_hidden):
            taps = self.ops[k].kernel_size ** 2
            shape = (self.shapes[k][2], taps, self.shapes[k - 1][2])
            self.weights.append(torch.zeros(shape, dtype=torch.float16, device=self.device))
        height, width, channels = self.shapes[-1]
        self.readout = torch.zeros(net.links[-1].shape[0], height * width * channels, device=self.device)
        self.biases = [torch.zeros(c, device=self.device) for _, _, c in self.shapes]
        first = self.groups()[0]
        self.early = [k for k in range(self.num_hidden) if k in first]  # hidden layers that move first in an iteration
        self.late = [k for k in range(self.num_hidden) if k not in first]  # their unpooled maps must be valid when one begins
        self.cast()

    @torch.no_grad()
    def cast(self) -> None:
        """Take over the parameters: 16-bit copies for the products, the readout in the order of our maps."""
        for k in range(1, self.num_hidden):
            to = self.weights[k - 1]
            w = self.net.weights[k]
            w = w.permute(0, 2, 3, 1).flatten(1, 2) if w.dim() == 4 else w.t()[:, None]
            to[: w.shape[0], :, : w.shape[2]].copy_(w)
        height, width, padded = self.shapes[-1]
        w = self.net.weights[-1]
        channels = w.shape[0] // (height * width)
        to = self.readout.view(-1, height, width, padded)
        to[..., :channels].copy_(w.view(channels, height, width, -1).permute(3, 1, 2, 0))
        for to, b in zip(self.biases, self.net.biases[:-1], strict=True):
            to[: len(b)].copy_(b)

    def phase(self, batch: int) -> Phase:
        """Fresh buffers, all states at zero."""
        dev = self.device
        layers: list[Layer] = []
        stored: list[Tensor | None] = []
        for k, (h, w, c) in enumerate(self.shapes):
            hi, lo = (torch.zeros(batch, h, w, c, dtype=torch.float16, device=dev) for _ in range(2))
            pooled = k > 0 and self.ops[k].mode == POOL
            u = torch.zeros(batch, 2 * h, 2 * w, c, dtype=torch.float16, device=dev) if pooled else None
            gaps = torch.zeros(-(-c // SLOTS), batch, h, w, device=dev)
            layers.append(Layer(hi, lo, u, self.biases[k] if k else None, gaps, self.ops[k].average))
        for k, shape in enumerate(self.shapes):
            t = None
            if 0 < k < self.num_hidden - 1:
                up = layers[k + 1]
                parts = self.kernels.parts(self._down(k + 1, STORE), up.hi if up.u is None else up.u, self.weights[k])
                t = torch.zeros(parts, batch, *shape, device=dev)
            stored.append(t)
        drive = torch.zeros(1, batch, *self.shapes[0], dtype=self.drive_dtype, device=dev)
        from_output = torch.zeros(1, batch, *self.shapes[-1], device=dev)
        output = torch.zeros(batch, self.net.links[-1].shape[0], device=dev)
        return Phase(layers, stored, drive, from_output, output, torch.zeros(batch, device=dev))

    @torch.no_grad()
    def drive(self, x: Tensor, phase: Phase) -> Tensor | None:
        """Fill the phase's drive from the images; what layer 1's weight gradient needs again."""
        pooled, extra = self.net.links[0].up(self.net.weights[0], self.net.biases[0], x)
        phase.drive[0, ..., : pooled.shape[1]].copy_(_maps(pooled))
        return extra

    def zero(self, phase: Phase) -> None:
        for layer in phase.layers:
            layer.hi.zero_()
            layer.lo.zero_()
            if layer.u is not None:
                layer.u.zero_()
        phase.output.zero_()

    def load(self, phase: Phase, state: State) -> None:
        """Take over a plain state."""
        for layer, s in zip(phase.layers, state[:-1], strict=True):
            s = _maps(s)
            c = s.shape[3]
            layer.hi[..., :c].copy_(s)
            layer.lo[..., :c].copy_(s - layer.hi[..., :c].float())
        phase.output.copy_(state[-1])

    def state(self, phase: Phase) -> State:
        """The state as the plain path has it."""
        found = []
        for layer, link in zip(phase.layers, self.net.links[:-1], strict=True):
            s = (layer.hi.float() + layer.lo.float())[..., : link.shape[0]].permute(0, 3, 1, 2)
            found.append(s.reshape(len(phase), *link.shape) if len(link.shape) == 1 else s)
        return (*found, phase.output.clone())

    def refresh(self, phase: Phase, ks: Sequence[int]) -> None:
        """Make the unpooled maps of these layers anew, from the layers below as they are."""
        for k in ks:
            if phase.layers[k].u is not None:
                self.kernels.update(self.ops[k], phase.layers[k - 1].hi, self.weights[k - 1], None, phase.layers[k], None)

    def groups(self, clamped: bool = False) -> list[list[int]]:
        return update_groups(self.net, self.num_hidden + 1, self.order, Clamp(torch.empty(0)) if clamped else FREE)

    @torch.no_grad()
    def relax(
        self,
        phase: Phase,
        iterations: int,
        omegas: Tensor,  # a factor for each group of each iteration
        beta: Tensor | None = None,  # (B, 1), with a target: the output is nudged
        target: Tensor | None = None,
        clamped: bool = False,
        watch: bool = True,
    ) -> None:
        """The unpooled maps of the layers that do not move first must be valid: zeros, a refresh or an earlier phase does it."""
        groups = self.groups(clamped)
        if clamped:
            self._move_output(phase, None, None, None)
        for i in range(iterations):
            seen = watch and i == iterations - 1
            for g, group in enumerate(groups):
                at = i * len(groups) + g
                omega = omegas[at : at + 1]
                with self._aside() if self.num_hidden in group else contextlib.nullcontext():
                    if self.num_hidden in group:
                        self._move_output(phase, omega, beta, target)
                for k in group:
                    if k < self.num_hidden:
                        self._move(phase, k, omega, seen)
                self._join()

    def residual(self, phase: Phase, clamped: bool = False) -> Tensor:
        """(B,): rms way of the worst block to where its update leads, as the last watched iteration met it."""
        rms = []
        for layer, link in zip(phase.layers, self.net.links[:-1], strict=True):
            assert layer.gaps is not None
            units = torch.Size(link.shape).numel()
            rms.append((layer.gaps.sum((0, 2, 3)) / units).sqrt())
        if not clamped:
            rms.append(phase.output_gap)
        return torch.stack(rms).amax(0)

    def _move(self, phase: Phase, k: int, omega: Tensor, watch: bool) -> None:
        """Update hidden layer k."""
        layer, last = phase.layers[k], k == self.num_hidden - 1
        if k == 0 and last:
            self._move_alone(phase, omega, watch)
        elif k == 0:
            up = phase.layers[1]
            x = up.hi if up.u is None else up.u
            self.kernels.update(self._down(1, CLAMP), x, self.weights[0], phase.drive, layer, omega, watch)
        else:
            t = phase.from_output if last else phase.stored[k]
            if not last:
                up = phase.layers[k + 1]
                x = up.hi if up.u is None else up.u
                self.kernels.update(self._down(k + 1, STORE), x, self.weights[k], t, None, None)
            self.kernels.update(self.ops[k], phase.layers[k - 1].hi, self.weights[k - 1], t, layer, omega, watch)

    def _move_alone(self, phase: Phase, omega: Tensor, watch: bool) -> None:
        """The only hidden layer: nothing but the drive and the output to hear from."""
        layer = phase.layers[0]
        old = layer.hi.float() + layer.lo.float()
        gap = (phase.drive[0].float() + phase.from_output[0]).clamp(0, 1) - old
        if watch:
            assert layer.gaps is not None
            layer.gaps.zero_()
            layer.gaps[0].copy_(gap.square().sum(3))
        s = (old + omega * gap).clamp(0, 1)
        layer.hi.copy_(s)
        layer.lo.copy_(s - layer.hi.float())

    def _move_output(self, phase: Phase, omega: Tensor | None, beta: Tensor | None, target: Tensor | None) -> None:
        """Without an omega the output stays and is only heard."""
        fits = self.device.type == "cuda" and self.readout.shape[1] <= LARGEST
        (triton_readout if fits else readout)(
            *(phase.layers[-1], self.readout, self.net.biases[-1], phase.output, phase.from_output, phase.output_gap),
            *(omega, beta, target),
        )

    def _down(self, k: int, mode: int) -> Update:
        """What layer k - 1 hears from layer k."""
        return replace(self.ops[k], mode=mode, down=True)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """On a second stream: the readout is tiny and hides behind the convolutions."""
        if self.side is None:
            yield
            return
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            yield

    def _join(self) -> None:
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)


class Contrasts:
    """The weight gradients of two phases held as one batch of 2B: buffers and the pass that fills them."""

    def __init__(self, fused: Fused, batch: int):
        self.fused, self.batch = fused, batch
        f16 = {"dtype": torch.float16, "device": fused.device}
        self.below = [torch.zeros(2 * batch, *shape, **f16) for shape in fused.shapes]
        self.above: list[Tensor | None] = [None]
        self.products: list[Tensor | None] = [None]
        for k in range(1, fused.num_hidden):
            h, w, c = fused.shapes[k]
            grow = 2 if fused.ops[k].mode == POOL else 1
            self.above.append(torch.zeros(2 * batch, grow * h, grow * w, c, **f16))
            weights = fused.weights[k - 1]
            self.products.append(torch.zeros(self._parts(k, weights), *weights.shape, device=fused.device))

    def _parts(self, k: int, weights: Tensor) -> int:
        """Enough parts of the sum over positions to fill a GPU."""
        if self.fused.device.type == "cpu":
            return 1
        tiles = -(-weights.shape[0] // 128) * -(-weights.shape[2] // 128) * weights.shape[1]
        units = torch.cuda.get_device_properties(self.fused.device).multi_processor_count
        return max(1, min(2 * units // tiles, 32))

    @torch.no_grad()
    def gradients(self, phase: Phase, x: Tensor, extra: Tensor | None, signs: Tensor, factor: Tensor) -> list[Tensor]:
        """factor sum_b signs_b (s2 (x) u2 - s1 (x) u1) for every parameter, in the order of parameters(): weights, biases.

        `phase` holds both phases; x and `extra` are the images and what `Fused.drive` returned."""
        fused, net = self.fused, self.fused.net
        batch = self.batch
        factor = factor / SCALE
        by_weight, by_bias = [], []
        for k, layer in enumerate(phase.layers):
            above = self.above[k]
            fused.kernels.contrast(layer, signs, self.below[k], above)
            channels = len(net.biases[k])
            by_bias.append(factor * self.below[k][:batch, ..., :channels].sum((0, 1, 2), dtype=torch.float32))
            if k == 0:
                signed = self.below[0][:batch, ..., :channels].float().permute(0, 3, 1, 2)
                signed = signed.reshape(batch, *net.links[0].shape) if len(net.links[0].shape) == 1 else signed
                with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
                    by_weight.append(factor * net.links[0].weight_gradient(signed, x, extra))
                continue
            products = self.products[k]
            assert above is not None
            assert products is not None
            fused.kernels.weight_gradient(fused.ops[k], self.below[k - 1], above, products)
            w = net.weights[k]
            found = factor * products.sum(0)
            if w.dim() == 4:
                n, c, kh, kw = w.shape
                by_weight.append(found[:n, :, :c].view(n, kh, kw, c).permute(0, 3, 1, 2))
            else:
                by_weight.append(found[: w.shape[1], 0, : w.shape[0]].t())
        s1, s2 = last_state(phase).chunk(2)
        o1, o2 = phase.output.chunk(2)
        f = factor * SCALE * signs[:, None]
        d, height, width = f * (o2 - o1), *fused.shapes[-1][:2]
        readout = (f * (s2 - s1)).t() @ ((o1 + o2) / 2) + ((s1 + s2) / 2).t() @ d
        channels = net.weights[-1].shape[0] // (height * width)
        maps = readout.view(height, width, -1, readout.shape[1])[:, :, :channels]
        by_weight.append(maps.permute(2, 0, 1, 3).flatten(0, 2))
        by_bias.append(d.sum(0))
        return by_weight + by_bias


def last_state(phase: Phase) -> Tensor:
    """(B, units) of the last hidden layer in float32."""
    layer = phase.layers[-1]
    return (layer.hi.float() + layer.lo.float()).flatten(1)


def factors(schedule: Schedule, groups: int, iterations: int, device: torch.device) -> Tensor:
    """The over-relaxation factors of that many iterations."""
    source = schedule.factors()
    return torch.tensor([next(source) for _ in range(groups * iterations)], device=device)


def supports(net: Hopfield, order: str) -> str | None:
    """Why the fused path cannot take this network; None if it can."""
    if order not in ORDERS:
        return f"order {order}"
    if net.biases[0].dtype != torch.float32:
        return f"{net.biases[0].dtype} parameters"
    if len(net.links) < 2:
        return "no hidden layer"
    return None


def _product(link: object) -> Update:
    if isinstance(link, Conv):
        return Update(POOL, False, link.kernel_size, link.padding, link.pool == "average")
    return Update(CLAMP, False, 1, 0)


def _map_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(H, W, C) of a layer; channels in eights, as TMA wants them: those too many stay at zero."""
    c, h, w = shape if len(shape) == 3 else (shape[0], 1, 1)
    return h, w, -(-c // 8) * 8


def _maps(s: Tensor) -> Tensor:
    """(B, C, H, W) or (B, C) as (B, H, W, C)."""
    return s.permute(0, 2, 3, 1) if s.dim() == 4 else s[:, None, None]
