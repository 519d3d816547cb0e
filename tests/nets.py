"""Small float64 networks and helpers that several tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import ebl

TIGHT = ebl.Schedule(2000, tolerance=1e-13)
"""Relaxation to convergence."""


def conv(pool: str = "max", gains: float = 0.8, seed: int = 0, **options) -> ebl.ConvHopfield:
    options = {"in_channels": 2, "image_size": 8, "channels": (3, 4), "num_classes": 3} | options
    return ebl.ConvHopfield(**options, pool=pool, gains=gains, seed=seed).double()


def dense(sizes=(5, 6, 4, 3), gains: float = 0.9, seed: int = 0) -> ebl.DenseHopfield:
    return ebl.DenseHopfield(sizes, gains=gains, seed=seed).double()


def inputs(net, batch: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn((batch, *net.input_shape), generator=g, dtype=torch.float64)
    return x, torch.randint(net.links[-1].shape[0], (batch,), generator=g)


def random_state(net, x: Tensor, seed: int = 0) -> ebl.State:
    """Inside the state space, with a third of the hidden units at a bound."""
    g = torch.Generator().manual_seed(seed)
    shapes = [s.shape for s in net.init_state(x)]
    hidden = [(torch.rand(s, generator=g, dtype=x.dtype) * 1.5 - 0.25).clamp(0, 1) for s in shapes[:-1]]
    return (*hidden, torch.randn(shapes[-1], generator=g, dtype=x.dtype))


class EnergyOnly(nn.Module):
    """A network reduced to what a user must write: its start and its energy (and bounds, which are declared)."""

    def __init__(self, net):
        super().__init__()
        self.net, self.bounds = net, net.bounds

    def init_state(self, x):
        return self.net.init_state(x)

    def energy(self, x, state):
        return self.net.energy(x, state)


def flat(tensors) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def gradient(net, x, y, **options) -> Tensor:
    seen = ebl.estimate_gradients(net, x, y, **options)
    for schedule, settled in ((options.get("free"), seen.free), (options.get("nudged"), seen.nudged)):
        if schedule is TIGHT:
            assert float(settled.residual.max()) <= 1e-13
    return flat(p.grad for p in net.parameters())


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def finite_differences(net, value, step: float = 1e-6) -> Tensor:
    """d value() / d theta by central differences, every parameter."""
    found = []
    with torch.no_grad():
        for p in net.parameters():
            flat_p = p.data.permute(0, 2, 3, 1).reshape(-1) if p.dim() == 4 else p.data.view(-1)
            assert flat_p.data_ptr() == p.data_ptr()  # a view, whatever the memory format
            grad = torch.zeros_like(flat_p)
            for i in range(len(flat_p)):
                kept = float(flat_p[i])
                flat_p[i] = kept + step
                up = value()
                flat_p[i] = kept - step
                down = value()
                flat_p[i] = kept
                grad[i] = (up - down) / (2 * step)
            shape = p.shape
            found.append(
                grad.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2) if p.dim() == 4 else grad.view(shape)
            )
    return flat(found)
