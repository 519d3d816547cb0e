"""A Hopfield network as the fused kernels want it: 16-bit weights, states in halves, the relaxation over fixed buffers.

What it computes is what `ebl.relax` and `Hopfield.gradients` compute; buffers are changed in place, so that the whole can be
recorded as a CUDA graph. Hidden layers meet in kernels; the readout is small and stays in float32. The image's drive is found
once a batch, in float32, and kept in 16 bit for the free phase. What the perturbed phases deviate from is found with weights
and drive as they are: with rounded ones, a few images near a tipping point spoil the gradient's direction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ebl.boundary import FREE, Clamp
from ebl.engine.choose import Kernels
from ebl.engine.deviation import LIMIT, SCALE, Deviation, move_deviations
from ebl.engine.kernels import CLAMP, POOL, SLOTS, STORE, Layer, Update, move_towards
from ebl.models.hopfield import Hopfield
from ebl.models.links import Conv
from ebl.relax import Schedule, update_groups
from ebl.types import State

ORDERS = ("odd-first", "even-first")


@dataclass
class Phase:
    """Where a free relaxation of B examples happens."""

    layers: list[Layer]  # the hidden ones
    stored: list[Tensor | None]  # what comes from the layer above, for layers that also hear from below; 16-bit
    drive: Tensor  # (1, B, H, W, C): what reaches layer 1 from the image, its bias included
    heard: Tensor  # (1, B, H, W, C): what the last hidden layer hears from the output
    output: Tensor  # (B, classes)
    output_gap: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.output)


@dataclass
class Perturbed:
    """Both perturbed phases of those examples, as deviations from where they are."""

    layers: list[Deviation]
    stored: list[Tensor | None]
    at_rest: list[Tensor | None]  # the same for the free state, float32; the first one is the image's drive
    where: Tensor | None  # (B, H, W, C) uint8: which positions of the image's map won, where layer 1 pools by maxima
    heard: Tensor
    output: Tensor
    output_gap: Tensor
    origin: Tensor  # (B, classes): the free output

    def __len__(self) -> int:
        return len(self.output)


class Fused:
    """The kernels' view of a network. `cast` after every change of its parameters."""

    def __init__(self, net: Hopfield, order: str = "odd-first", drive_dtype: torch.dtype = torch.float16):
        self.net, self.order, self.drive_dtype = net, order, drive_dtype
        self.device = net.biases[0].device
        self.kernels = Kernels(self.device)
        self.num_hidden = len(net.links) - 1
        count = self.num_hidden + 2 if self.device.type == "cuda" else 0
        self.sides = [torch.cuda.Stream(self.device) for _ in range(count)]
        self.shapes = [_map_shape(link.shape) for link in net.links[:-1]]  # (H, W, C), C a multiple of 8
        self.ops = [_product(link) for link in net.links[:-1]]
        self.halves: list[Tensor] = []  # (2, N, taps, C) between hidden layers: 16-bit weights, and what 16 bits leave out
        for k in range(1, self.num_hidden):
            taps = self.ops[k].kernel_size ** 2
            shape = (2, self.shapes[k][2], taps, self.shapes[k - 1][2])
            self.halves.append(torch.zeros(shape, dtype=torch.float16, device=self.device))
        self.weights = [pair[0] for pair in self.halves]
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
            w = self.net.weights[k]
            w = w.permute(0, 2, 3, 1).flatten(1, 2) if w.dim() == 4 else w.t()[:, None]
            coarse, fine = self.halves[k - 1][:, : w.shape[0], :, : w.shape[2]]
            coarse.copy_(w)
            torch.sub(w, coarse, out=fine)
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
        for k, (h, w, c) in enumerate(self.shapes):
            hi, lo = (torch.zeros(batch, h, w, c, dtype=torch.float16, device=dev) for _ in range(2))
            pooled = k > 0 and self.ops[k].mode == POOL
            u = torch.zeros(batch, 2 * h, 2 * w, c, dtype=torch.float16, device=dev) if pooled else None
            gaps = torch.zeros(-(-c // SLOTS), batch, h, w, device=dev)
            layers.append(Layer(hi, lo, u, self.biases[k] if k else None, gaps))
        drive = torch.zeros(1, batch, *self.shapes[0], dtype=self.drive_dtype, device=dev)
        heard = torch.zeros(1, batch, *self.shapes[-1], device=dev)
        output = torch.zeros(batch, self.net.links[-1].shape[0], device=dev)
        stored = self.stored(layers, batch, torch.float16, self.weights)
        return Phase(layers, stored, drive, heard, output, torch.zeros(batch, device=dev))

    def perturbed(self, free: Phase) -> Perturbed:
        """Buffers of both perturbed phases. The free states stay where they are and are shared."""
        batch, dev = len(free), self.device
        layers: list[Deviation] = []

        def zeros(like: Tensor, times: int) -> Tensor:
            return torch.zeros(times * batch, *like.shape[1:], dtype=torch.float16, device=dev)

        for free_layer, op in zip(free.layers, self.ops, strict=True):
            hi, u = free_layer.hi, free_layer.u
            layer = Deviation(hi, free_layer.lo, zeros(hi, 1), zeros(hi, 2), free_layer.bias)
            if u is not None:
                layer = replace(layer, behind=zeros(u, 1), u=u, du=zeros(u, 2), average=op.average)
            layers.append(layer)
        heard = torch.zeros(1, 2 * batch, *self.shapes[-1], device=dev)
        output = torch.zeros(2 * batch, *free.output.shape[1:], device=dev)
        gap = torch.zeros(2 * batch, device=dev)
        stored = self.stored(layers, 2 * batch, torch.float16, self.weights)
        at_rest = self.stored(free.layers, batch, torch.float32, self.halves)
        at_rest[0] = torch.zeros(1, batch, *self.shapes[0], device=dev)
        first = self.net.links[0]
        maxima = isinstance(first, Conv) and first.pool == "max"
        where = torch.zeros(batch, *self.shapes[0], dtype=torch.uint8, device=dev) if maxima else None
        return Perturbed(layers, stored, at_rest, where, heard, output, gap, free.output)

    def stored(
        self, layers: Sequence[Layer] | Sequence[Deviation], batch: int, dtype: torch.dtype, weights: list[Tensor]
    ) -> list[Tensor | None]:
        """Buffers for what comes from the layer above, for layers that also hear from below."""
        found: list[Tensor | None] = []
        for k, shape in enumerate(self.shapes):
            t = None
            if 0 < k < self.num_hidden - 1:
                x = _upper(layers[k + 1])
                parts = self.kernels.parts(self._down(k + 1, STORE), x, weights[k])
                t = torch.zeros(parts, batch, *shape, dtype=dtype, device=self.device)
            found.append(t)
        return found

    @torch.no_grad()
    def drive(self, x: Tensor, phase: Phase, perturbed: Perturbed | None = None) -> Tensor | None:
        """Fill the drive from the images; with `perturbed`, also which positions won, as `spread` wants them (or None)."""
        link, w, b = self.net.links[0], self.net.weights[0], self.net.biases[0]
        exact = None if perturbed is None else perturbed.at_rest[0]
        if isinstance(link, Conv):
            where = None if perturbed is None else perturbed.where
            self.kernels.drive(link, x, w, b, phase.drive[0], None if exact is None else exact[0], where)
            return where
        for to in (phase.drive, exact):
            if to is not None:
                to[0, ..., : len(b)].copy_(maps_of(link.up(w, b, x)[0]))
        return None

    def zero(self, phase: Phase) -> None:
        for layer in phase.layers:
            layer.hi.zero_()
            layer.lo.zero_()
            if layer.u is not None:
                layer.u.zero_()
        phase.output.zero_()
        phase.heard.zero_()

    def load(self, phase: Phase, state: State) -> None:
        """Take over a plain state."""
        for layer, s in zip(phase.layers, state[:-1], strict=True):
            s = maps_of(s)
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

    def refresh(self, phase: Phase) -> None:
        """Make ready a state to start from: the unpooled maps of the layers that do not move first, and what the last hidden
        layer hears, anew from the states and weights as they are. A sum of hi and lo that lies between two values of hi is
        parted as `load` does it, so that a run goes on in the same way from its checkpoint."""
        for layer in phase.layers:
            s = layer.hi.float() + layer.lo
            layer.hi.copy_(s)
            layer.lo.copy_(s - layer.hi)
        for k in self.late:
            if phase.layers[k].u is not None:
                self.kernels.update(self.ops[k], phase.layers[k - 1].hi, self.weights[k - 1], None, phase.layers[k], None)
        self._move_output(phase, None, None, None, None)

    def carry(self, phase: Phase, perturbed: Perturbed) -> None:
        """Take over the state the second perturbed phase ended in."""
        batch = len(phase)
        for layer, there in zip(phase.layers, perturbed.layers, strict=True):
            s = layer.hi.float() + there.d[batch:].float() / SCALE
            layer.hi.copy_(s)
            layer.lo.copy_(s - layer.hi.float())
        phase.output.copy_(perturbed.output[batch:])

    def groups(self, clamped: bool = False) -> list[list[int]]:
        return update_groups(self.net, self.num_hidden + 1, self.order, Clamp(torch.empty(0)) if clamped else FREE)

    @torch.no_grad()
    def relax(self, phase: Phase, iterations: int, omegas: Tensor) -> None:
        """Settle; omegas holds a factor for each group of each iteration. The unpooled maps of the layers that do not move
        first must be valid: zeros, a refresh, or another relaxation just before does it."""
        self.iterate(self.groups() * iterations, omegas, lambda *how: self._move(phase, *how))

    @torch.no_grad()
    def perturb(
        self,
        phase: Phase,
        perturbed: Perturbed,
        iterations: int,
        omegas: Tensor,
        betas: Tensor,  # (2B, 1)
        targets: Tensor,  # (2B, classes)
        clamped: bool,
    ) -> None:
        """From the free state `phase` is in: nudge the output by betas, or clamp it at o + beta (target - o), and settle."""
        self.rest(phase, perturbed)
        perturbed.output.copy_(torch.cat([phase.output, phase.output]))
        if clamped:
            perturbed.output.add_(betas * (targets - perturbed.output))
            self._move_output(phase, perturbed, None, None, None)
        else:
            perturbed.heard.zero_()

        def move(k: int, omega: Tensor, last: bool, lanes: Lanes) -> None:
            if k == self.num_hidden:
                lanes.after(k - 1)
                self._move_output(phase, perturbed, omega, betas, targets)
            else:
                self.deviate(perturbed, k, omega, lanes)

        self.iterate(self.groups(clamped) * iterations, omegas, move)
        for k in self.early:  # their layers below have moved since
            if k > 0 and perturbed.layers[k].du is not None:
                below, w = perturbed.layers[k - 1].d, self.weights[k - 1]
                self.kernels.deviation(self.ops[k], below, w, None, perturbed.layers[k], None)

    def iterate(self, groups: list[list[int]], omegas: Tensor, move: Callable[[int, Tensor, bool, Lanes], None]) -> None:
        """Move one group after another; `move` is told where a layer moves for the last time. A layer waits for its neighbours
        and no other: layers of one colour, and of the next, fill the GPU together."""
        lanes = Lanes(self.sides)
        for at, group in enumerate(groups):
            for k in reversed(group):
                with lanes.of(k):
                    move(k, omegas[at : at + 1], not any(k in later for later in groups[at + 1 :]), lanes)
        lanes.join()

    def residual(self, phase: Phase) -> Tensor:
        """(B,): rms way of the worst block to where its update leads, as the last iteration met it."""
        rms = []
        for layer, link in zip(phase.layers, self.net.links[:-1], strict=True):
            assert layer.gaps is not None
            units = torch.Size(link.shape).numel()
            rms.append((layer.gaps.sum((0, 2, 3)) / units).sqrt())
        return torch.stack([*rms, phase.output_gap]).amax(0)

    def _move(self, phase: Phase, k: int, omega: Tensor, watch: bool, lanes: Lanes) -> None:
        """Update layer k of a free phase."""
        lanes.after(k + 1 if k < self.num_hidden else k - 1)
        if k == self.num_hidden:
            self._move_output(phase, None, omega, None, None)
            return
        layer, last = phase.layers[k], k == self.num_hidden - 1
        if k == 0 and last:
            move_towards(layer, phase.drive[0].float() + phase.heard[0], omega, watch)
        elif k == 0:
            op, x = self._down(1, CLAMP), _upper(phase.layers[1])
            self.kernels.update(op, x, self.weights[0], phase.drive, layer, omega, watch)
        else:
            t = phase.heard if last else phase.stored[k]
            if not last:
                op, x = self._down(k + 1, STORE), _upper(phase.layers[k + 1])
                self.kernels.update(op, x, self.weights[k], t, None, None)
            lanes.after(k - 1)
            self.kernels.update(self.ops[k], phase.layers[k - 1].hi, self.weights[k - 1], t, layer, omega, watch)

    def rest(self, phase: Phase, perturbed: Perturbed) -> None:
        """What the perturbed phases need to know of the free state, from the top layer down; deviations at their start."""
        drive = perturbed.at_rest[0]
        for k in reversed(range(self.num_hidden)):
            layer, last = perturbed.layers[k], k == self.num_hidden - 1
            if k == 0 and last:
                assert drive is not None
                f = drive[0] + phase.heard[0]
                layer.slack.copy_((SCALE * (f - layer.hi.float())).clamp(-LIMIT, LIMIT))
                layer.d.copy_(torch.cat([SCALE * layer.lo.float()] * 2))
            elif k == 0:
                op, x = self._down(1, CLAMP), _upper(phase.layers[1])
                self.kernels.rest(op, x, self.halves[0], drive, layer)
            else:
                t = phase.heard if last else perturbed.at_rest[k]
                if not last:
                    op, x = self._down(k + 1, STORE), _upper(phase.layers[k + 1])
                    self.kernels.update(op, x, self.halves[k], t, None, None)
                self.kernels.rest(self.ops[k], phase.layers[k - 1].hi, self.halves[k - 1], t, layer)

    def deviate(self, perturbed: Perturbed, k: int, omega: Tensor, lanes: Lanes) -> None:
        """Update hidden layer k of perturbed phases."""
        lanes.after(k + 1)
        layer, last = perturbed.layers[k], k == self.num_hidden - 1
        if k == 0 and last:
            move_deviations(layer, perturbed.heard[0], omega)
        elif k == 0:
            op, x = self._down(1, CLAMP), _upper(perturbed.layers[1])
            self.kernels.deviation(op, x, self.weights[0], None, layer, omega)
        else:
            t = perturbed.heard if last else perturbed.stored[k]
            if not last:
                op, x = self._down(k + 1, STORE), _upper(perturbed.layers[k + 1])
                self.kernels.update(op, x, self.weights[k], t, None, None)
            lanes.after(k - 1)
            self.kernels.deviation(self.ops[k], perturbed.layers[k - 1].d, self.weights[k - 1], t, layer, omega)

    def _move_output(
        self, phase: Phase, perturbed: Perturbed | None, omega: Tensor | None, beta: Tensor | None, target: Tensor | None
    ) -> None:
        """Without an omega the output stays and is only heard."""
        hi = phase.layers[-1].hi
        rest, unit, origin = phase.layers[-1].lo, 1.0, None
        where: Phase | Perturbed = phase
        if perturbed is not None:
            rest, unit, origin, where = perturbed.layers[-1].d, 1 / SCALE, perturbed.origin, perturbed
        bias = self.net.biases[-1]
        self.kernels.readout(
            *(hi, rest, unit, self.readout, bias, where.output, origin, where.heard, where.output_gap, omega, beta, target)
        )

    def _down(self, k: int, mode: int) -> Update:
        """What layer k - 1 hears from layer k."""
        return replace(self.ops[k], mode=mode, down=True)

    @contextlib.contextmanager
    def aside(self, n: int) -> Iterator[None]:
        """On a stream beside the main one: layers of one colour do not wait for each other."""
        if not self.sides:
            yield
            return
        self.sides[n].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.sides[n]):
            yield

    def join(self, *ns: int) -> None:
        """Wait for these streams, which `aside` gave work to."""
        if self.sides:
            for n in ns:
                torch.cuda.current_stream().wait_stream(self.sides[n])


class Lanes:
    """A stream for each layer, and what each waits for. Without streams, everything happens in the order it is asked for."""

    def __init__(self, streams: Sequence[torch.cuda.Stream]):
        self.streams = streams
        self.moved: dict[int, torch.cuda.Event] = {}  # when a layer was moved last

    @contextlib.contextmanager
    def of(self, k: int) -> Iterator[None]:
        """Move layer k here."""
        if not self.streams:
            yield
            return
        if k not in self.moved:
            self.streams[k].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.streams[k]):
            yield
            self.moved[k] = torch.cuda.Event()
            self.moved[k].record()

    def after(self, k: int) -> None:
        """Wait until layer k has moved: it read our buffers, and we read its."""
        if k in self.moved:
            torch.cuda.current_stream().wait_event(self.moved[k])

    def join(self) -> None:
        for k in self.moved:
            torch.cuda.current_stream().wait_stream(self.streams[k])


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


def maps_of(s: Tensor) -> Tensor:
    """(B, C, H, W) or (B, C) as (B, H, W, C)."""
    return s.permute(0, 2, 3, 1) if s.dim() == 4 else s[:, None, None]


def _upper(layer: Layer | Deviation) -> Tensor:
    """What the layer below hears: the unpooled map, or the state where nothing is pooled; or the deviations of those."""
    if isinstance(layer, Deviation):
        return layer.d if layer.du is None else layer.du
    return layer.hi if layer.u is None else layer.u
