"""The weight gradient of two phases' contrast: the definition in PyTorch, and the same as a Triton kernel.

With states s1, s2 of the two phases, s2 (x) u2 - s1 (x) u1 = (s2 - s1) (x) (u1 + u2)/2 + (s1 + s2)/2 (x) (u2 - u1): one sum
over twice the examples, of differences and means. Rounding is then small beside the contrast, and not beside the states, which
are some thousand times larger. Sums are float32, and so is the result.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from ebl.engine.available import tl, triton
from ebl.engine.kernels import Update


def weight_gradient(op: Update, below: Tensor, above: Tensor, out: Tensor) -> None:
    """The definition: out (parts, N, taps, C) float32 adds up to sum_b below_b (x) above_b over the positions of each tap."""
    n, c = above.shape[3], below.shape[3]
    k = op.kernel_size
    x, g = (v.float().permute(0, 3, 1, 2) for v in (below, above))
    out.zero_()
    out[0].copy_(conv2d_weight(x, [n, c, k, k], g, padding=op.padding).permute(0, 2, 3, 1).reshape(n, k * k, c))


def column_sums(v: Tensor) -> Tensor:
    """The definition: (C,) float32, the sum of (..., C) over all else."""
    return v.flatten(0, -2).sum(0, dtype=torch.float32)


def spread(v: Tensor, where: Tensor | None, out: Tensor) -> None:
    """The definition: (B, H, W, C) at the positions `where` of (B, 2H, 2W, C), or a quarter of it at all four.

    `where` is (B, H, W, C) uint8: which of the four positions of its window won."""
    for p in range(4):
        part = v * 0.25 if where is None else torch.where(where == p, v, 0.0)
        out[:, p // 2 :: 2, p % 2 :: 2].copy_(part)


def triton_column_sums(v: Tensor) -> Tensor:
    rows, channels = v.numel() // v.shape[-1], v.shape[-1]
    block = triton.next_power_of_2(channels)
    share = max(1, 8192 // block)  # rows a program takes at once
    parts = min(triton.cdiv(rows, share), 512)
    out = torch.empty(parts, channels, device=v.device)
    steps = triton.cdiv(triton.cdiv(rows, share), parts)
    _column_kernel[(parts,)](v, out, rows, C=channels, STEPS=steps, ROWS=share, BLOCK=block, num_warps=8)
    return out.sum(0)


def triton_spread(v: Tensor, where: Tensor | None, out: Tensor) -> None:
    _, height, width, channels = v.shape
    _spread_kernel[(triton.cdiv(v.numel(), 1024),)](
        v, v if where is None else where, out, v.numel(), height, width, C=channels, AVERAGE=where is None, BLOCK=1024
    )


def triton_weight_gradient(op: Update, below: Tensor, above: Tensor, out: Tensor) -> None:
    _, height, width, c = below.shape
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
    def _column_kernel(v, out, rows, C: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
        j = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for i in range(0, STEPS):
            r = (tl.program_id(0) * STEPS + i) * ROWS + tl.arange(0, ROWS)
            ok = (r < rows)[:, None] & (j < C)[None, :]
            total += tl.sum(tl.load(v + r[:, None] * C + j[None, :], mask=ok, other=0.0).to(tl.float32), axis=0)
        tl.store(out + tl.program_id(0) * C + j, total, mask=j < C)

    @triton.jit
    def _spread_kernel(v, where, out, count, H, W, C: tl.constexpr, AVERAGE: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < count
        s = tl.load(v + i, mask=ok, other=0.0)
        at = i // C
        base = ((at // (W * H) * (2 * H) + (at // W) % H * 2) * (2 * W) + at % W * 2) * C + i % C
        k = tl.load(where + i, mask=ok, other=0).to(tl.int32)
        for p in tl.static_range(4):
            part = (s * 0.25).to(out.dtype.element_ty) if AVERAGE else tl.where(k == p, s, tl.zeros((BLOCK,), s.dtype))
            tl.store(out + base + ((p // 2) * (2 * W) + p % 2) * C, part, mask=ok)

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
            x = tl.load(
                below + ((b * HI + y) * WI + z)[:, None] * C + rc[None, :], mask=inside[:, None] & (rc < C)[None, :], other=0.0
            )
            acc = tl.dot(g, x, acc)
        o = (tl.program_id(2) * N + rn)[:, None] * (K * K * C) + tap * C + rc[None, :]
        tl.store(out + o, acc, mask=(rn < N)[:, None] & (rc < C)[None, :])
