"""On a GPU: the fused path against the plain one in float32, each kernel against its definition, recorded steps against plain.

Networks pool by averages, so that equilibria are unique and rounding cannot lead to another one.
"""

import copy
import itertools
import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.config import Config, Model, Optimiser, build_network
from ebl.costs import SquaredError
from ebl.data import spec
from ebl.data.batches import Batches
from ebl.data.splits import Split
from ebl.engine import choose, make_stepper
from ebl.engine.captured import CapturedStep
from ebl.engine.kernels import CLAMP, POOL, SLOTS, STORE, Layer, Update, layer_update
from ebl.engine.step import FusedStep
from ebl.models.hopfield import Hopfield
from ebl.presets import preset
from ebl.relax import Schedule, relax
from ebl.rules import RULES, as_target
from ebl.rules.contrast import Contrast
from ebl.steps import PlainStep, means_of
from ebl.types import Settled

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
SMALL = replace(
    preset("table1"),
    batch_size=48,
    model=Model(hidden=(20, 24, 40, 64), gains=(1.0,), pool="average"),
    free=Schedule(12, 1.4),
    nudged=Schedule(6, 1.4),
    optimiser=Optimiser(rates=(0.02,), weight_decay=3e-4),
)
PAPER = replace(SMALL, batch_size=16, model=Model(gains=(1.0,), pool="average"), free=Schedule(6, 1.4), nudged=Schedule(6, 1.4))
DENSE = replace(SMALL, model=Model("dense", (50, 30), gains=(0.5,)))
THREE = replace(SMALL, model=Model(hidden=(12, 16, 24), gains=(1.0,), pool="average"))
MAXIMA = replace(SMALL, model=Model(hidden=(20, 24, 40, 64), gains=(0.8,)))  # equilibria are plural: only from a given one
CONFIGS = {"small": SMALL, "paper": PAPER, "dense": DENSE, "three hidden layers": THREE}


@pytest.fixture(autouse=True)
def _no_tf32():
    """The plain path is the reference: without TF32, which PyTorch's convolutions use by default."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def batch(config: Config, step: int = 0, examples: int | None = None) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    n = examples or config.batch_size
    x = torch.randn(n, *config.input_shape, generator=g).contiguous(memory_format=torch.channels_last)
    return x.to(DEVICE), torch.randint(10, (n,), generator=g).to(DEVICE)


def optimiser_of(config: Config, net: Hopfield) -> torch.optim.SGD:
    groups = [{"params": pair} for pair in zip(net.weights, net.biases, strict=True)]
    o = config.optimiser
    return torch.optim.SGD(groups, lr=o.rates[0], momentum=o.momentum, weight_decay=o.weight_decay)


def steppers(config: Config, *makers):
    """One stepper from each maker, all with networks of the same start."""
    net = build_network(config).to(DEVICE)
    nets = [copy.deepcopy(net) for _ in makers]
    return [make(config, n, optimiser_of(config, n)) for make, n in zip(makers, nets, strict=True)]


def captured(config: Config, net: Hopfield, optimiser: torch.optim.SGD) -> CapturedStep:
    return CapturedStep(config, net, optimiser, tf32=False)


def relative(found: Tensor, right: Tensor) -> float:
    return float((found.detach().double() - right.detach().double()).norm() / right.detach().double().norm())


def random_batches(config: Config, examples: int) -> Batches:
    g = torch.Generator().manual_seed(5)
    images = torch.randint(256, (examples, 3, 32, 32), dtype=torch.uint8, generator=g)
    labels = torch.randint(10, (examples,), generator=g)
    return Batches(Split(images, labels).to(DEVICE), spec("cifar10"), config.test_batch_size)


# ---- fused against plain


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("order", ["odd-first", "even-first"])
def test_the_fused_free_phase_ends_where_the_plain_one_does(config, order):
    schedule = replace(config.free, order=order)
    (step,) = steppers(replace(config, free=schedule, nudged=replace(config.nudged, order=order)), FusedStep)
    fused, phase = step.fused, step.free
    for seed in (0, 1):  # the second one must not remember the first
        x, _ = batch(config, seed)
        fused.drive(x.reshape(len(x), *step.net.input_shape), phase)
        fused.zero(phase)
        fused.relax(phase, schedule.iterations, step.free_omegas)
        right = relax(step.net, x, schedule)
        for a, b in zip(fused.state(phase), right.state, strict=True):
            assert relative(a, b) < 2e-3
        torch.testing.assert_close(fused.residual(phase), right.residual, rtol=0.05, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *itertools.product((*CONFIGS, "max pooling"), ("c-ep", "n-cpl", "tbp", "rbp")),
        *(("small", rule) for rule in ("cl", "p-ep", "n-ep", "p-cpl", "c-cpl")),
    ],
)
def test_fused_gradients_are_the_rules_in_float64(name, rule):
    beta = None if rule in ("cl", "tbp", "rbp") else 0.1
    config = replace((CONFIGS | {"max pooling": MAXIMA})[name], rule=rule, beta=beta)
    (step,) = steppers(config, FusedStep)
    x, y = batch(config)
    exact = copy.deepcopy(step.net).double()
    free = relax(exact, x.double(), Schedule(100, 1.4))
    start = tuple(s.float() for s in free.state)
    found = step.gradients_from(x, y, start)
    given = Settled(tuple(s.double() for s in start), free.residual, free.iterations)
    target = as_target(y, given.state[-1])
    strength = RULES[rule].check_beta(rule, beta)
    right, _ = RULES[rule].gradients(exact, x.double(), target, given, {}, config.nudged, SquaredError(), strength, None)
    for a, b in zip(found, right, strict=True):
        assert float(F.cosine_similarity(a.double().flatten(), b.flatten(), 0)) > 0.999
        assert float(a.double().norm() / b.norm()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "rule", "start"),
    [
        ("small", "c-ep", "carry"),
        ("small", "n-cpl", "zeros"),
        ("small", "r-ep", "carry"),
        ("small", "cl", "zeros"),
        ("small", "n-ep", "carry"),
        ("small", "p-cpl", "zeros"),
        ("small", "c-cpl", "carry"),
        ("paper", "c-ep", "carry"),
        ("paper", "p-ep", "zeros"),
        ("dense", "c-ep", "carry"),
        ("three hidden layers", "c-ep", "carry"),
        ("small", "tbp", "carry"),
        ("small", "rbp", "zeros"),
    ],
)
def test_ten_fused_steps_train_as_captured_ones_in_float32_do(name, rule, start):
    """The first runs as it is, the second is recorded, the others are replayed; the last batch is short."""
    config = replace(CONFIGS[name], rule=rule, start=start, beta=None)
    fused, plain = steppers(config, FusedStep, captured)
    before = [p.detach().clone() for p in plain.net.parameters()]
    for i in range(10):
        x, y = batch(config, i, config.batch_size // 2 if i == 9 else None)
        for step in (fused, plain):
            step.step(x, y, config.free.iterations, torch.Generator().manual_seed(i))
    for p, q, start_value in zip(plain.net.parameters(), fused.net.parameters(), before, strict=True):
        assert relative(q, p) < (
            5e-3 if isinstance(RULES[rule], Contrast) else 1e-2
        )  # an adjoint's units are at a bound or not
        moved = float((p.detach() - start_value).norm())
        assert float((p - q).detach().norm()) < 0.05 * moved
    a, b = (means_of(step.totals) for step in (plain, fused))
    assert float(fused.totals[0]) == float(plain.totals[0]) == 9.5 * config.batch_size
    assert b["cost"] == pytest.approx(a["cost"], rel=2e-3)
    assert b["residual"] == pytest.approx(a["residual"], rel=0.1, abs=2e-4)
    assert b["error"] == pytest.approx(a["error"], abs=0.03)
    if start == "carry":
        for s, t in zip(fused.carried, plain.carried, strict=True):
            assert relative(s, t) < 1e-2


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_restored_state_leads_to_the_step_that_would_have_followed(config):
    fused, other = steppers(config, FusedStep, FusedStep)
    for i in range(3):
        fused.step(*batch(config, i), config.free.iterations, torch.Generator())
    with torch.no_grad():
        for p, q in zip(other.net.parameters(), fused.net.parameters(), strict=True):
            p.copy_(q)
            other.sgd.optimiser.state[p]["momentum_buffer"] = fused.sgd.optimiser.state[q]["momentum_buffer"].clone()
    other.fused.cast()
    other.carried = tuple(s.clone() for s in fused.carried)
    for step in (fused, other):
        step.totals.zero_()
        step.step(*batch(config, 9), 4, torch.Generator())
    for p, q in zip(fused.net.parameters(), other.net.parameters(), strict=True):
        assert relative(q, p) < 1e-5
    torch.testing.assert_close(other.totals, fused.totals, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_evaluation_agrees_on_every_path(config):
    examples = 1300  # two batches of the fused evaluation, the second short
    batches = random_batches(config, examples)
    plain, fused, recorded = steppers(config, PlainStep, FusedStep, captured)
    right = plain.evaluate(batches, config.free)
    for step in (fused, recorded, fused):
        found = step.evaluate(batches, config.free)
        assert found.keys() == right.keys()
        assert found["cost"] == pytest.approx(right["cost"], rel=1e-3)
        assert found["residual"] == pytest.approx(right["residual"], rel=0.1, abs=2e-4)
        assert found["iterations"] == config.free.iterations
        assert found["error"] == pytest.approx(right["error"], abs=0.01)
        assert found["saturation"] == pytest.approx(right["saturation"], abs=2e-3)


# ---- recorded against plain


@pytest.mark.parametrize("rule", ["tbp", "rbp", "c-ep", "r-ep", "cl"])
@pytest.mark.parametrize("start", ["carry", "zeros"])
def test_captured_steps_are_plain_steps(rule, start):
    """Recorded at the second batch of a size, replayed from then on; r-ep is never recorded, since it draws on the host."""
    config = replace(SMALL, rule=rule, beta=None, start=start)
    plain, recorded = steppers(config, PlainStep, captured)
    for i, examples in enumerate((48, 48, 48, 20, 48, 20)):
        x, y = batch(config, i, examples)
        for step in (plain, recorded):
            step.step(x, y, config.free.iterations, torch.Generator().manual_seed(i))
    for p, q in zip(plain.net.parameters(), recorded.net.parameters(), strict=True):
        assert relative(q, p) < 1e-4
    torch.testing.assert_close(recorded.totals.cpu(), plain.totals, rtol=1e-3, atol=1e-3)
    assert bool(recorded.graphs.graphs) == (rule != "r-ep")


def test_the_path_follows_the_precision_and_the_rule(caplog):
    def chosen(**change) -> str:
        config = replace(SMALL, **change)
        return steppers(config, make_stepper)[0].name

    with caplog.at_level(logging.INFO, logger="ebl"):
        assert chosen() == chosen(precision="fp16") == "fused fp16"
        assert chosen(precision="tf32") == "captured tf32"
        assert chosen(precision="fp32") == "captured fp32"
        assert chosen(rule="tbp", beta=None) == chosen(rule="rbp", beta=None) == "fused fp16"
        assert not caplog.records
        assert chosen(rule="tbp", beta=None, nudged=Schedule(9, "chebyshev:0.9")) == "captured tf32"
        assert chosen(free=Schedule(9, tolerance=1e-3)) == "captured tf32"
    told = [r.getMessage() for r in caplog.records]
    assert len(told) == 2
    assert "(tbp with nudged.omega = chebyshev:0.9)" in told[0]
    assert "(a tolerance)" in told[1]


# ---- the kernels


def shapes_of(op: Update, k: int, n: int, size: int, below: int, above: int) -> tuple[Tensor, Tensor]:
    """Operands; their values do not matter to the error functions."""
    x = torch.zeros(n, size, size, above if op.down else below, device=DEVICE)
    return x, torch.zeros(above, k * k, below, device=DEVICE)


OPS = {
    "store up": Update(STORE, False, 3, 1),
    "store down": Update(STORE, True, 3, 1),
    "clamp down": Update(CLAMP, True, 3, 1),
    "max pool": Update(POOL, False, 3, 1),
    "average pool": Update(POOL, False, 3, 1, True),
}
SHAPES = [(48, 16, 24, 24), (16, 16, 128, 256), (16, 8, 256, 512), (5, 4, 512, 512), (3, 6, 8, 40)]  # batch, size, below, above


def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    return pytest.importorskip("ebl.engine.hopper", reason="needs a Triton with Gluon", exc_type=ImportError)


def hopper_tiles(module, op: Update, x: Tensor, w: Tensor) -> list:
    sizes = [(4, 128, 2, 3), (8, 128, 2, 4), (4, 128, 3, 4), (4, 64, 3, 4), (4, 64, 2, 3)]
    return [t for t in (module.HopperTiles(*size) for size in sizes) if module.fits(op, x, w, t)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_hopper_updates_follow_the_definition(op, shape):
    module = hopper()
    x, w = shapes_of(op, 3, *shape)
    tiles = hopper_tiles(module, op, x, w)
    assert tiles
    for t in tiles:
        function = choose.partial(module.hopper_update, tiles=t)
        for _ in range(choose.TRIES):
            assert choose.update_error(op, x, w, function, t.parts) <= choose.TOLERANCE, t


def test_hopper_products_in_parts_add_up_to_the_definition():
    module = hopper()
    for op in (OPS["store up"], OPS["store down"]):
        x, w = shapes_of(op, 3, 16, 8, 64, 72)
        x, w = torch.rand(x.shape, device=DEVICE).half(), torch.randn(w.shape, device=DEVICE).half()
        right, found = (torch.full((n, 16, 8, 8, 64 if op.down else 72), torch.nan, device=DEVICE) for n in (1, 3))
        layer_update(op, x, w, right, None, None)
        module.hopper_update(op, x, w, found, None, None, tiles=module.HopperTiles(4, 64, 2, 3, 3))
        assert relative(found.sum(0), right[0]) < 1e-5


@pytest.mark.parametrize("k", [1, 7])
def test_hopper_updates_follow_the_definition_with_other_kernel_sizes(k):
    module = hopper()
    tiles = module.HopperTiles(4, 64, 2, 3)
    for op in OPS.values():
        op = replace(op, kernel_size=k, padding=k // 2)
        x, w = shapes_of(op, k, 16, 8, 64, 72)
        assert module.fits(op, x, w, tiles)
        assert choose.update_error(op, x, w, choose.partial(module.hopper_update, tiles=tiles), 1) <= choose.TOLERANCE


@pytest.mark.parametrize("op", [v for v in OPS.values() if v.mode != STORE], ids=[k for k in OPS if "store" not in k])
def test_hopper_updates_watch_hear_in_16_bit_and_refresh(op):
    """What the error functions leave out."""
    module = hopper()
    x, w = shapes_of(op, 3, 16, 8, 64, 72)
    x = torch.rand(x.shape, device=DEVICE).half()
    w = (torch.randn(w.shape, device=DEVICE) / (9 * x.shape[3]) ** 0.5).half()
    size = 4 if op.mode == POOL else 8
    channels = 64 if op.down else 72
    shape = (16, size, size, channels)
    t = torch.randn(1, *shape, device=DEVICE).half()
    right = replace(
        choose.random_layer(shape, op, x.device), gaps=torch.zeros(-(-channels // SLOTS), *shape[:3], device=DEVICE)
    )
    found = Layer(*(None if v is None else v.clone() for v in (right.hi, right.lo, right.u, right.bias, right.gaps)))
    omega = torch.tensor([1.3], device=DEVICE)
    layer_update(op, x, w, t, right, omega, True)
    module.hopper_update(op, x, w, t, found, omega, True)
    torch.testing.assert_close(found.gaps.sum(0), right.gaps.sum(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.hi.float() + found.lo.float(), right.hi.float() + right.lo.float(), rtol=0, atol=1e-4)
    if op.mode == POOL:
        kept = found.hi.clone()
        found.u.fill_(torch.nan)
        module.hopper_update(op, x, w, None, found, None)
        assert torch.equal(found.hi, kept)
        layer_update(op, x, w, None, right, None)
        off = (found.u.float() - right.u.float()).abs() > choose.TOLERANCE
        assert not bool(torch.isnan(found.u).any())
        assert float(off.float().mean()) <= choose.WRONG_WINNERS


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", [v for v in OPS.values() if v.mode != STORE], ids=[k for k in OPS if "store" not in k])
def test_hopper_deviations_follow_their_definitions(op, shape):
    module = hopper()
    x, w = shapes_of(op, 3, *shape)
    for t in hopper_tiles(module, op, x, w):
        rest, deviate = (choose.partial(f, tiles=t) for f in (module.hopper_rest, module.hopper_deviation))
        for _ in range(choose.TRIES):
            assert choose.deviation_error(op, x, w, rest, deviate) <= choose.TOLERANCE, t


@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("shape", [*SHAPES, (16, 32, 8, 128)], ids=str)
def test_hopper_weight_gradients_follow_their_definition(shape, parts):
    module = hopper()
    n, size, below, above = shape
    x, g = (torch.zeros(n, size, size, c, device=DEVICE) for c in (below, above))
    for warps in (4, 8):
        function = choose.partial(module.hopper_weight_gradient, warps=warps)
        for _ in range(choose.TRIES):
            assert choose.gradient_error(OPS["max pool"], x, g, parts, function) <= choose.TOLERANCE, warps


@pytest.mark.parametrize("config", [SMALL, PAPER], ids=["small", "paper"])
def test_the_kernels_that_are_chosen_are_none_but_fast_ones(config, caplog):
    """A definition in the list means that every kernel was found wrong or did not run."""
    hopper()
    (step,) = steppers(config, FusedStep)
    with caplog.at_level(logging.INFO, logger="ebl"):
        step.step(*batch(config), config.free.iterations, torch.Generator())
    assert not [r.getMessage() for r in caplog.records if "kernel" in r.getMessage()]
    names = step.fused.kernels.names()
    assert "definition" not in names
    assert any(name.startswith("hopper") for name in names)
