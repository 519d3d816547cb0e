"""One layer's update, the heart of the fused relaxation: its definition in PyTorch and the same as one Triton kernel.

A layer's state s is kept as two halves, s = hi + lo, each 16-bit: hi is the operand of the products, lo what it leaves out,
so that a state has 22 bits and no third copy. All maps are (B, H, W, C) in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ebl.engine.available import tl, triton

STORE, CLAMP, POOL = 0, 1, 2
SLOTS = 16  # channels a slot of `gaps` stands for at least


@dataclass(frozen=True)
class Update:
    """What stays the same from call to call.

    mode     STORE: t[i] = the i-th part of conv(x); the parts add up to it
             CLAMP: a new state from conv(x) + sum(t) + bias
             POOL: a new state from pool(conv(x)) + sum(t) + bias, and its unpooled map u
    down     the transposed convolution: x lies above, the result below
    """

    mode: int
    down: bool
    kernel_size: int
    padding: int
    average: bool = False

    def map_size(self, x: Tensor) -> tuple[int, int]:
        """Height and width of what the convolution makes."""
        grow = 2 * self.padding - self.kernel_size + 1
        return (x.shape[1] - grow, x.shape[2] - grow) if self.down else (x.shape[1] + grow, x.shape[2] + grow)


@dataclass(frozen=True)
class Layer:
    """The buffers of a layer: its state, and what a call may need beside it."""

    hi: Tensor  # (B, H, W, C) float16
    lo: Tensor
    u: Tensor | None = None  # (B, 2H, 2W, C) float16: hi at the positions that won
    bias: Tensor | None = None  # (C,) float32
    gaps: Tensor | None = None  # (slots, B, H, W) float32: squared way to where the update leads, summed over channels


def layer_update(
    op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Layer | None, omega: Tensor | None, watch: bool = False
) -> None:
    """The definition. w is (N, taps, C) float16, N above and C below, or two
    halves of that; t is (parts, B, H, W, channels), float32 or float16.

    With f the field, s <- clamp(s + omega (clamp(f) - s)) goes to layer.hi and layer.lo, its unpooled map to layer.u. Without
    an omega the state stays, and only u is made anew. `watch` fills layer.gaps.
    """
    z = convolve(op, x, w)
    if op.mode == STORE:
        assert t is not None
        t.zero_()
        t[0].copy_(z.permute(0, 2, 3, 1))
        return
    assert layer is not None
    where = None
    if op.mode == POOL:
        z, where = (F.avg_pool2d(z, 2), None) if op.average else F.max_pool2d(z, 2, return_indices=True)
    if omega is not None:
        f = z.permute(0, 2, 3, 1)
        if t is not None:
            f = f + t.float().sum(0)
        if layer.bias is not None:
            f = f + layer.bias
        move_towards(layer, f, omega, watch)
    if op.mode == POOL:
        assert layer.u is not None
        v = layer.hi.float().permute(0, 3, 1, 2)
        u = F.interpolate(v, scale_factor=2.0) / 4 if where is None else F.max_unpool2d(v, where, [2, 2])
        layer.u.copy_(u.permute(0, 2, 3, 1))


def move_towards(layer: Layer, f: Tensor, omega: Tensor, watch: bool) -> None:
    """s <- clamp(s + omega (clamp(f) - s)), with f (B, H, W, C) the field."""
    old = layer.hi.float() + layer.lo.float()
    gap = f.clamp(0, 1) - old
    if watch:
        assert layer.gaps is not None
        layer.gaps.zero_()
        layer.gaps[0].copy_(gap.square().sum(3))
    s = (old + omega * gap).clamp(0, 1)
    layer.hi.copy_(s)
    layer.lo.copy_(s - layer.hi.float())


def convolve(op: Update, x: Tensor, w: Tensor) -> Tensor:
    """(B, C, H, W) float32: the convolution of 16-bit operands, or its transpose, in exact products.

    Weights may come in two halves, (2, N, taps, C): what 16 bits hold, and what they leave out."""
    if w.dim() == 4:
        return convolve(op, x, w[0]) + convolve(op, x, w[1])
    k = op.kernel_size
    weights = w.float().view(w.shape[0], k, k, w.shape[2]).permute(0, 3, 1, 2)
    conv = F.conv_transpose2d if op.down else F.conv2d
    return conv(x.float().permute(0, 3, 1, 2), weights, padding=op.padding)


def halves_of(w: Tensor) -> int:
    return len(w) if w.dim() == 4 else 1


@dataclass(frozen=True)
class Tiles:
    """How a kernel divides its work: cells (windows or positions) and channels of a tile, channels of a step."""

    cells: int = 64
    channels: int = 64
    step: int = 32
    warps: int = 4
    stages: int = 3


def triton_update(
    op: Update,
    x: Tensor,
    w: Tensor,
    t: Tensor | None,
    layer: Layer | None,
    omega: Tensor | None,
    watch: bool = False,
    tiles: Tiles | None = None,
) -> None:
    """The same as one Triton kernel, for any GPU."""
    tiles = tiles or Tiles()
    batch, height, width, channels_in = x.shape
    map_height, map_width = op.map_size(x)
    num_out, per_tap = w.shape[-1] if op.down else w.shape[-3], w.shape[-1]
    shrink = 2 if op.mode == POOL else 1
    cells = batch * (map_height // shrink) * (map_width // shrink)
    bn = max(SLOTS, min(tiles.channels, triton.next_power_of_2(num_out)))
    bk = max(16, min(tiles.step, triton.next_power_of_2(channels_in)))
    hi, lo, u, bias, gaps = (None,) * 5 if layer is None else (layer.hi, layer.lo, layer.u, layer.bias, layer.gaps)
    anything: Any = x
    _update_kernel[(triton.cdiv(cells, tiles.cells), triton.cdiv(num_out, bn))](
        x,
        w,
        *(anything if v is None else v for v in (t, bias, hi, lo, u, omega, gaps)),
        batch,
        height,
        width,
        map_height,
        map_width,
        CIN=channels_in,
        HALVES=halves_of(w),
        N=num_out,
        PER_TAP=per_tap,
        K=op.kernel_size,
        PAD=op.kernel_size - 1 - op.padding if op.down else op.padding,
        DOWN=op.down,
        MODE=op.mode,
        AVERAGE=op.average,
        NUM_T=0 if t is None or op.mode == STORE else len(t),
        BIAS=bias is not None,
        UPDATE=omega is not None,
        WATCH=watch,
        BM=tiles.cells,
        BN=bn,
        BK=bk,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if op.mode == STORE and t is not None and len(t) > 1:
        t[1:].zero_()


if triton is not None:

    @triton.jit
    def _product(x, w, b, y, z, live, rn, HI, WI, CIN: tl.constexpr, HALVES: tl.constexpr, N: tl.constexpr,
                 PER_TAP: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, DOWN: tl.constexpr, BM: tl.constexpr,
                 BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
        """conv(x) at the positions (b, y, z) and the channels rn."""
        acc = tl.zeros((BM, BN), tl.float32)
        chunks: tl.constexpr = (CIN + BK - 1) // BK
        rk = tl.arange(0, BK)
        half: tl.constexpr = (CIN if DOWN else N) * K * K * PER_TAP
        for k in range(0, HALVES * K * K * chunks):
            tap = (k // chunks) % (K * K)
            wk = w + (k // (chunks * K * K)) * half
            c = (k % chunks) * BK + rk
            yy = y + tap // K - PAD
            zz = z + tap % K - PAD
            inside = live & (yy >= 0) & (yy < HI) & (zz >= 0) & (zz < WI)
            a = tl.load(
                x + (((b * HI + yy) * WI + zz) * CIN)[:, None] + c[None, :],
                mask=inside[:, None] & (c < CIN)[None, :],
                other=0.0,
            )
            if DOWN:
                at = (c * (K * K) + (K * K - 1 - tap))[:, None] * PER_TAP + rn[None, :]
            else:
                at = (rn * (K * K) + tap)[None, :] * PER_TAP + c[:, None]
            acc = tl.dot(a, tl.load(wk + at, mask=(c < CIN)[:, None] & (rn < N)[None, :], other=0.0), acc)
        return acc

    @triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["omega"])
    def _update_kernel(x, w, t, bias, hi, lo, u, omega, gaps, B, HI, WI, HO, WO, CIN: tl.constexpr, HALVES: tl.constexpr,
                       N: tl.constexpr, PER_TAP: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, DOWN: tl.constexpr,
                       MODE: tl.constexpr, AVERAGE: tl.constexpr, NUM_T: tl.constexpr, BIAS: tl.constexpr,
                       UPDATE: tl.constexpr, WATCH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                       BK: tl.constexpr):  # fmt: skip
        H = HO // 2 if MODE == 2 else HO
        W = WO // 2 if MODE == 2 else WO
        cell = tl.program_id(0) * BM + tl.arange(0, BM)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        z = cell % W
        y = (cell // W) % H
        b = cell // (W * H)
        live = b < B
        if MODE == 2:
            a0 = _product(x, w, b, 2 * y, 2 * z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a1 = _product(x, w, b, 2 * y, 2 * z + 1, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a2 = _product(x, w, b, 2 * y + 1, 2 * z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a3 = _product(x, w, b, 2 * y + 1, 2 * z + 1, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            if AVERAGE:
                f = (a0 + a1 + a2 + a3) * 0.25
            else:
                f = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
        else:
            f = _product(x, w, b, y, z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
        ok = live[:, None] & (rn < N)[None, :]
        o = cell[:, None] * N + rn[None, :]
        if MODE == 0:
            tl.store(t + o, f, mask=ok)
        else:
            if UPDATE:
                g = f
                for i in tl.static_range(NUM_T):
                    g += tl.load(t + i * B.to(tl.int64) * (H * W * N) + o, mask=ok, other=0.0).to(tl.float32)
                if BIAS:
                    g += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
                old = tl.load(hi + o, mask=ok, other=0.0).to(tl.float32) + tl.load(lo + o, mask=ok, other=0.0).to(tl.float32)
                gap = tl.minimum(tl.maximum(g, 0.0), 1.0) - old
                if WATCH:
                    squares = tl.sum(tl.where(ok, gap * gap, 0.0), axis=1)
                    tl.store(gaps + tl.program_id(1) * (B * H * W) + cell, squares, mask=live)
                s = tl.minimum(tl.maximum(old + tl.load(omega) * gap, 0.0), 1.0)
                v = s.to(tl.float16)
                tl.store(hi + o, v, mask=ok)
                tl.store(lo + o, (s - v.to(tl.float32)).to(tl.float16), mask=ok)
            else:
                v = tl.load(hi + o, mask=ok, other=0.0)
            if MODE == 2:
                base = (((b * HO + 2 * y) * WO + 2 * z) * N)[:, None] + rn[None, :]
                zero = tl.zeros((BM, BN), tl.float16)
                if AVERAGE:
                    q = (v * 0.25).to(tl.float16)
                    tl.store(u + base, q, mask=ok)
                    tl.store(u + base + N, q, mask=ok)
                    tl.store(u + base + WO * N, q, mask=ok)
                    tl.store(u + base + WO * N + N, q, mask=ok)
                else:
                    best = tl.where(a0 == f, 0, tl.where(a1 == f, 1, tl.where(a2 == f, 2, 3)))
                    for p in tl.static_range(4):
                        tl.store(u + base + ((p // 2) * WO + p % 2) * N, tl.where(best == p, v, zero), mask=ok)
