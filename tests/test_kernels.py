"""The fused kernels' definitions against the plain model, and each Triton kernel against its definition.

Without a GPU the kernels run under Triton's interpreter (see conftest); what they should write is NaN before.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from nets import conv, inputs, random_state
from torch import Tensor

from ebl.boundary import FREE
from ebl.engine.deviation import (
    SCALE,
    Deviation,
    contrast,
    deviation_update,
    rest_update,
    triton_contrast,
    triton_deviation,
    triton_rest,
)
from ebl.engine.drive import triton_drive
from ebl.engine.gradient import (
    column_sums,
    spread,
    triton_column_sums,
    triton_spread,
    triton_weight_gradient,
    weight_gradient,
)
from ebl.engine.kernels import CLAMP, POOL, SLOTS, STORE, Layer, Tiles, Update, layer_update, triton_update
from ebl.engine.readout import readout, triton_readout
from ebl.models.hopfield import ConvHopfield
from ebl.models.links import Conv

pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the kernels are compiled
SMALL = Tiles(16, 32, 16)  # several tiles each way, even of maps this small
EXACT = {"rtol": 0, "atol": 2e-6 if DEVICE.type == "cpu" else 5e-5}  # sums of the same products, in another order
SHAPES = [  # kernel size, padding, batch, height, width, channels below, channels above
    (3, 1, 2, 4, 4, 16, 40),
    (3, 1, 3, 6, 8, 5, 7),
    (1, 0, 4, 2, 6, 20, 9),
    (5, 2, 1, 4, 4, 8, 8),
    (3, 0, 2, 6, 4, 5, 3),
]


def nothing(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def rand(*shape: int) -> Tensor:
    return torch.rand(shape).to(DEVICE)


def randn(*shape: int) -> Tensor:
    return torch.randn(shape).to(DEVICE)


def halves(s: Tensor) -> tuple[Tensor, Tensor]:
    hi = s.half()
    return hi, (s - hi.float()).half()


def weights(above: int, below: int, k: int) -> Tensor:
    return (randn(above, k * k, below) / (k * below**0.5)).half()


def saturated(*shape: int) -> Tensor:
    """States in [0, 1], some of them at a bound."""
    return (rand(*shape) * 1.4 - 0.2).clamp(0, 1)


def operands(mode: int, down: bool, shape: tuple[int, ...], average: bool = False, times: int = 1):
    """An update, random input and weights, and the shape of the layer it updates."""
    k, padding, batch, height, width, below, above = shape
    op = Update(mode, down, k, padding, average)
    x = rand(times * batch, height, width, above if down else below).half()
    shrink = 2 if mode == POOL else 1
    size = tuple(n // shrink for n in op.map_size(x))
    return op, x, weights(above, below, k), (batch, *size, below if down else above)


def layer_for(op: Update, shape: tuple[int, ...], bias: bool = True) -> Layer:
    batch, height, width, channels = shape
    u = nothing(batch, 2 * height, 2 * width, channels) if op.mode == POOL else None
    slots = -(-channels // SLOTS)
    gaps = torch.zeros(slots, batch, height, width, device=DEVICE)  # a tile may stand for several slots: the rest stays zero
    gaps[0] = torch.nan
    return Layer(*halves(saturated(*shape)), u, randn(channels) if bias else None, gaps)


def copied(layer):
    """The same buffers once more."""
    values = ((f.name, getattr(layer, f.name)) for f in dataclasses.fields(layer))
    return dataclasses.replace(layer, **{name: v.clone() for name, v in values if isinstance(v, Tensor)})


def state(layer: Layer) -> Tensor:
    return layer.hi.float() + layer.lo.float()


# ---- the layer update


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
def test_the_triton_kernel_stores_the_product(down, shape):
    op, x, w, out = operands(STORE, down, shape)
    for dtype in (torch.float32, torch.float16):
        right, found = (nothing(2, *out, dtype=dtype) for _ in range(2))
        layer_update(op, x, w, right, None, None)
        triton_update(op, x, w, found, None, None, tiles=SMALL)
        rounding = EXACT if dtype == torch.float32 else {"rtol": 1e-3, "atol": 1e-4}
        torch.testing.assert_close(found.float().sum(0), right.float().sum(0), **rounding)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("mode", "down", "average"),
    [(CLAMP, False, False), (CLAMP, True, False), (POOL, False, False), (POOL, False, True)],
    ids=["clamp up", "clamp down", "max pool", "average pool"],
)
def test_the_triton_kernel_updates_a_layer(mode, down, average, shape):
    op, x, w, out = operands(mode, down, shape, average)
    heard = torch.float16 if mode == POOL else torch.float32
    t = randn(2, *out).to(heard)
    right = layer_for(op, out, bias=mode == POOL)
    found = copied(right)
    omega = torch.tensor([1.3], device=DEVICE)
    layer_update(op, x, w, t, right, omega, True)
    triton_update(op, x, w, t, found, omega, True, SMALL)
    torch.testing.assert_close(state(found), state(right), **EXACT)
    torch.testing.assert_close(found.gaps.sum(0), right.gaps.sum(0), rtol=1e-5, atol=1e-5)
    if mode == POOL:  # the same position wins; hi may round the other way
        torch.testing.assert_close(found.u.float(), right.u.float(), rtol=0, atol=5e-4)


def test_the_triton_kernel_does_without_what_is_not_there():
    op, x, w, out = operands(CLAMP, False, SHAPES[1])
    right = dataclasses.replace(layer_for(op, out, bias=False), gaps=None)
    found = copied(right)
    omega = torch.tensor([0.7], device=DEVICE)
    layer_update(op, x, w, None, right, omega)
    triton_update(op, x, w, None, found, omega)
    torch.testing.assert_close(state(found), state(right), **EXACT)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("function", [layer_update, triton_update])
def test_without_omega_only_the_unpooled_map_is_made_anew(function, average):
    op, x, w, out = operands(POOL, False, SHAPES[1], average)
    layer = layer_for(op, out)
    before = copied(layer)
    function(op, x, w, None, layer, None)
    assert torch.equal(layer.hi, before.hi)
    assert torch.equal(layer.lo, before.lo)
    windows = layer.u.float().unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # (B, H, 2, W, 2, C)
    if average:
        expected = (layer.hi.float() / 4)[:, :, None, :, None].expand_as(windows)
        torch.testing.assert_close(windows, expected, rtol=1e-3, atol=1e-7)
    else:
        assert torch.equal(windows.sum((2, 4)), layer.hi.float())
        assert int((windows != 0).sum()) == int((layer.hi != 0).sum())


@pytest.mark.parametrize("function", [layer_update, triton_update])
def test_ties_in_a_pool_go_to_the_first_position_once(function):
    """A 1x1 convolution of a constant map: all four positions of every window are equal."""
    op, _, w, out = operands(POOL, False, SHAPES[2])
    x = torch.full((4, 2, 6, 20), 0.5, dtype=torch.float16, device=DEVICE)
    layer = layer_for(op, out)
    function(op, x, w, None, layer, None)
    expected = torch.zeros_like(layer.u)
    expected[:, ::2, ::2] = layer.hi
    assert torch.equal(layer.u, expected)


def as_half(net: ConvHopfield) -> ConvHopfield:
    """The network with weights that float16 holds exactly."""
    with torch.no_grad():
        for w in net.weights:
            w.copy_(w.half())
    return net


def maps(s: Tensor) -> Tensor:
    return s.permute(0, 2, 3, 1).contiguous()


def taps(w: Tensor) -> Tensor:
    """A convolution's weights (N, C, K, K) as the kernels have them, (N, taps, C)."""
    return w.detach().permute(0, 2, 3, 1).flatten(1, 2).half()


def three_layers(pool: str) -> ConvHopfield:
    return as_half(conv(pool, gains=0.6, image_size=16, channels=(5, 7, 6)))


@pytest.mark.parametrize("pool", ["max", "average"])
def test_the_layer_update_is_the_models(pool):
    """Layer 1 hears from above, its drive is given; layer 2 from below by the pooling kernel, from above by a stored one."""
    net = three_layers(pool)
    x, _ = inputs(net)
    s = tuple(v.half().double() for v in random_state(net, x))
    omega = 1.3
    average = pool == "average"
    with torch.no_grad():
        drive = maps(net.links[0].up(net.weights[0], net.biases[0], x)[0])[None]
        expected = [maps(torch.lerp(s[k], net.update(k, x, s, FREE), omega).clamp(0, 1)) for k in (0, 1)]

    hi = [maps(v).half() for v in s[:-1]]
    factor = torch.tensor([omega])
    ups = {k: Update(POOL, False, 3, 1, average) for k in (1, 2)}
    u = {}
    for k in (1, 2):  # the unpooled maps, from the layers below as they are
        batch, height, width, channels = hi[k].shape
        u[k] = nothing(batch, 2 * height, 2 * width, channels).cpu()
        layer_update(ups[k], hi[k - 1], taps(net.weights[k]), None, Layer(hi[k], hi[k] * 0, u[k]), None)

    first = Layer(hi[0].clone(), hi[0] * 0)
    layer_update(Update(CLAMP, True, 3, 1), u[1], taps(net.weights[1]), drive.float(), first, factor)
    second = Layer(hi[1].clone(), hi[1] * 0, u[1].clone(), net.biases[1].detach().float())
    heard = nothing(1, *hi[1].shape, dtype=torch.float32).cpu()
    layer_update(Update(STORE, True, 3, 1), u[2], taps(net.weights[2]), heard, None, None)
    layer_update(ups[1], hi[0], taps(net.weights[1]), heard, second, factor)
    for found, right in ((first, expected[0]), (second, expected[1])):
        torch.testing.assert_close(state(found).double(), right, rtol=0, atol=2e-6)


# ---- perturbed phases as deviations


def deviation_for(op: Update, shape: tuple[int, ...]) -> Deviation:
    batch, height, width, channels = shape
    pooled = op.mode == POOL
    at_rest = (batch, 2 * height, 2 * width, channels)
    large = (nothing(*at_rest), nothing(*at_rest), nothing(2 * batch, *at_rest[1:])) if pooled else (None, None, None)
    bias = randn(channels) if pooled else None
    hi, lo = halves(saturated(*shape))
    return Deviation(hi, lo, nothing(*shape), nothing(2 * batch, *shape[1:]), bias, *large, average=op.average)


DEVIATIONS = pytest.mark.parametrize(
    ("mode", "down", "average", "shape"),
    [
        (POOL, False, False, SHAPES[0]),
        (POOL, False, False, SHAPES[1]),
        (POOL, False, True, SHAPES[1]),
        (POOL, False, False, SHAPES[3]),
        (POOL, False, False, SHAPES[4]),
        (CLAMP, True, False, SHAPES[0]),
        (CLAMP, True, False, SHAPES[4]),
        (CLAMP, False, False, (1, 0, 4, 1, 1, 20, 9)),
    ],
)


def assert_same(found, right, names: tuple[str, ...]) -> None:
    """Float16 buffers that may round the other way where float32 sums differ in order."""
    for name in names:
        a, b = getattr(found, name), getattr(right, name)
        if b is not None:
            torch.testing.assert_close(a.float(), b.float(), rtol=1.5e-3, atol=2e-4, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    "link",
    [
        Conv((3, 8, 6), 7, 3, 1, "max"),
        Conv((1, 4, 4), 20, 3, 1, "average"),
        Conv((5, 8, 8), 16, 5, 2, "max"),
        Conv((2, 10, 8), 9, 3, 0, "max"),
    ],
    ids=str,
)
def test_the_triton_drive_is_what_the_plain_path_computes(link, layout):
    x = randn(3, *link.below_shape).contiguous(memory_format=layout)
    x[0] = 0.5  # ties: the first position wins
    w, b = randn(*link.weight_shape), randn(link.channels)
    n, height, width = link.shape
    coarse, exact = nothing(3, height, width, n + 3), nothing(3, height, width, n + 3, dtype=torch.float32)
    where = torch.full(coarse.shape, 9, dtype=torch.uint8, device=DEVICE)
    triton_drive(link, x, w, b, coarse, exact, where if link.pool == "max" else None)
    z = F.conv2d(x.double(), w.double(), padding=link.padding)
    pooled = F.avg_pool2d(z, 2) if link.pool == "average" else F.max_pool2d(z, 2)
    right = pooled.permute(0, 2, 3, 1) + b.double()
    torch.testing.assert_close(exact[..., :n].double(), right, rtol=0, atol=1e-5)
    torch.testing.assert_close(coarse[..., :n].double(), right, rtol=1e-3, atol=1e-5)
    assert bool(torch.isnan(coarse[..., n:]).all())  # what is no channel is left alone
    if link.pool == "max":
        windows = z.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)  # (B, N, H, W, 4)
        taken = windows.gather(4, where[..., :n].permute(0, 3, 1, 2).long()[..., None])[..., 0]
        torch.testing.assert_close(taken, pooled, rtol=0, atol=1e-5)
        flat = (windows[:1] - windows[:1].amax(4, keepdim=True)).abs().amax(4) == 0
        assert bool(flat.any())
        assert bool((where[:1, ..., :n].permute(0, 3, 1, 2)[flat] == 0).all())


@pytest.mark.parametrize("update", [layer_update, triton_update])
@pytest.mark.parametrize("down", [False, True])
def test_weights_in_two_halves_act_as_their_sum(update, down):
    op, x, w, out = operands(STORE, down, SHAPES[1])
    exact = randn(*w.shape) / 7  # what 16 bits leave out of it is 1e-5 of it
    coarse = exact.half()
    halved = torch.stack([coarse, (exact - coarse.float()).half()])
    t = nothing(1, *out, dtype=torch.float32)
    update(op, x, halved, t, None, None)
    k = op.kernel_size
    image, kernel = x.double().permute(0, 3, 1, 2), exact.double().view(-1, k, k, w.shape[2]).permute(0, 3, 1, 2)
    right = (F.conv_transpose2d if down else F.conv2d)(image, kernel, padding=op.padding).permute(0, 2, 3, 1)
    torch.testing.assert_close(t[0].double(), right, rtol=0, atol=5e-6)


@DEVIATIONS
def test_the_triton_kernels_of_perturbed_phases_follow_their_definitions(mode, down, average, shape):
    op, x, w, out = operands(mode, down, shape, average, times=2)
    batch = out[0]
    right = deviation_for(op, out)
    found = copied(right)
    t = randn(1, *out)
    halved = torch.stack([w, torch.randn_like(w) / 8])  # at rest, weights come in two halves
    rest_update(op, x[:batch], halved, t, right)
    triton_rest(op, x[:batch], halved, t, found, SMALL)
    written = ("slack", "d", "u", "du")
    assert_same(found, right, written if average else (*written, "behind"))  # an average has no winner to be behind of
    found = copied(right)
    x = x * randn(*x.shape).half() * 4  # deviations times SCALE: enough that other positions win here and there
    t, omega = randn(2, 2 * batch, *out[1:]), torch.tensor([1.4], device=DEVICE)
    deviation_update(op, x, w, t, right, omega)
    triton_deviation(op, x, w, t, found, omega, SMALL)
    assert_same(found, right, ("d", "du"))
    if mode == POOL:
        found.du.fill_(torch.nan)
        kept = found.d.clone()
        deviation_update(op, x, w, None, right, None)
        triton_deviation(op, x, w, None, found, None)
        assert torch.equal(found.d, kept)
        found.d.copy_(right.d)
        assert_same(found, right, ("du",))


@pytest.mark.parametrize("rest", [rest_update, triton_rest])
def test_the_winner_of_a_tie_is_the_one_position_that_is_not_behind(rest):
    op, _, w, out = operands(POOL, False, SHAPES[2])
    x = torch.full((4, 2, 6, 20), 0.5, dtype=torch.float16, device=DEVICE)
    layer = deviation_for(op, out)
    rest(op, x, w, None, layer)
    first = torch.zeros_like(layer.behind, dtype=torch.bool)
    first[:, ::2, ::2] = True
    assert torch.equal(layer.behind == 0, first)
    assert bool((layer.behind <= 0).all())


@pytest.mark.parametrize(("mode", "average"), [(CLAMP, False), (POOL, False), (POOL, True)])
def test_the_triton_contrast_follows_its_definition(mode, average):
    op, _, _, out = operands(mode, False, SHAPES[1], average)
    batch = out[0]
    layer = deviation_for(op, out)
    layer.d.copy_(randn(*layer.d.shape))
    wide = layer.d if mode == CLAMP else layer.du
    wide.copy_(randn(*wide.shape))
    if mode == POOL:
        layer.u.copy_(rand(*layer.u.shape))
    signs = torch.tensor([1.0, -1.0, 0.0], device=DEVICE)[:batch]
    for above in (True, False):
        right, found = ([nothing(*layer.d.shape), nothing(*wide.shape) if above else None] for _ in range(2))
        contrast(layer, signs, *right)
        triton_contrast(layer, signs, *found)
        for a, b in zip(found[: 1 + above], right[: 1 + above], strict=True):
            torch.testing.assert_close(a.float(), b.float(), rtol=1e-3, atol=1e-6)


def test_the_contrast_is_the_difference_of_both_phases_products():
    """s2 (x) u2 - s1 (x) u1, in float64, with the states the deviations stand for."""
    batch, shape = 3, (3, 2, 4, 5)
    lower, upper = (deviation_for(Update(mode, False, 3, 1), shape) for mode in (CLAMP, POOL))
    s = saturated(2 * batch, 4, 8, 5)
    u = saturated(2 * batch, 4, 8, 5)
    below = dataclasses.replace(lower, hi=s[:batch].half(), d=(SCALE * (s - torch.cat([s[:batch].half().float()] * 2))).half())
    upper.u.copy_(u[:batch])
    upper.du.copy_(SCALE * (u - torch.cat([upper.u.float()] * 2)))
    upper.d.zero_()
    signs = torch.tensor([1.0, -1.0, 1.0], device=DEVICE)
    x, g = nothing(2 * batch, 4, 8, 5), nothing(2 * batch, 4, 8, 5)
    contrast(below, signs, x, None)
    contrast(upper, signs, nothing(*upper.d.shape), g)
    found = torch.zeros(1, 5, 9, 5, device=DEVICE)
    weight_gradient(Update(POOL, False, 3, 1), x, g, found)
    low, high = (v.double().cpu().requires_grad_(False) for v in (s, u))
    kernel = torch.zeros(5, 5, 3, 3, dtype=torch.float64, requires_grad=True)
    each = (torch.nn.functional.conv2d(low.permute(0, 3, 1, 2), kernel, padding=1) * high.permute(0, 3, 1, 2)).flatten(1).sum(1)
    first, second = each.chunk(2)
    right = torch.autograd.grad((signs.double().cpu() * (second - first)).sum(), kernel)[0].permute(0, 2, 3, 1).flatten(1, 2)
    assert float((found[0].double().cpu() / SCALE - right).norm() / right.norm()) < 1e-3


@pytest.mark.parametrize("pool", ["max", "average"])
def test_deviations_move_as_the_plain_update_does_to_a_thousandth_of_themselves(pool):
    """Layer 1 and layer 2 of a network near a free state: s = hi + d/SCALE moves as in float64."""
    net = three_layers(pool)
    x, _ = inputs(net)
    free = random_state(net, x)
    average = pool == "average"
    weight = taps(net.weights[1])
    up, down = Update(POOL, False, 3, 1, average), Update(CLAMP, True, 3, 1)
    omega = torch.tensor([1.4])
    size = 1e-3  # of the perturbation: far below what 16 bits of a state resolve
    with torch.no_grad():
        drive = maps(net.links[0].up(net.weights[0], net.biases[0], x)[0])
        _, extra = net.links[2].up(net.weights[2], net.biases[2], free[1].half().double())
        heard = maps(net.links[2].down(net.weights[2], free[2], extra))

        layers = []
        for k, op in ((0, down), (1, up)):
            hi, lo = halves(maps(free[k]).float())
            shape = tuple(hi.shape)
            grown = (shape[0], 2 * shape[1], 2 * shape[2], shape[3])
            wide = (nothing(*grown), nothing(*grown), nothing(2 * len(hi), *grown[1:])) if op is up else (None,) * 3
            wide = tuple(None if v is None else v.cpu() for v in wide)
            bias = net.biases[1].float() if op is up else None
            empty = torch.zeros(2 * len(hi), *shape[1:]).half()
            layers.append(Deviation(hi, lo, torch.zeros_like(hi), empty, bias, *wide, average=average))
        one, two = layers
        rest_update(up, one.hi, weight, heard[None].float(), two)
        rest_update(down, two.u, weight, drive[None].float(), one)

        def full(layer):  # (2B, C, H, W) float64
            return (torch.cat([layer.hi.double()] * 2) + layer.d.double() / SCALE).permute(0, 3, 1, 2)

        for layer in layers:  # states beside the free one, as a few iterations would leave them
            moved = torch.cat([layer.hi.float()] * 2) + layer.d.float() / SCALE + size * torch.randn(layer.d.shape)
            layer.d.copy_(SCALE * (moved.clamp(0, 1) - torch.cat([layer.hi.float()] * 2)))
        pushed = (SCALE * size * torch.randn(1, *two.d.shape)).half()  # what came from above meanwhile
        deviation_update(up, one.d, weight, None, two, None)  # only du: both now belong together

        link, w, b = net.links[1], net.weights[1], net.biases[1]
        s1, s2 = full(one), full(two)
        pooled, extra = link.up(w, b, s1)
        to_two = (pooled + (torch.cat([heard] * 2) + pushed[0].double() / SCALE).permute(0, 3, 1, 2)).clamp(0, 1)
        right_two = torch.lerp(s2, to_two, 1.4).clamp(0, 1)
        right_one_to = (torch.cat([drive] * 2).permute(0, 3, 1, 2) + link.down(w, s2, extra)).clamp(0, 1)
        right_one = torch.lerp(s1, right_one_to, 1.4).clamp(0, 1)
        kept = one.d.clone()
        deviation_update(down, two.du, weight, None, one, omega)
        found_one = full(one)
        one.d.copy_(kept)
        deviation_update(up, one.d, weight, pushed, two, omega)
        for found, right, layer in ((found_one, right_one, one), (full(two), right_two, two)):
            deviation = right - torch.cat([layer.hi.double()] * 2).permute(0, 3, 1, 2)
            assert float((found - right).norm() / deviation.norm()) < 1e-3


# ---- gradients


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", [1, 3])
def test_the_triton_weight_gradient_follows_its_definition_and_autograd(shape, parts):
    k, padding, batch, height, width, low, high = shape
    op = Update(POOL, False, k, padding)
    below = randn(2 * batch, height, width, low).half()
    above = randn(2 * batch, *op.map_size(below), high).half()
    right = nothing(2, high, k * k, low, dtype=torch.float32)
    found = nothing(parts, high, k * k, low, dtype=torch.float32)
    weight_gradient(op, below, above, right)
    triton_weight_gradient(op, below, above, found)
    kernel = torch.zeros(high, low, k, k, dtype=torch.float64, device=DEVICE, requires_grad=True)
    x, g = (v.double().permute(0, 3, 1, 2) for v in (below, above))
    truth = torch.autograd.grad((torch.nn.functional.conv2d(x, kernel, padding=padding) * g).sum(), kernel)[0]
    truth = truth.permute(0, 2, 3, 1).flatten(1, 2).float()
    for value in (right, found):
        torch.testing.assert_close(value.sum(0), truth, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 4, 5, 12), (2, 1, 1, 7), (700, 4, 4, 5), (600, 1, 1, 4100)])
def test_the_triton_column_sums_follow_their_definition(shape):
    v = randn(*shape).half()
    right = v.double().sum((0, 1, 2)).float()
    for function in (column_sums, triton_column_sums):
        torch.testing.assert_close(function(v), right, rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("average", [False, True])
def test_spread_puts_each_value_where_it_won(average):
    v = randn(3, 2, 5, 12).half()
    where = None if average else torch.randint(4, v.shape, dtype=torch.uint8).to(DEVICE)
    right = v.float().new_zeros(3, 4, 10, 12)
    for b, y, x, c in torch.cartesian_prod(*map(torch.arange, v.shape)).tolist():
        for p in range(4):
            share = 0.25 if where is None else float(where[b, y, x, c] == p)
            right[b, 2 * y + p // 2, 2 * x + p % 2, c] = share * v[b, y, x, c]
    for function in (spread, triton_spread):
        out = nothing(*right.shape)
        function(v, where, out)
        torch.testing.assert_close(out.float(), right, rtol=1e-3, atol=1e-7)


# ---- the output layer


@pytest.mark.parametrize("shape", [(5, 2, 2, 8, 10), (4, 1, 1, 24, 3), (2, 3, 1, 7, 100)])
@pytest.mark.parametrize("case", ["free", "each biased", "nudged", "heard", "perturbed", "perturbed and heard"])
def test_the_readout_and_its_triton_kernel_follow_the_formula(case, shape):
    examples, height, width, channels, classes = shape
    perturbed = case.startswith("perturbed")
    times, unit = (2, 1 / SCALE) if perturbed else (1, 1.0)
    hi, lo = halves(saturated(examples, height, width, channels))
    rest = (randn(times * examples, height, width, channels) if perturbed else lo).half()
    units = height * width * channels
    w, bias = randn(classes, units) / units**0.5, randn(*((examples, classes) if case == "each biased" else (classes,)))
    start, target = randn(times * examples, classes), randn(times * examples, classes)
    origin = start[:examples] + 0.01 * randn(examples, classes) if perturbed else None
    omega = None if "heard" in case else torch.tensor([1.4], device=DEVICE)
    beta = 0.25 * randn(times * examples, 1).sign() if case in ("nudged", "perturbed") else None

    s = torch.cat([hi.double()] * times).flatten(1) + unit * rest.double().flatten(1)
    h = s @ w.double().t() + bias.double()
    h = h if beta is None else (h + beta * target) / (1 + beta)
    output = start.double() if omega is None else start.double() + omega.double() * (h - start.double())
    away = output if origin is None else (output - torch.cat([origin] * times).double()) / unit
    for function in (readout, triton_readout):
        out, heard = start.clone(), nothing(1, times * examples, height, width, channels, dtype=torch.float32)
        gap = nothing(times * examples, dtype=torch.float32)
        function(hi, rest, unit, w, bias, out, origin, heard, gap, omega, beta, None if beta is None else target)
        torch.testing.assert_close(out, output.float(), rtol=1e-5, atol=1e-5)
        right = (away @ w.double()).float().view(heard.shape)
        torch.testing.assert_close(heard, right, rtol=1e-4, atol=2e-3 if perturbed else 1e-5)
        if omega is None:
            assert torch.equal(out, start)
        else:
            torch.testing.assert_close(gap, (h - start).square().mean(1).sqrt().float(), rtol=1e-4, atol=1e-6)
