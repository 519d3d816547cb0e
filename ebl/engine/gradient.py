"""The contrast of two phases and the weight gradient it gives: definitions in PyTorch, and the same as Triton kernels.

With states s1, s2 of the two phases, s2 (x) u2 - s1 (x) u1 = (s2 - s1) (x) (u1 + u2)/2 + (s1 + s2)/2 (x) (u2 - u1). Differences
are taken in float32 before anything is rounded to 16 bit, so the rounding is small beside the contrast and not beside the
states, which are some thousand times larger.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from ebl.engine.kernels import Layer, Update, triton

if triton is not None:
    import triton.language as tl

SCALE = 64.0  # lifts differences out of float16's subnormal numbers


def contrast(layer: Layer, signs: Tensor, below: Tensor, above: Tensor | None) -> None:
    """The definition. `layer` holds both phases, 2B examples; signs is (B,): 1, -1 or 0 for each example.

    below <- SCALE signs (s2 - s1), then (s1 + s2)/2: what the layer gives as the lower partner of a product.
    above <- (u1 + u2)/2, then SCALE signs (u2 - u1): as the upper one, with u the unpooled states (or the states).
    """
    s1, s2 = (layer.hi.float() + layer.lo.float()).chunk(2)
    f = SCALE * signs.view(-1, 1, 1, 1)
    below.copy_(torch.cat([f * (s2 - s1), (s1 + s2) / 2]))
    if above is None:
        return
    if layer.u is None:
        above.copy_(torch.cat([(s1 + s2) / 2, f * (s2 - s1)]))
        return
    rest = layer.lo.float().repeat_interleave(2, 1).repeat_interleave(2, 2)
    share = 0.25 if layer.average else 1.0
    u1, u2 = (layer.u.float() + torch.where(layer.u == 0, 0.0, share * rest)).chunk(2)
    above.copy_(torch.cat([(u1 + u2) / 2, f * (u2 - u1)]))


def weight_gradient(op: Update, below: Tensor, above: Tensor, out: Tensor) -> None:
    """The definition: out (parts, N, taps, C) float32 adds up to sum_b below_b (x) above_b over the positions of each tap."""
    n, c = above.shape[3], below.shape[3]
    k = op.kernel_size
    x, g = (v.float().permute(0, 3, 1, 2) for v in (below, above))
    out.zero_()
    out[0].copy_(conv2d_weight(x, [n, c, k, k], g, padding=op.padding).permute(0, 2, 3, 1).reshape(n, k * k, c))


def triton_contrast(layer: Layer, signs: Tensor, below: Tensor, above: Tensor | None) -> None:
    batch, height, width, channels = layer.hi.shape
    half = batch // 2 * height * width * channels
    unpooled = layer.u is not None and above is not None
    _contrast_kernel[(triton.cdiv(half, 1024),)](
        layer.hi,
        layer.lo,
        layer.u if unpooled else layer.hi,
        signs,
        below,
        below if above is None else above,
        half,
        height,
        width,
        C=channels,
        UNPOOLED=unpooled,
        ABOVE=above is not None,
        SHARE=0.25 if layer.average else 1.0,
        SCALE=SCALE,
        BLOCK=1024,
    )


def triton_weight_gradient(op: Update, below: Tensor, above: Tensor, out: Tensor) -> None:
    batch, height, width, c = below.shape
    n, k = above.shape[3], op.kernel_size
    positions = above.shape[0] * above.shape[1] * above.shape[2]
    bn, bc = (max(16, min(64, triton.next_power_of_2(v))) for v in (n, c))
    _weight_kernel[(triton.cdiv(n, bn), triton.cdiv(c, bc) * k * k, len(out))](
        below,
        above,
        out,
        positions,
        height,
        width,
        above.shape[1],
        above.shape[2],
        STEPS=triton.cdiv(triton.cdiv(positions, 32), len(out)),
        N=n,
        C=c,
        K=k,
        PAD=op.padding,
        BN=bn,
        BC=bc,
        BP=32,
        num_warps=4,
    )


if triton is not None:

    @triton.jit
    def _contrast_kernel(hi, lo, u, signs, below, above, half, H, W, C: tl.constexpr, UNPOOLED: tl.constexpr,
                         ABOVE: tl.constexpr, SHARE: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < half
        lo1 = tl.load(lo + i, mask=ok, other=0.0).to(tl.float32)
        lo2 = tl.load(lo + half + i, mask=ok, other=0.0).to(tl.float32)
        s1 = tl.load(hi + i, mask=ok, other=0.0).to(tl.float32) + lo1
        s2 = tl.load(hi + half + i, mask=ok, other=0.0).to(tl.float32) + lo2
        z = (i // C) % W
        y = (i // (C * W)) % H
        b = i // (C * W * H)
        f = SCALE * tl.load(signs + b, mask=ok, other=0.0)
        d = (f * (s2 - s1)).to(tl.float16)
        m = ((s1 + s2) * 0.5).to(tl.float16)
        tl.store(below + i, d, mask=ok)
        tl.store(below + half + i, m, mask=ok)
        if UNPOOLED:
            base = ((b * (2 * H) + 2 * y) * (2 * W) + 2 * z) * C + i % C
            for p in tl.static_range(4):
                at = base + ((p // 2) * (2 * W) + p % 2) * C
                u1 = tl.load(u + at, mask=ok, other=0.0).to(tl.float32)
                u2 = tl.load(u + 4 * half + at, mask=ok, other=0.0).to(tl.float32)
                u1 += tl.where(u1 == 0.0, 0.0, SHARE * lo1)
                u2 += tl.where(u2 == 0.0, 0.0, SHARE * lo2)
                tl.store(above + at, ((u1 + u2) * 0.5).to(tl.float16), mask=ok)
                tl.store(above + 4 * half + at, (f * (u2 - u1)).to(tl.float16), mask=ok)
        elif ABOVE:
            tl.store(above + i, m, mask=ok)
            tl.store(above + half + i, d, mask=ok)

    @triton.jit
    def _weight_kernel(below, above, out, positions, HI, WI, HO, WO, STEPS: tl.constexpr, N: tl.constexpr, C: tl.constexpr,
                       K: tl.constexpr, PAD: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr):  # fmt: skip
        rn = tl.program_id(0) * BN + tl.arange(0, BN)
        tap = tl.program_id(1) % (K * K)
        rc = (tl.program_id(1) // (K * K)) * BC + tl.arange(0, BC)
        first = tl.program_id(2) * (STEPS * BP)
        acc = tl.zeros((BN, BC), tl.float32)
        for i in range(0, STEPS):
            at = first + i * BP + tl.arange(0, BP)
            live = at < positions
            z = at % WO + tap % K - PAD
            y = (at // WO) % HO + tap // K - PAD
            b = at // (WO * HO)
            inside = live & (y >= 0) & (y < HI) & (z >= 0) & (z < WI)
            g = tl.load(above + at[None, :] * N + rn[:, None], mask=live[None, :] & (rn < N)[:, None], other=0.0)
            x = tl.load(below + ((b * HI + y) * WI + z)[:, None] * C + rc[None, :], mask=inside[:, None] & (rc < C)[None, :], other=0.0)
            acc = tl.dot(g, x, acc)
        o = (tl.program_id(2) * N + rn)[:, None] * (K * K * C) + tap * C + rc[None, :]
        tl.store(out + o, acc, mask=(rn < N)[:, None] & (rc < C)[None, :])
