"""Perturbed phases as deviations from the free state: definitions in PyTorch, and the same as Triton kernels.

A nudge moves most units by far less than 16 bits of their state resolve. So a perturbed phase keeps d = s - hi, with hi the
16-bit free state, and products are taken of deviations: conv(s) = conv(hi) + conv(d), the first part once for all iterations.
Rounding is then relative to the deviation. Of the free state a layer needs three things: hi; the slack, its field less hi;
and how far each position of a pool is behind the winner, all small where they matter, so 16 bits are enough for each.
Deviations, slacks and distances are kept times SCALE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ebl.engine.available import tl, triton
from ebl.engine.kernels import POOL, Tiles, Update, convolve, halves_of

if triton is not None:
    from ebl.engine.kernels import _product

SCALE = 64.0  # lifts small differences out of float16's subnormal numbers
LEAST = 1e-7  # a position that did not win is behind by this at least, so that the winner can be told
LIMIT = 60000.0  # where a slack or a distance is cut: far outside of what can matter


@dataclass(frozen=True)
class Deviation:
    """A layer in perturbed phases: n B examples that started from the same B free states, 2B for a contrast of two phases."""

    hi: Tensor  # (B, H, W, C) float16: the free state, and what 16 bits leave out
    lo: Tensor
    slack: Tensor  # (B, H, W, C) float16
    d: Tensor  # (n B, H, W, C) float16: the deviations
    bias: Tensor | None = None
    behind: Tensor | None = None  # (B, 2H, 2W, C) float16: below 0, and 0 at the winner
    u: Tensor | None = None  # (B, 2H, 2W, C) float16: hi unpooled
    du: Tensor | None = None  # (n B, 2H, 2W, C) float16: the unpooled state less u
    average: bool = False

    def repeated(self, v: Tensor) -> Tensor:
        """What belongs to the free states, for all examples."""
        return torch.cat([v.float()] * (len(self.d) // len(self.hi)))


def rest_update(op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation) -> None:
    """The definition of the start: from the free states x below (or u above) to slack, behind, u; deviations begin at lo.

    Here the weights come in two halves, so that the slack is that of the network itself and not of its rounded weights."""
    z = convolve(op, x, w)
    where = None
    if op.mode == POOL:
        assert layer.behind is not None
        assert layer.u is not None
        assert layer.du is not None
        pooled, where = (F.avg_pool2d(z, 2), None) if op.average else F.max_pool2d(z, 2, return_indices=True)
        behind = (SCALE * (z - F.interpolate(pooled, scale_factor=2.0))).clamp(-LIMIT, -LEAST).permute(0, 2, 3, 1)
        layer.behind.copy_(torch.where(_unpool(torch.ones_like(layer.hi.float()), where) > 0, 0.0, behind))
        layer.u.copy_(_unpool(layer.hi.float(), where))
        layer.du.copy_(torch.cat([_unpool(SCALE * layer.lo.float(), where)] * 2))
        z = pooled
    f = z.permute(0, 2, 3, 1)
    if t is not None:
        f = f + t.float().sum(0)
    if layer.bias is not None:
        f = f + layer.bias
    layer.slack.copy_((SCALE * (f - layer.hi.float())).clamp(-LIMIT, LIMIT))
    layer.d.copy_(torch.cat([SCALE * layer.lo.float()] * 2))


def deviation_update(op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None) -> None:
    """The definition of a move: x and t hold deviations. Without an omega only du is made anew."""
    a = convolve(op, x, w)
    where = None
    if op.mode == POOL and op.average:
        a = F.avg_pool2d(a, 2)
    elif op.mode == POOL:
        assert layer.behind is not None
        behind = layer.repeated(layer.behind).permute(0, 3, 1, 2)
        a, where = F.max_pool2d(behind + a, 2, return_indices=True)
    if omega is not None:
        to = a.permute(0, 2, 3, 1)
        move_deviations(layer, to if t is None else to + t.float().sum(0), omega)
    if op.mode == POOL:
        assert layer.du is not None
        was = None if layer.average else F.max_pool2d(behind, 2, return_indices=True)[1]
        hi = SCALE * layer.repeated(layer.hi)
        layer.du.copy_(_unpool(hi + layer.d.float(), where) - _unpool(hi, was))


def move_deviations(layer: Deviation, heard: Tensor, omega: Tensor) -> None:
    """d <- clamp(d + omega (clamp(heard + slack) - d)), so that states stay within 0 and 1."""
    hi, d = layer.repeated(layer.hi), layer.d.float()
    low, high = -SCALE * hi, SCALE * (1 - hi)
    to = heard + layer.repeated(layer.slack)
    d = d + omega * (torch.minimum(torch.maximum(to, low), high) - d)
    layer.d.copy_(torch.minimum(torch.maximum(d, low), high))


def contrast(layer: Deviation, signs: Tensor, below: Tensor, above: Tensor | None) -> None:
    """The definition. Both phases' contrast as the partners of two products (see `ebl.engine.gradient`); signs is (B,).

    below <- signs (d2 - d1), then (s1 + s2)/2; above <- (u1 + u2)/2, then signs (du2 - du1), with the states themselves where
    nothing was pooled."""
    f = signs.view(-1, 1, 1, 1)
    d1, d2 = layer.d.float().chunk(2)
    mean = layer.hi.float() + (d1 + d2) / (2 * SCALE)
    below.copy_(torch.cat([f * (d2 - d1), mean]))
    if above is None:
        return
    if layer.u is None or layer.du is None:
        above.copy_(torch.cat([mean, f * (d2 - d1)]))
        return
    e1, e2 = layer.du.float().chunk(2)
    above.copy_(torch.cat([layer.u.float() + (e1 + e2) / (2 * SCALE), f * (e2 - e1)]))


def _unpool(v: Tensor, where: Tensor | None) -> Tensor:
    """(B, H, W, C) at the winning positions of (B, 2H, 2W, C), or a quarter of it at all four."""
    v = v.permute(0, 3, 1, 2)
    u = F.interpolate(v, scale_factor=2.0) / 4 if where is None else F.max_unpool2d(v, where, [2, 2])
    return u.permute(0, 2, 3, 1)


def triton_rest(op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, tiles: Tiles | None = None) -> None:
    _launch(op, x, w, t, layer, None, True, tiles or Tiles(32))


def triton_deviation(
    op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None, tiles: Tiles | None = None
) -> None:
    _launch(op, x, w, t, layer, omega, False, tiles or Tiles(32))


def _launch(
    op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None, rest: bool, tiles: Tiles
) -> None:
    batch, height, width, channels_in = x.shape
    map_height, map_width = op.map_size(x)
    num_out = w.shape[-1] if op.down else w.shape[-3]
    shrink = 2 if op.mode == POOL else 1
    cells = batch * (map_height // shrink) * (map_width // shrink)
    bn = max(16, min(tiles.channels, triton.next_power_of_2(num_out)))
    anything: Any = x
    others = (t, layer.bias, omega, layer.behind, layer.u, layer.du)
    _deviation_kernel[(triton.cdiv(cells, tiles.cells), triton.cdiv(num_out, bn))](
        x,
        w,
        layer.hi,
        layer.lo,
        layer.slack,
        layer.d,
        *(anything if v is None else v for v in others),
        batch,
        len(layer.hi),
        height,
        width,
        map_height,
        map_width,
        CIN=channels_in,
        HALVES=halves_of(w),
        N=num_out,
        PER_TAP=w.shape[-1],
        K=op.kernel_size,
        PAD=op.kernel_size - 1 - op.padding if op.down else op.padding,
        DOWN=op.down,
        POOLS=op.mode == POOL,
        AVERAGE=op.average,
        NUM_T=0 if t is None else len(t),
        BIAS=layer.bias is not None and rest,
        UPDATE=omega is not None,
        REST=rest,
        SCALE=SCALE,
        LIMIT=LIMIT,
        LEAST=LEAST,
        BM=tiles.cells,
        BN=bn,
        BK=max(16, min(tiles.step, triton.next_power_of_2(channels_in))),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )


def triton_contrast(layer: Deviation, signs: Tensor, below: Tensor, above: Tensor | None) -> None:
    upper = (layer.hi, layer.d) if layer.u is None else (layer.u, layer.du)
    for (base, d), out, swapped in (((layer.hi, layer.d), below, False), (upper, above, True)):
        if out is not None:
            half, size = base.numel(), base[0].numel()
            grid = (triton.cdiv(half, 1024),)
            _contrast_kernel[grid](base, d, signs, out, half, size, SCALE=SCALE, SWAPPED=swapped, BLOCK=1024)


if triton is not None:

    @triton.jit
    def _contrast_kernel(base, d, signs, out, half, size, SCALE: tl.constexpr, SWAPPED: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < half
        d1 = tl.load(d + i, mask=ok, other=0.0).to(tl.float32)
        d2 = tl.load(d + half + i, mask=ok, other=0.0).to(tl.float32)
        sign = tl.load(signs + i // size, mask=ok, other=0.0)
        mean = tl.load(base + i, mask=ok, other=0.0).to(tl.float32) + (d1 + d2) * (0.5 / SCALE)
        difference = (sign * (d2 - d1)).to(tl.float16)
        if SWAPPED:
            tl.store(out + i, mean.to(tl.float16), mask=ok)
            tl.store(out + half + i, difference, mask=ok)
        else:
            tl.store(out + i, difference, mask=ok)
            tl.store(out + half + i, mean.to(tl.float16), mask=ok)

    @triton.jit(do_not_specialize=["B", "BASE"], do_not_specialize_on_alignment=["omega"])
    def _deviation_kernel(x, w, hi, lo, slack, d, t, bias, omega, behind, u, du, B, BASE, HI, WI, HO, WO, CIN: tl.constexpr,
                          HALVES: tl.constexpr, N: tl.constexpr, PER_TAP: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr,
                          DOWN: tl.constexpr, POOLS: tl.constexpr, AVERAGE: tl.constexpr, NUM_T: tl.constexpr,
                          BIAS: tl.constexpr, UPDATE: tl.constexpr, REST: tl.constexpr, SCALE: tl.constexpr,
                          LIMIT: tl.constexpr, LEAST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                          BK: tl.constexpr):  # fmt: skip
        H = HO // 2 if POOLS else HO
        W = WO // 2 if POOLS else WO
        cell = tl.program_id(0) * BM + tl.arange(0, BM)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        z = cell % W
        y = (cell // W) % H
        b = cell // (W * H)
        live = b < B
        ok = live[:, None] & (rn < N)[None, :]
        o = cell[:, None] * N + rn[None, :]
        base = (((b % BASE) * H + y) * W + z)[:, None] * N + rn[None, :]
        h = tl.load(hi + base, mask=ok, other=0.0).to(tl.float32)
        if POOLS:
            a0 = _product(x, w, b, 2 * y, 2 * z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a1 = _product(x, w, b, 2 * y, 2 * z + 1, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a2 = _product(x, w, b, 2 * y + 1, 2 * z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            a3 = _product(x, w, b, 2 * y + 1, 2 * z + 1, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
            at = ((((b % BASE) * HO + 2 * y) * WO + 2 * z) * N)[:, None] + rn[None, :]
            to = (((b * HO + 2 * y) * WO + 2 * z) * N)[:, None] + rn[None, :]
            down = WO * N
            if AVERAGE:
                f = (a0 + a1 + a2 + a3) * 0.25
            else:
                if not REST:
                    v0 = tl.load(behind + at, mask=ok, other=0.0).to(tl.float32)
                    v1 = tl.load(behind + at + N, mask=ok, other=0.0).to(tl.float32)
                    v2 = tl.load(behind + at + down, mask=ok, other=0.0).to(tl.float32)
                    v3 = tl.load(behind + at + down + N, mask=ok, other=0.0).to(tl.float32)
                    a0 += v0
                    a1 += v1
                    a2 += v2
                    a3 += v3
                f = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
                best = tl.where(a0 == f, 0, tl.where(a1 == f, 1, tl.where(a2 == f, 2, 3)))
        else:
            f = _product(x, w, b, y, z, live, rn, HI, WI, CIN, HALVES, N, PER_TAP, K, PAD, DOWN, BM, BN, BK)
        if REST:
            g = f
            for i in tl.static_range(NUM_T):
                g += tl.load(t + i * B.to(tl.int64) * (H * W * N) + o, mask=ok, other=0.0).to(tl.float32)
            if BIAS:
                g += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
            tl.store(slack + o, tl.minimum(tl.maximum(SCALE * (g - h), -LIMIT), LIMIT).to(tl.float16), mask=ok)
            left = (SCALE * tl.load(lo + o, mask=ok, other=0.0).to(tl.float32)).to(tl.float16)
            tl.store(d + o, left, mask=ok)
            second = B.to(tl.int64) * (H * W * N)
            tl.store(d + second + o, left, mask=ok)
            if POOLS:
                for p in tl.static_range(4):
                    q = at + (p // 2) * down + (p % 2) * N
                    if AVERAGE:
                        tl.store(u + q, (h * 0.25).to(tl.float16), mask=ok)
                        part = (left * 0.25).to(tl.float16)
                    else:
                        won = best == p
                        a = a0 if p == 0 else (a1 if p == 1 else (a2 if p == 2 else a3))
                        back = tl.minimum(tl.maximum(SCALE * (a - f), -LIMIT), -LEAST)
                        tl.store(behind + q, tl.where(won, 0.0, back).to(tl.float16), mask=ok)
                        tl.store(u + q, tl.where(won, h, 0.0).to(tl.float16), mask=ok)
                        part = tl.where(won, left, tl.zeros((BM, BN), tl.float16))
                    tl.store(du + q, part, mask=ok)
                    tl.store(du + 4 * second + q, part, mask=ok)
        else:
            old = tl.load(d + o, mask=ok, other=0.0)
            if UPDATE:
                g = f + tl.load(slack + base, mask=ok, other=0.0).to(tl.float32)
                for i in tl.static_range(NUM_T):
                    g += tl.load(t + i * B.to(tl.int64) * (H * W * N) + o, mask=ok, other=0.0).to(tl.float32)
                low = -SCALE * h
                high = SCALE * (1.0 - h)
                now = old.to(tl.float32)
                now += tl.load(omega) * (tl.minimum(tl.maximum(g, low), high) - now)
                new = tl.minimum(tl.maximum(now, low), high).to(tl.float16)
                tl.store(d + o, new, mask=ok)
            else:
                new = old
            if POOLS:
                for p in tl.static_range(4):
                    q = to + (p // 2) * down + (p % 2) * N
                    if AVERAGE:
                        tl.store(du + q, (new * 0.25).to(tl.float16), mask=ok)
                    else:
                        won = best == p
                        v = v0 if p == 0 else (v1 if p == 1 else (v2 if p == 2 else v3))
                        part = tl.where(won, new.to(tl.float32), 0.0)
                        part += tl.where(won, tl.where(v != 0.0, SCALE * h, 0.0), tl.where(v == 0.0, -SCALE * h, 0.0))
                        tl.store(du + q, part.to(tl.float16), mask=ok)
