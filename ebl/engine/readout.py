"""The output layer's update and what the last hidden layer hears from it: the definition in PyTorch, and one Triton kernel.

Small beside the convolutions, but in float32 throughout: the output carries the whole error signal."""

from __future__ import annotations

import torch
from torch import Tensor

from ebl.engine.available import tl, triton

LARGEST = 8192  # units of the last hidden layer one program can hold


def readout(
    hi: Tensor,
    rest: Tensor,
    unit: float,
    w: Tensor,
    bias: Tensor,
    output: Tensor,
    origin: Tensor | None,
    heard: Tensor,
    gap: Tensor,
    omega: Tensor | None,
    beta: Tensor | None,
    target: Tensor | None,
) -> None:
    """The definition. The hidden state is s = hi + unit rest; w is (classes, units), bias (classes,) or (B, classes).

    output (B, classes) moves by omega towards h = s w^T + bias, or towards (h + beta target) / (1 + beta) where it is nudged;
    without an omega it stays. gap (B,) is the rms way it had to go. heard (B, ...) <- output w; in perturbed phases, where hi
    and origin (the free output) belong to half as many examples, heard <- (output - origin) w / unit.
    """
    times = len(output) // len(hi)
    if omega is not None:
        s = torch.cat([hi.float()] * times).flatten(1) + unit * rest.float().flatten(1)
        h = s @ w.t() + bias
        if beta is not None and target is not None:
            h = (h + beta * target) / (1 + beta)
        way = h - output
        gap.copy_(way.square().mean(1).sqrt())
        output.addcmul_(way, omega)
    away = output if origin is None else (output - torch.cat([origin] * times)) / unit
    heard.copy_((away @ w).view(heard.shape))


def triton_readout(
    hi: Tensor,
    rest: Tensor,
    unit: float,
    w: Tensor,
    bias: Tensor,
    output: Tensor,
    origin: Tensor | None,
    heard: Tensor,
    gap: Tensor,
    omega: Tensor | None,
    beta: Tensor | None,
    target: Tensor | None,
) -> None:
    classes, units = w.shape
    block = triton.next_power_of_2(units)
    _readout_kernel[(len(output),)](
        hi,
        rest,
        w,
        bias,
        output,
        heard,
        gap,
        *(output if v is None else v for v in (origin, omega, beta, target)),
        len(hi),
        UNIT=unit,
        UNITS=units,
        CLASSES=classes,
        MOVES=omega is not None,
        NUDGED=beta is not None,
        AWAY=origin is not None,
        EACH=bias.dim() == 2,
        BLOCK=block,
        CBLOCK=max(16, triton.next_power_of_2(classes)),
        num_warps=max(1, min(8, block // 256)),
    )


if triton is not None:

    @triton.jit(do_not_specialize=["BASE"], do_not_specialize_on_alignment=["omega"])
    def _readout_kernel(hi, rest, w, bias, output, heard, gap, origin, omega, beta, target, BASE, UNIT: tl.constexpr,
                        UNITS: tl.constexpr, CLASSES: tl.constexpr, MOVES: tl.constexpr, NUDGED: tl.constexpr,
                        AWAY: tl.constexpr, EACH: tl.constexpr, BLOCK: tl.constexpr, CBLOCK: tl.constexpr):  # fmt: skip
        b = tl.program_id(0)
        i = tl.arange(0, BLOCK)
        there = i < UNITS
        j = tl.arange(0, CBLOCK)
        known = j < CLASSES
        o = tl.load(output + b * CLASSES + j, mask=known, other=0.0)
        if MOVES:
            s = tl.load(hi + (b % BASE) * UNITS + i, mask=there, other=0.0).to(tl.float32)
            s += UNIT * tl.load(rest + b * UNITS + i, mask=there, other=0.0).to(tl.float32)
            h = tl.load(bias + (b * CLASSES if EACH else 0) + j, mask=known, other=0.0)
            for c in range(0, CLASSES):
                h += tl.where(j == c, tl.sum(s * tl.load(w + c * UNITS + i, mask=there, other=0.0), axis=0), 0.0)
            if NUDGED:
                strength = tl.load(beta + b)
                h = (h + strength * tl.load(target + b * CLASSES + j, mask=known, other=0.0)) / (1.0 + strength)
            way = tl.where(known, h - o, 0.0)
            tl.store(gap + b, tl.sqrt(tl.sum(way * way, axis=0) / CLASSES))
            o += tl.load(omega) * way
            tl.store(output + b * CLASSES + j, o, mask=known)
        if AWAY:
            o = (o - tl.load(origin + (b % BASE) * CLASSES + j, mask=known, other=0.0)) * (1.0 / UNIT)
        t = tl.zeros((BLOCK,), tl.float32)
        for c in range(0, CLASSES):
            t += tl.sum(tl.where(j == c, o, 0.0), axis=0) * tl.load(w + c * UNITS + i, mask=there, other=0.0)
        tl.store(heard + b * UNITS + i, t, mask=there)
