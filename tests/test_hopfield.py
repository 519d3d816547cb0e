"""The Hopfield family against loops, autograd and the paper."""

import itertools

import pytest
import torch
from nets import conv, dense, inputs, random_state

import ebl
from ebl import naive
from ebl.rules.contrast import weighted_gradients

NETS = {
    "max": lambda: conv("max"),
    "average": lambda: conv("average"),
    "dense": dense,
    "one dense layer": lambda: dense((5, 3)),
    "5x5 kernel": lambda: conv("max", kernel_size=5, padding=2),
    "no padding": lambda: conv("max", kernel_size=3, padding=0, image_size=14),
    "not square": lambda: conv("max", image_size=(8, 12)),
}


@pytest.mark.parametrize("name", NETS)
def test_field_is_state_minus_autograd_gradient_of_the_energy(name):
    net = NETS[name]()
    x, _ = inputs(net)
    state = tuple(s.requires_grad_() for s in random_state(net, x))
    grads = torch.autograd.grad(net.energy(x, state).sum(), state)
    for k, (s, g) in enumerate(zip(state, grads, strict=True)):
        torch.testing.assert_close(net.field(k, x, state), s - g, rtol=1e-12, atol=1e-12)


def test_field_and_gradient_send_a_tie_to_the_first_position_once():
    net = conv("max", channels=(3, 2))
    x = torch.ones(1, *net.input_shape, dtype=torch.float64)
    for w in net.weights[:-1]:  # weights in the centre only: on a flat map, the four values of every window are equal
        w.data *= torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    state = list(random_state(net, x))
    state[0] = torch.full_like(state[0], 0.5)
    down = net.field(0, x, tuple(state)) - net.field(0, x, (state[0], 0 * state[1], state[2]))
    expected = torch.zeros_like(down)
    expected[:, :, ::2, ::2] = torch.einsum("bohw,oi->bihw", state[1], net.weights[1][:, :, 1, 1])
    torch.testing.assert_close(down, expected)
    weights = torch.ones(1, dtype=torch.float64)
    by_w1 = net.gradients(x, tuple(state), weights)[1]
    count = torch.einsum("bohw,o->o", state[1], torch.ones(2, dtype=torch.float64)) * 0.5  # each winner counted once
    torch.testing.assert_close(-by_w1[:, :, 1, 1], count[:, None].expand(2, 3))


@torch.no_grad()
def test_energy_matches_loops_over_units():
    net = conv("max", channels=(2, 2), image_size=4)
    x, _ = inputs(net, batch=2)
    state = random_state(net, x)
    for b in range(2):
        total = 0.0
        for k, s in enumerate(state):
            below, w, bias = (x, *state)[k][b], net.weights[k], net.biases[k]
            total += 0.5 * float((s[b] ** 2).sum())
            if s.dim() == 2:
                for i, j in itertools.product(range(below.numel()), range(s.shape[1])):
                    total -= float(below.flatten()[i] * w[i, j] * s[b, j])
                total -= float((bias * s[b]).sum())
                continue
            for c, i, j in itertools.product(*map(range, s.shape[1:])):
                window = []
                for di, dj in itertools.product((0, 1), (0, 1)):
                    z = 0.0
                    for ci, u, v in itertools.product(range(below.shape[0]), range(3), range(3)):
                        r, q = 2 * i + di + u - 1, 2 * j + dj + v - 1
                        if 0 <= r < below.shape[1] and 0 <= q < below.shape[2]:
                            z += float(w[c, ci, u, v] * below[ci, r, q])
                    window.append(z)
                total -= float(s[b, c, i, j]) * (max(window) + float(bias[c]))
        assert float(net.energy(x, state)[b]) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_local_gradients_equal_autograd_of_the_weighted_energy(name):
    net = NETS[name]()
    x, _ = inputs(net)
    state, weights = random_state(net, x), torch.randn(len(x), dtype=torch.float64)
    truth = torch.autograd.grad((weights * net.energy(x, state)).sum(), list(net.parameters()))
    for found, expected in zip(weighted_gradients(net, x, state, weights), truth, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_naive_field_equals_ours(name):
    net = NETS[name]()
    x, _ = inputs(net)
    state = random_state(net, x)
    for k in range(len(state)):
        torch.testing.assert_close(naive.field(net, k, x, list(state)), net.field(k, x, state), rtol=1e-12, atol=1e-12)


def test_default_network_is_the_papers():
    net = ebl.ConvHopfield()
    assert [tuple(s.shape[1:]) for s in net.init_state(torch.zeros(2, 3, 32, 32))] == [
        (128, 16, 16),
        (256, 8, 8),
        (512, 4, 4),
        (512, 2, 2),
        (10,),
    ]
    assert [tuple(w.shape) for w in net.weights] == [
        (128, 3, 3, 3),
        (256, 128, 3, 3),
        (512, 256, 3, 3),
        (512, 512, 3, 3),
        (2048, 10),
    ]
    assert [len(b) for b in net.biases] == [128, 256, 512, 512, 10]


def test_initialisation_is_uniform_scaled_by_gain_and_fan_in_and_follows_the_seed():
    net = ebl.ConvHopfield(gains=(0.4, 0.7, 0.6, 0.3, 0.5), seed=3)
    for w, b, gain, fan_in in zip(
        net.weights, net.biases, (0.4, 0.7, 0.6, 0.3, 0.5), (27, 1152, 2304, 4608, 2048), strict=True
    ):
        limit = gain / fan_in**0.5
        assert 0.98 * limit < float(w.detach().abs().max()) <= limit * (1 + 1e-6)
        assert float(w.detach().std()) == pytest.approx(limit / 3**0.5, rel=0.05)
        assert float(b.detach().abs().max()) <= 0.5 / fan_in**0.5
    again, other = ebl.ConvHopfield(seed=3), ebl.ConvHopfield(seed=4)
    assert torch.equal(again.biases[0], net.biases[0])
    assert not torch.equal(again.weights[0], other.weights[0])


def test_dense_network_takes_images_too():
    net = ebl.DenseHopfield((12, 4, 2)).double()
    x = torch.randn(3, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(ebl.relax(net, x, 5).state[-1], ebl.relax(net, x.flatten(1), 5).state[-1])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ebl.ConvHopfield(image_size=28), ["image_size = 28×28", "7×7", "multiple of 16"]),
        (lambda: ebl.ConvHopfield(gains=(0.5, 0.5)), ["gains", "2 values", "5 layers"]),
        (lambda: ebl.ConvHopfield(pool="mean"), ["pool = 'mean'", "max, average"]),
        (lambda: ebl.ConvHopfield(channels=()), ["channels", "positive"]),
        (lambda: ebl.ConvHopfield(num_classes=0), ["num_classes = 0"]),
        (lambda: ebl.DenseHopfield((5,)), ["sizes = (5,)"]),
    ],
)
def test_bad_networks_are_refused_with_name_value_and_remedy(make, words):
    with pytest.raises(ebl.InputError) as error:
        make()
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)
