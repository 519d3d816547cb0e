"""Which kernel does which product: the fastest that fits, and only after its results were seen to be right on this GPU.

A compiler's fault can depend on tile and pipeline, and on luck, so each choice is run against the definition several times on
random numbers, with its outputs filled with NaN, or with the same numbers on both sides, before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ebl.engine import deviation, gradient, kernels
from ebl.engine.deviation import Deviation
from ebl.engine.drive import drive, triton_drive
from ebl.engine.kernels import CLAMP, POOL, SLOTS, STORE, Layer, Update, layer_update
from ebl.engine.readout import LARGEST, readout, triton_readout
from ebl.models.links import Conv
from ebl.recording import recording

if TYPE_CHECKING:
    from ebl.engine.hopper import HopperTiles

log = logging.getLogger("ebl")

TRIES = 3
TOLERANCE = 1e-3  # of the largest value; 16-bit operands with exact sums stay far below
WRONG_WINNERS = 1e-3  # share of pools that may choose otherwise: near ties

UpdateFunction = Callable[..., None]


class Kernels:
    """The products of one network on one device. On a CPU they are the definitions themselves."""

    def __init__(self, device: torch.device):
        self.device = device
        self.chosen: dict[Any, tuple[str, Callable[..., None], int]] = {}
        self.deviations: dict[Any, tuple[Callable[..., None], Callable[..., None]]] = {}

    def update(
        self, op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Layer | None, omega: Tensor | None, watch: bool = False
    ) -> None:
        _, function, _ = self._choice(op, x, w)
        function(op, x, w, t, layer, omega, watch)

    def parts(self, op: Update, x: Tensor, w: Tensor) -> int:
        """How many parts a stored product comes in."""
        return self._choice(op, x, w)[2]

    def rest(self, op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation) -> None:
        self._deviation_choice(op, x, w)[0](op, x, w, t, layer)

    def deviation(self, op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None) -> None:
        self._deviation_choice(op, x, w)[1](op, x, w, t, layer, omega)

    def drive(self, link: Conv, x: Tensor, w: Tensor, b: Tensor, *to: Tensor | None) -> None:
        key = ("drive", link, x.shape, x.stride(), w.stride())
        if key not in self.chosen:
            right = self.device.type != "cpu" and _trusted("drive", lambda: drive_error(link, x, w, triton_drive))
            self.chosen[key] = ("triton", triton_drive, 1) if right else ("definition", drive, 1)
        self.chosen[key][1](link, x, w, b, *to)

    def contrast(self, layer: Deviation, signs: Tensor, below: Tensor, above: Tensor | None) -> None:
        self._either("contrast", deviation.contrast, deviation.triton_contrast, (2, 3), layer, signs, below, above)

    def column_sums(self, v: Tensor) -> Tensor:
        found: Tensor = self._either("column sums", gradient.column_sums, gradient.triton_column_sums, (), v)
        return found

    def spread(self, v: Tensor, where: Tensor | None, out: Tensor) -> None:
        self._either("spread", gradient.spread, gradient.triton_spread, (2,), v, where, out)

    def readout(self, hi: Tensor, rest: Tensor, unit: float, w: Tensor, *others: Any) -> None:
        if w.shape[1] > LARGEST:
            self.chosen["readout"] = ("definition", readout, 1)
            readout(hi, rest, unit, w, *others)
            return
        self._either("readout", readout, triton_readout, (5, 7, 8), hi, rest, unit, w, *others)

    def _either(
        self, name: str, definition: Callable[..., Any], kernel: Callable[..., Any], written: tuple[int, ...], *args: Any
    ) -> Any:
        """The kernel if it was seen to agree with its definition on arguments like these, otherwise the definition."""
        key = (name, *map(_kind, args))
        if key not in self.chosen:
            right = self.device.type != "cpu" and _trusted(name, lambda: twin_error(definition, kernel, written, args))
            self.chosen[key] = ("triton", kernel, 1) if right else ("definition", definition, 1)
        return self.chosen[key][1](*args)

    def weight_gradient(self, op: Update, below: Tensor, above: Tensor, out: Tensor) -> None:
        key = ("gradient", op, below.shape, above.shape, len(out))
        if key not in self.chosen:
            self.chosen[key] = self._checked_gradient(op, below, above, out)
        self.chosen[key][1](op, below, above, out)

    def names(self) -> list[str]:
        """What was chosen, for logs and benchmarks."""
        return sorted({name for name, _, _ in self.chosen.values()})

    def _choice(self, op: Update, x: Tensor, w: Tensor) -> tuple[str, UpdateFunction, int]:
        key = (op, x.shape, w.shape)
        if key not in self.chosen:
            self.chosen[key] = self._checked_update(op, x, w)
        return self.chosen[key]

    def _deviation_choice(self, op: Update, x: Tensor, w: Tensor) -> tuple[Callable[..., None], Callable[..., None]]:
        key = ("deviation", op, x.shape, w.shape[-3:])
        if key not in self.deviations:
            self.deviations[key] = self._checked_deviation(op, x, w)
        return self.deviations[key]

    def _checked_deviation(self, op: Update, x: Tensor, w: Tensor) -> tuple[Callable[..., None], Callable[..., None]]:
        right = (deviation.rest_update, deviation.deviation_update)
        if self.device.type == "cpu":
            return right
        found: list[tuple[str, tuple[Callable[..., None], Callable[..., None]]]] = []
        if _hopper(self.device):
            from ebl.engine.hopper import fits, hopper_deviation, hopper_rest

            for tiles in _hopper_tiles(op, x, w, deviation=True):
                if fits(op, x, w, tiles):
                    kernels_pair = (partial(hopper_rest, tiles=tiles), partial(hopper_deviation, tiles=tiles))
                    found.append((f"hopper {tiles.warps}x{tiles.channels}", kernels_pair))
        found.append(("triton", (deviation.triton_rest, deviation.triton_deviation)))
        for name, pair in found:
            if _trusted(name, lambda pair=pair: deviation_error(op, x, w, *pair)):  # type: ignore[misc]
                return pair
        return right

    def _checked_update(self, op: Update, x: Tensor, w: Tensor) -> tuple[str, UpdateFunction, int]:
        if self.device.type == "cpu":
            return "definition", layer_update, 1
        for name, function, parts in _candidates(op, x, w):
            if _trusted(name, lambda f=function, p=parts: update_error(op, x, w, f, p)):  # type: ignore[misc]
                return name, function, parts
        return "definition", layer_update, 1

    def _checked_gradient(self, op: Update, below: Tensor, above: Tensor, out: Tensor) -> tuple[str, Callable[..., None], int]:
        if self.device.type == "cpu":
            return "definition", gradient.weight_gradient, 1
        found: list[tuple[str, Callable[..., None]]] = [("triton", gradient.triton_weight_gradient)]
        if _hopper(self.device) and below.shape[3] % 8 == above.shape[3] % 8 == 0 and min(above.shape[1:3]) > 1:
            from ebl.engine.hopper import hopper_weight_gradient

            found.insert(0, ("hopper", hopper_weight_gradient))
        for name, function in found:
            if _trusted(name, lambda f=function: gradient_error(op, below, above, len(out), f)):  # type: ignore[misc]
                return name, function, 1
        return "definition", gradient.weight_gradient, 1


def _trusted(name: str, error: Callable[[], float]) -> bool:
    if recording():
        raise RuntimeError(f"kernel {name} was not checked before a step with it was recorded")  # its error cannot be read now
    try:
        found = max(error() for _ in range(TRIES))
    except Exception as fault:  # a kernel that does not compile or run here is not chosen, whatever the reason
        log.info("kernel %s cannot be used here (%s)", name, str(fault).splitlines()[0] if str(fault) else type(fault).__name__)
        return False
    if not found <= TOLERANCE:
        log.warning("kernel %s is wrong on this GPU by %.1e: another one is used", name, found)
    return found <= TOLERANCE


def _candidates(op: Update, x: Tensor, w: Tensor) -> Iterator[tuple[str, UpdateFunction, int]]:
    """The likely fastest first."""
    if _hopper(x.device):
        from ebl.engine.hopper import fits, hopper_update

        for tiles in _hopper_tiles(op, x, w):
            if fits(op, x, w, tiles):
                yield f"hopper {tiles.warps}x{tiles.channels}", partial(hopper_update, tiles=tiles), tiles.parts
    yield "triton", kernels.triton_update, 1


def _hopper_tiles(op: Update, x: Tensor, w: Tensor, deviation: bool = False) -> list[HopperTiles]:
    """Large tiles fetch their weights less often; where much is written, two smaller ones on a unit take turns at it."""
    from ebl.engine.hopper import HopperTiles

    height, width = op.map_size(x)
    num_out = w.shape[-1] if op.down else w.shape[-3]
    tiles = -(-len(x) * height * width // 128) * -(-num_out // 128)  # of 128 positions by 128 channels
    units = torch.cuda.get_device_properties(x.device).multi_processor_count
    if tiles >= 1.5 * units:
        pair, single = HopperTiles(4, 128, 2, 3), HopperTiles(8, 128, 2, 4)
        return [pair, single] if deviation else [single, pair]
    if tiles >= 0.75 * units:
        return [HopperTiles(4, 128, 3, 4), HopperTiles(4, 128, 2, 3)]
    return [HopperTiles(4, 64, 3, 8), HopperTiles(4, 64, 2, 3)]


def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0) and _gluon()


@cache
def _gluon() -> bool:
    """Whether the kernels for Hopper GPUs can be had; said once where not."""
    try:
        import ebl.engine.hopper  # noqa: F401
    except Exception as fault:  # a Triton without Gluon, or with another one
        log.info("the kernels for Hopper GPUs cannot be used with this Triton (%s)", fault)
        return False
    return True


def update_error(op: Update, x: Tensor, w: Tensor, function: UpdateFunction, parts: int) -> float:
    """The largest error of a kernel against the definition, on random numbers of the shapes of x and w."""
    x = torch.rand(x.shape, device=x.device).half()
    w = (torch.randn(w.shape, device=w.device) / (w.shape[-2] * x.shape[3]) ** 0.5).half()
    height, width = op.map_size(x)
    shrink = 2 if op.mode == POOL else 1
    shape = (len(x), height // shrink, width // shrink, w.shape[-1] if op.down else w.shape[-3])
    omega = torch.tensor([1.3], device=x.device)
    if op.mode == STORE:
        right, found = (torch.full((n, *shape), torch.nan, dtype=torch.float16, device=x.device) for n in (1, parts))
        layer_update(op, x, w, right, None, None)
        function(op, x, w, found, None, None)
        return _distance(found.float().sum(0), right[0].float())
    t = torch.randn((1, *shape), device=x.device).half()
    right_layer = random_layer(shape, op, x.device)
    assert right_layer.gaps is not None
    found_layer = replace(
        right_layer, hi=right_layer.hi.clone(), lo=right_layer.lo.clone(), gaps=torch.zeros_like(right_layer.gaps)
    )
    if op.mode == POOL:
        assert right_layer.u is not None
        found_layer = replace(found_layer, u=torch.full_like(right_layer.u, torch.nan))
    error = 0.0
    for watch in (False, True):
        layer_update(op, x, w, t, right_layer, omega, watch)
        function(op, x, w, t, found_layer, omega, watch)
        error = max(error, _distance(*(v.hi.float() + v.lo.float() for v in (found_layer, right_layer))))
    assert found_layer.gaps is not None
    error = max(error, _distance(found_layer.gaps.sum(0), right_layer.gaps.sum(0)))
    if op.mode == POOL:
        layer_update(op, x, w, None, right_layer, None)
        function(op, x, w, None, found_layer, None)
        assert found_layer.u is not None
        assert right_layer.u is not None
        off = (found_layer.u.float() - right_layer.u.float()).abs() > TOLERANCE
        if bool(torch.isnan(found_layer.u).any()) or float(off.float().mean()) > WRONG_WINNERS:
            return float("inf")
    return error


def random_layer(shape: tuple[int, ...], op: Update, device: torch.device) -> Layer:
    s = torch.rand(shape, device=device)
    batch, height, width, channels = shape
    u = torch.zeros(batch, 2 * height, 2 * width, channels, dtype=torch.float16, device=device) if op.mode == POOL else None
    bias = None if op.mode == CLAMP and op.down else torch.randn(channels, device=device)
    gaps = torch.zeros(-(-channels // SLOTS), batch, height, width, device=device)
    return Layer(s.half(), (s - s.half().float()).half(), u, bias, gaps)


def deviation_error(op: Update, x: Tensor, w: Tensor, rest: Callable[..., None], deviate: Callable[..., None]) -> float:
    """The same for both kernels of perturbed phases, with the states of half as many examples as x has at rest.

    What they start from is made of weights in two halves, the moves of the first one."""
    dev = x.device
    batch = max(1, len(x) // 2)
    x = torch.rand(2 * batch, *x.shape[1:], device=dev).half()
    halves = (torch.randn(2, *w.shape[-3:], device=dev) / (w.shape[-2] * x.shape[3]) ** 0.5).half()
    w = halves[0]
    height, width = op.map_size(x)
    shrink = 2 if op.mode == POOL else 1
    shape = (height // shrink, width // shrink, w.shape[-1] if op.down else w.shape[-3])
    right = random_deviation(batch, shape, op, dev)
    found = replace(right, **{name: v.clone() for name in WRITTEN if (v := getattr(right, name)) is not None})
    t = torch.randn(1, batch, *shape, device=dev)
    deviation.rest_update(op, x[:batch], halves, t, right)
    rest(op, x[:batch], halves, t, found)
    winners = ("u", "du") if op.average else ("u", "du", "behind")
    worst = _deviation_distance(found, right, ("slack", "d"), winners)
    for name in WRITTEN:
        if getattr(right, name) is not None:
            getattr(found, name).copy_(getattr(right, name))
    t, omega = torch.randn(1, 2 * batch, *shape, device=dev), torch.tensor([1.3], device=dev)
    x = x * torch.randn_like(x)
    deviation.deviation_update(op, x, w, t, right, omega)
    deviate(op, x, w, t, found, omega)
    return max(worst, _deviation_distance(found, right, ("d",), ("du",)))


WRITTEN = ("slack", "d", "behind", "u", "du")


def _deviation_distance(found: Deviation, right: Deviation, exact: tuple[str, ...], winners: tuple[str, ...]) -> float:
    error = max(_distance(getattr(found, name).float(), getattr(right, name).float()) for name in exact)
    for name in winners:
        a, b = getattr(found, name), getattr(right, name)
        if b is not None:
            off = (a.float() - b.float()).abs() > TOLERANCE * float(b.abs().max())
            if bool(torch.isnan(a).any()) or float(off.float().mean()) > WRONG_WINNERS:
                return float("inf")
    return error


def random_deviation(batch: int, shape: tuple[int, int, int], op: Update, device: torch.device) -> Deviation:
    """A layer at random states; all that a kernel should write is NaN."""
    height, width, channels = shape
    s = torch.rand(batch, *shape, device=device)

    def nothing(n: int, grow: int = 1) -> Tensor:
        return torch.full((n, grow * height, grow * width, channels), torch.nan, dtype=torch.float16, device=device)

    layer = Deviation(s.half(), (s - s.half().float()).half(), nothing(batch), nothing(2 * batch), average=op.average)
    if op.mode != POOL:
        return layer
    bias = torch.randn(channels, device=device)
    return replace(layer, bias=bias, behind=nothing(batch, 2), u=nothing(batch, 2), du=nothing(2 * batch, 2))


def drive_error(link: Conv, x: Tensor, w: Tensor, function: Callable[..., None]) -> float:
    x, w, b = (torch.randn_like(v) for v in (x, w, w[:, 0, 0, 0]))
    shape = (len(x), *link.shape[1:], link.shape[0])

    def by(run: Callable[..., None]) -> tuple[Tensor, ...]:
        coarse, exact = (torch.full(shape, torch.nan, dtype=t, device=x.device) for t in (torch.float16, torch.float32))
        where = torch.full(shape, 4, dtype=torch.uint8, device=x.device)
        run(link, x, w, b, coarse, exact, None if link.pool == "average" else where)
        return coarse, exact, where

    (coarse, exact, where), right = by(function), by(drive)
    if float((where != right[2]).float().mean()) > WRONG_WINNERS:
        return float("inf")
    return max(_distance(coarse.float(), right[0].float()), 100 * _distance(exact, right[1]))  # float32 must be that


def gradient_error(op: Update, below: Tensor, above: Tensor, parts: int, function: Callable[..., None]) -> float:
    below, above = (torch.randn(v.shape, device=v.device).half() for v in (below, above))
    shape = (above.shape[3], op.kernel_size**2, below.shape[3])
    right, found = (torch.full((n, *shape), torch.nan, device=below.device) for n in (1, parts))
    gradient.weight_gradient(op, below, above, right)
    function(op, below, above, found)
    return _distance(found.sum(0), right[0])


def twin_error(
    definition: Callable[..., Any], kernel: Callable[..., Any], written: tuple[int, ...], args: Sequence[Any]
) -> float:
    """The largest error of a kernel against its definition on random arguments like these. `written` are the places of those
    it changes; with none, what it returns counts."""
    args = [_random(v) for v in args]

    def by(run: Callable[..., Any]) -> list[Tensor]:
        own = [v.clone() if i in written and v is not None else v for i, v in enumerate(args)]
        returned = run(*own)
        return [own[i] for i in written if own[i] is not None] if returned is None else [returned]

    return max(_distance(found.float(), right.float()) for found, right in zip(by(kernel), by(definition), strict=True))


def _random(v: Any) -> Any:
    """An argument of the same kind; numbers stay."""
    if isinstance(v, Deviation):
        return replace(v, **{field.name: _random(getattr(v, field.name)) for field in fields(v)})
    if not isinstance(v, Tensor):
        return v
    return 0.1 * torch.randn_like(v) if v.is_floating_point() else torch.randint_like(v, 4)


def _kind(v: Any) -> Any:
    if isinstance(v, Deviation):
        return tuple(_kind(getattr(v, field.name)) for field in fields(v))
    return v.shape if isinstance(v, Tensor) else v


def _distance(found: Tensor, right: Tensor) -> float:
    """The largest error over the largest value; NaN counts as infinite."""
    worst = (found - right).abs().max() / right.abs().max()
    return float(torch.nan_to_num(worst, nan=torch.inf))
