"""What `compare` says of each precision's gradients."""

import dataclasses

import pytest
import torch

from ebl.config import Model, Optimiser, build_network
from ebl.precision import ROUNDED, compare
from ebl.presets import preset
from ebl.relax import Schedule

CONFIG = dataclasses.replace(
    preset("quick"),
    model=Model(hidden=(4, 6), gains=(0.6,)),
    optimiser=Optimiser(rates=(0.1, 0.06, 0.03)),
    nudged=Schedule(8, 1.4),
)


@pytest.mark.parametrize("rule", ["c-ep", "n-cpl"])
@pytest.mark.parametrize("model", [CONFIG.model, Model("dense", (12, 9), gains=(0.6,))], ids=["conv", "dense"])
def test_on_a_cpu_float32_is_compared_and_close_to_float64(rule, model):
    config = dataclasses.replace(CONFIG, rule=rule, model=model)
    net = build_network(config)
    before = [p.detach().clone() for p in net.parameters()]
    x, y = torch.rand(8, *config.input_shape), torch.arange(8)
    rows = compare(config, net, x, y, settling=80)
    assert [row.precision for row in rows] == ["fp32"]
    assert len(rows[0].cosines) == len(rows[0].sizes) == len(net.links)
    assert min(rows[0].cosines) > 0.9999
    assert rows[0].sizes == pytest.approx([1.0] * len(net.links), abs=1e-3)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))  # nothing is trained
    assert all(p.dtype == torch.float32 and p.grad is None for p in net.parameters())


@pytest.mark.gpu
def test_on_a_gpu_every_precision_is_compared_and_16_bits_lead_the_same_way():
    config = dataclasses.replace(CONFIG, model=Model(hidden=(24, 40), gains=(0.6,), pool="average"), beta=0.1)
    net = build_network(config).cuda()
    x, y = torch.rand(32, *config.input_shape).cuda(), (torch.arange(32) % 10).cuda()
    rows = compare(config, net, x, y, settling=80)
    assert [row.precision for row in rows] == ["fp32", "tf32", "fp16", ROUNDED]
    assert min(rows[0].cosines) > 0.9999
    assert min(rows[2].cosines) > 0.999
    assert rows[2].sizes == pytest.approx([1.0] * len(net.links), abs=0.01)
