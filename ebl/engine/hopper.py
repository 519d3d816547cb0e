"""The layer update on Hopper GPUs: what `ebl.engine.kernels.layer_update` defines, as one kernel in Gluon.

The tile is two rows of the map times 32 x num_warps / 2 (example, column) pairs, by BN channels. A box of the input, K + 1 rows
high, comes by TMA once for each column of the kernel and serves all K rows of it: shifting by a row of the map is shifting by
whole swizzle atoms in shared memory. That saves a third of the traffic from L2, which bounds these convolutions.
Two rows of the map lie in one thread's registers, two columns in neighbouring lanes: pooling needs no exchange between warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ebl.engine.deviation import LEAST, LIMIT, SCALE, Deviation
from ebl.engine.kernels import POOL, STORE, Layer, Update, halves_of

BK = gl.constexpr(64)
PDL = True  # a kernel may fetch its weights while the one before it ends


@gluon.jit
def _larger(v1, k1, v2, k2):
    """The larger value; of equal ones the one that comes first."""
    take = (v2 > v1) | ((v2 == v1) & (k2 < k1))
    return gl.where(take, v2, v1), gl.where(take, k2, k1)


@gluon.jit
def _load_a(xd, bars, ring, stage, J, row, b0, col, K: gl.constexpr, KC: gl.constexpr, SA: gl.constexpr, BB: gl.constexpr,
            WW: gl.constexpr):  # fmt: skip
    """Ask for the box of the input that serves stage `stage` = (channels, column of the kernel)."""
    slot = stage % SA
    bar = bars.index(slot)
    layout: gl.constexpr = xd.layout
    pred = stage < J
    mbarrier.expect(bar, (K + 1) * BB * WW * BK * 2, pred)
    box = ring.index(slot * (K + 1))._reinterpret(gl.float16, [K + 1, BB, WW, BK], layout)
    tma.async_copy_global_to_shared(xd, [row, b0, col + stage % K, (stage // K) % KC * BK], bar, box, pred)


@gluon.jit
def _load_w(
    wd,
    bars,
    ring,
    step,
    steps,
    n0,
    first,
    K: gl.constexpr,
    C: gl.constexpr,
    ROWS: gl.constexpr,
    KC: gl.constexpr,
    DOWN: gl.constexpr,
    BN: gl.constexpr,
    SW: gl.constexpr,
):
    """Ask for the weights of step `step` = (channels, column, row of the kernel)."""
    slot = step % SW
    bar = bars.index(slot)
    pred = step < steps
    at = step + first * K
    row = (at // (K * K * KC)) * ROWS  # where this half of the weights begins
    kc = at // (K * K) % KC
    dw = (at // K) % K
    dh = at % K
    mbarrier.expect(bar, BK * BN * 2, pred)
    if DOWN:
        tap = (K - 1 - dh) * K + (K - 1 - dw)
        tma.async_copy_global_to_shared(wd, [row + kc * BK, tap * C + n0], bar, ring.index(slot), pred)
    else:
        tma.async_copy_global_to_shared(wd, [row + n0, (dh * K + dw) * C + kc * BK], bar, ring.index(slot), pred)


@gluon.jit
def _convolve(
    xd, wd, b0, h0, w0, n0,
    CIN: gl.constexpr, C: gl.constexpr, ROWS: gl.constexpr, HALVES: gl.constexpr, K: gl.constexpr, PAD: gl.constexpr,
    DOWN: gl.constexpr, SPLIT: gl.constexpr, BB: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr, SA: gl.constexpr,
    SW: gl.constexpr,
):  # fmt: skip
    """Two rows of the map: top and bottom, each (examples and columns, channels)."""
    NW: gl.constexpr = gl.num_warps()
    BW: gl.constexpr = BB * WW
    KC: gl.constexpr = (CIN + BK - 1) // BK
    J: gl.constexpr = HALVES * KC * K // SPLIT  # stages of A here
    STEPS: gl.constexpr = J * K
    first = gl.program_id(1) * J

    layout_a: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ring_a = gl.allocate_shared_memory(gl.float16, [SA * (K + 1), BW, BK], layout_a)  # a row of the map each
    ring_w = gl.allocate_shared_memory(gl.float16, [SW, BK, BN] if DOWN else [SW, BN, BK], wd.layout)
    bars_a = gl.allocate_shared_memory(gl.int64, [SA, 1], mbarrier.MBarrierLayout())
    bars_w = gl.allocate_shared_memory(gl.int64, [SW, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SA):
        mbarrier.init(bars_a.index(i), count=1)
    for i in gl.static_range(SW):
        mbarrier.init(bars_w.index(i), count=1)
    for i in gl.static_range(SW):  # the weights do not wait for the kernel before this one
        _load_w(wd, bars_w, ring_w, i, STEPS, n0, first, K, C, ROWS, KC, DOWN, BN, SW)
    gdc_wait()
    for i in gl.static_range(SA):
        _load_a(xd, bars_a, ring_a, i + first, J + first, h0 - PAD, b0, w0 - PAD, K, KC, SA, BB, WW)

    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NW, 1], [16, BN, 16])
    acc = warpgroup_mma_init(gl.zeros([2 * BW, BN], gl.float32, mma))
    for j in range(J):
        slot = (j + first) % SA
        mbarrier.wait(bars_a.index(slot), (j // SA) & 1)
        for dh in gl.static_range(K):
            step = j * K + dh
            mbarrier.wait(bars_w.index(step % SW), (step // SW) & 1)
            w = ring_w.index(step % SW)
            a = ring_a.index(slot * (K + 1) + dh)._reinterpret(gl.float16, [2 * BW, BK], layout_a)
            acc = warpgroup_mma(a, w if DOWN else w.permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(acc,)))
            # the product before this one is done: its places are free
            if dh == 0:
                if j > 0:
                    _load_a(xd, bars_a, ring_a, j - 1 + SA + first, J + first, h0 - PAD, b0, w0 - PAD, K, KC, SA, BB, WW)
            if step > 0:
                _load_w(wd, bars_w, ring_w, step - 1 + SW, STEPS, n0, first, K, C, ROWS, KC, DOWN, BN, SW)
    z = warpgroup_mma_wait(0, deps=(acc,))
    gdc_launch_dependents()
    for i in gl.static_range(SA):
        mbarrier.invalidate(bars_a.index(i))
    for i in gl.static_range(SW):
        mbarrier.invalidate(bars_w.index(i))
    top, bottom = z.reshape([2, BW, BN]).permute((1, 2, 0)).split()
    return gl.convert_layout(top, mma), gl.convert_layout(bottom, mma)


@gluon.jit
def _place(HO: gl.constexpr, WO: gl.constexpr, N: gl.constexpr, BB: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr):
    """First example, row, column and channel of this program's tile, and the tile's number along the channels."""
    nn: gl.constexpr = (N + BN - 1) // BN
    nw: gl.constexpr = WO // WW
    nh: gl.constexpr = HO // 2
    pid = gl.program_id(0)
    pm = pid // nn
    return (pm // (nw * nh)) * BB, ((pm // nw) % nh) * 2, (pm % nw) * WW, (pid % nn) * BN, pid % nn


@gluon.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["omega"])
def conv_kernel(
    xd, wd, t, bias, hi, lo, u, omega, gaps,
    B,
    HO: gl.constexpr, WO: gl.constexpr,  # the map the convolution makes
    CIN: gl.constexpr, N: gl.constexpr, C: gl.constexpr,  # channels in and out; C: channels of a tap in w
    ROWS: gl.constexpr, HALVES: gl.constexpr,  # of the weights
    K: gl.constexpr, PAD: gl.constexpr, DOWN: gl.constexpr,
    MODE: gl.constexpr, AVERAGE: gl.constexpr, NUM_T: gl.constexpr, BIAS: gl.constexpr, UPDATE: gl.constexpr,
    WATCH: gl.constexpr, SPLIT: gl.constexpr, BB: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr,
    SA: gl.constexpr, SW: gl.constexpr,
):  # fmt: skip
    NW: gl.constexpr = gl.num_warps()
    BW: gl.constexpr = BB * WW
    b0, h0, w0, n0, pn = _place(HO, WO, N, BB, WW, BN)
    top, bottom = _convolve(xd, wd, b0, h0, w0, n0, CIN, C, ROWS, HALVES, K, PAD, DOWN, SPLIT, BB, WW, BN, SA, SW)
    mma: gl.constexpr = top.type.layout
    if MODE == 2:
        col = gl.arange(0, BW, gl.SliceLayout(1, mma))
        kcol = (col % 2)[:, None] + gl.zeros([BW, BN], gl.int32, mma)
        v = top
        below = bottom
        cell: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [NW, 1], [1, 0])
        if AVERAGE:
            pooled = gl.sum((v + below).reshape([BW // 2, 2, BN]), axis=1) * 0.25
            best = gl.zeros([BW // 2, BN], gl.int32, cell)
        else:
            v, k = _larger(v, kcol, below, kcol + 2)
            pooled, where = gl.reduce((v.reshape([BW // 2, 2, BN]), k.reshape([BW // 2, 2, BN])), 1, _larger)
            best = gl.convert_layout(where.to(gl.int8), cell).to(gl.int32)
        h = gl.convert_layout(pooled, cell)
        _finish(
            h,
            best,
            h0 // 2,
            0,
            b0,
            w0 // 2,
            n0,
            pn,
            t,
            bias,
            hi,
            lo,
            u,
            omega,
            gaps,
            B,
            HO // 2,
            WO // 2,
            N,
            True,
            AVERAGE,
            NUM_T,
            BIAS,
            UPDATE,
            WATCH,
            BW // 2,
            WW // 2,
            BN,
            cell,
        )
    else:
        cells: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [NW, 1], [1, 0])
        for row in gl.static_range(2):
            h = gl.convert_layout(top if row == 0 else bottom, cells)
            if MODE == 1:
                _finish(
                    h,
                    h.to(gl.int32),
                    h0,
                    row,
                    b0,
                    w0,
                    n0,
                    pn,
                    t,
                    bias,
                    hi,
                    lo,
                    u,
                    omega,
                    gaps,
                    B,
                    HO,
                    WO,
                    N,
                    False,
                    AVERAGE,
                    NUM_T,
                    BIAS,
                    UPDATE,
                    WATCH,
                    BW,
                    WW,
                    BN,
                    cells,
                )
            else:
                rm = gl.arange(0, BW, gl.SliceLayout(1, cells))
                rn = n0 + gl.arange(0, BN, gl.SliceLayout(0, cells))
                b = b0 + rm // WW
                o = ((b * HO + h0 + row) * WO + w0 + rm % WW)[:, None] * N + rn[None, :]
                base = gl.program_id(1).to(gl.int64) * B * (HO * WO * N)
                gl.store(t + base + o, h, mask=(b < B)[:, None] & (rn < N)[None, :])


@gluon.jit
def _finish(
    h, best, h0, row, b0, w0, n0, pn, t, bias, hi, lo, u, omega, gaps, B,
    H: gl.constexpr, W: gl.constexpr, N: gl.constexpr, POOL: gl.constexpr, AVERAGE: gl.constexpr, NUM_T: gl.constexpr,
    BIAS: gl.constexpr, UPDATE: gl.constexpr, WATCH: gl.constexpr, M: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr,
    cell: gl.constexpr,
):  # fmt: skip
    """From what came from below or above to the new state: the rest of the field, over-relaxation, clamp, unpooling."""
    rm = gl.arange(0, M, gl.SliceLayout(1, cell))
    rn = n0 + gl.arange(0, BN, gl.SliceLayout(0, cell))
    b = b0 + rm // WW
    y = h0 + row
    x = w0 + rm % WW
    ok = (b < B)[:, None] & (rn < N)[None, :]
    o = ((b * H + y) * W + x)[:, None] * N + rn[None, :]
    if UPDATE:
        for i in gl.static_range(NUM_T):
            h += gl.load(t + i * B.to(gl.int64) * (H * W * N) + o, mask=ok, other=0.0).to(gl.float32)
        if BIAS:
            h += gl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
        old = gl.load(hi + o, mask=ok, other=0.0).to(gl.float32) + gl.load(lo + o, mask=ok, other=0.0).to(gl.float32)
        gap = gl.minimum(gl.maximum(h, 0.0), 1.0) - old
        if WATCH:
            gl.store(gaps + (pn * B + b) * (H * W) + y * W + x, gl.sum(gl.where(ok, gap * gap, 0.0), axis=1), mask=b < B)
        s = gl.minimum(gl.maximum(old + gl.load(omega) * gap, 0.0), 1.0)
        v = s.to(gl.float16)
        gl.store(hi + o, v, mask=ok)
        gl.store(lo + o, (s - v.to(gl.float32)).to(gl.float16), mask=ok)
    else:
        v = gl.load(hi + o, mask=ok, other=0.0)
    if POOL:
        zero = gl.zeros([M, BN], gl.float16, cell)
        base = ((b * (2 * H) + 2 * y) * (2 * W) + 2 * x)[:, None] * N + rn[None, :]
        for p in gl.static_range(4):
            at = base + ((p // 2) * (2 * W) + p % 2) * N
            gl.store(u + at, v * 0.25 if AVERAGE else gl.where(best == p, v, zero), mask=ok)


@gluon.jit(do_not_specialize=["B", "BASE"], do_not_specialize_on_alignment=["omega"])
def deviation_kernel(
    xd, wd, hi, lo, slack, d, t, bias, omega, behind, u, du,
    B, BASE,
    HO: gl.constexpr, WO: gl.constexpr, CIN: gl.constexpr, N: gl.constexpr, C: gl.constexpr, ROWS: gl.constexpr,
    HALVES: gl.constexpr, K: gl.constexpr, PAD: gl.constexpr, DOWN: gl.constexpr, POOLS: gl.constexpr, AVERAGE: gl.constexpr,
    NUM_T: gl.constexpr, BIAS: gl.constexpr, UPDATE: gl.constexpr, REST: gl.constexpr, SCALE: gl.constexpr,
    LIMIT: gl.constexpr, LEAST: gl.constexpr, BB: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr, SA: gl.constexpr,
    SW: gl.constexpr,
):  # fmt: skip
    """`rest_update` and `deviation_update` of ebl.engine.deviation."""
    NW: gl.constexpr = gl.num_warps()
    BW: gl.constexpr = BB * WW
    b0, h0, w0, n0, _ = _place(HO, WO, N, BB, WW, BN)
    top, bottom = _convolve(xd, wd, b0, h0, w0, n0, CIN, C, ROWS, HALVES, K, PAD, DOWN, 1, BB, WW, BN, SA, SW)
    if POOLS:  # half of the channels after the other: all at once need more registers than there are
        HALF: gl.constexpr = BN // 2
        tops = top.reshape([BW, 2, HALF]).permute((0, 2, 1)).split()
        bottoms = bottom.reshape([BW, 2, HALF]).permute((0, 2, 1)).split()
        for i in gl.static_range(2):
            _pool_deviations(
                tops[i],
                bottoms[i],
                h0,
                b0,
                w0,
                n0 + i * HALF,
                hi,
                lo,
                slack,
                d,
                t,
                bias,
                omega,
                behind,
                u,
                du,
                B,
                BASE,
                HO,
                WO,
                N,
                AVERAGE,
                NUM_T,
                BIAS,
                UPDATE,
                REST,
                SCALE,
                LIMIT,
                LEAST,
                BW,
                WW,
                HALF,
            )
    else:
        cell: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [NW, 1], [1, 0])
        rn = n0 + gl.arange(0, BN, gl.SliceLayout(0, cell))
        rm = gl.arange(0, BW, gl.SliceLayout(1, cell))
        b = b0 + rm // WW
        ok = (b < B)[:, None] & (rn < N)[None, :]
        for row in gl.static_range(2):
            f = gl.convert_layout(top if row == 0 else bottom, cell)
            _deviate(
                f,
                b,
                h0 + row,
                w0 + rm % WW,
                rn,
                ok,
                hi,
                lo,
                slack,
                d,
                t,
                bias,
                omega,
                B,
                BASE,
                HO,
                WO,
                N,
                NUM_T,
                BIAS,
                UPDATE,
                REST,
                SCALE,
                LIMIT,
            )


@gluon.jit
def _pool_deviations(
    top, bottom, h0, b0, w0, n0, hi, lo, slack, d, t, bias, omega, behind, u, du, B, BASE,
    HO: gl.constexpr, WO: gl.constexpr, N: gl.constexpr, AVERAGE: gl.constexpr, NUM_T: gl.constexpr, BIAS: gl.constexpr,
    UPDATE: gl.constexpr, REST: gl.constexpr, SCALE: gl.constexpr, LIMIT: gl.constexpr, LEAST: gl.constexpr,
    BW: gl.constexpr, WW: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """From two rows of what came from below to the pooled layer: who wins, the move, and the unpooled map."""
    NW: gl.constexpr = gl.num_warps()
    cell: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [NW, 1], [1, 0])
    rn = n0 + gl.arange(0, BN, gl.SliceLayout(0, cell))
    wide: gl.constexpr = gl.BlockedLayout([2, 8], [256 // BN, BN // 8], [NW, 1], [1, 0])
    H: gl.constexpr = HO // 2
    W: gl.constexpr = WO // 2
    M: gl.constexpr = BW // 2
    rm = gl.arange(0, M, gl.SliceLayout(1, cell))
    b = b0 + rm // (WW // 2)
    y = h0 // 2
    x = w0 // 2 + rm % (WW // 2)
    ok = (b < B)[:, None] & (rn < N)[None, :]
    at = (((b % BASE) * HO + 2 * y) * WO + 2 * x)[:, None] * N + rn[None, :]
    to = ((b * HO + 2 * y) * WO + 2 * x)[:, None] * N + rn[None, :]
    c0, c1 = gl.convert_layout(top, wide).reshape([M, 2, BN]).permute((0, 2, 1)).split()
    c2, c3 = gl.convert_layout(bottom, wide).reshape([M, 2, BN]).permute((0, 2, 1)).split()
    a0 = gl.convert_layout(c0, cell)
    a1 = gl.convert_layout(c1, cell)
    a2 = gl.convert_layout(c2, cell)
    a3 = gl.convert_layout(c3, cell)
    if AVERAGE:
        f = (a0 + a1 + a2 + a3) * 0.25
        best = gl.zeros([M, BN], gl.int32, cell)
    else:
        was = gl.zeros([M, BN], gl.int32, cell)
        if not REST:
            v0 = gl.load(behind + at, mask=ok, other=0.0).to(gl.float32)
            v1 = gl.load(behind + at + N, mask=ok, other=0.0).to(gl.float32)
            v2 = gl.load(behind + at + WO * N, mask=ok, other=0.0).to(gl.float32)
            v3 = gl.load(behind + at + WO * N + N, mask=ok, other=0.0).to(gl.float32)
            was = gl.where(v0 == 0.0, 0, gl.where(v1 == 0.0, 1, gl.where(v2 == 0.0, 2, 3)))
            a0 += v0
            a1 += v1
            a2 += v2
            a3 += v3
        f = gl.maximum(gl.maximum(a0, a1), gl.maximum(a2, a3))
        best = gl.where(a0 == f, 0, gl.where(a1 == f, 1, gl.where(a2 == f, 2, 3)))
        if REST:
            gl.store(behind + at, _behind(a0, f, best == 0, SCALE, LIMIT, LEAST), mask=ok)
            gl.store(behind + at + N, _behind(a1, f, best == 1, SCALE, LIMIT, LEAST), mask=ok)
            gl.store(behind + at + WO * N, _behind(a2, f, best == 2, SCALE, LIMIT, LEAST), mask=ok)
            gl.store(behind + at + WO * N + N, _behind(a3, f, best == 3, SCALE, LIMIT, LEAST), mask=ok)
    new, h = _deviate(
        f, b, y, x, rn, ok, hi, lo, slack, d, t, bias, omega, B, BASE, H, W, N, NUM_T, BIAS, UPDATE, REST, SCALE, LIMIT
    )
    zero = gl.zeros([M, BN], gl.float16, cell)
    for p in gl.static_range(4):
        shift = ((p // 2) * WO + p % 2) * N
        if REST:
            if AVERAGE:
                part = new * 0.25
                gl.store(u + at + shift, (h * 0.25).to(gl.float16), mask=ok)
            else:
                part = gl.where(best == p, new, zero)
                gl.store(u + at + shift, gl.where(best == p, h, 0.0).to(gl.float16), mask=ok)
            gl.store(du + at + shift, part, mask=ok)
            gl.store(du + B.to(gl.int64) * (HO * WO * N) + at + shift, part, mask=ok)
        elif AVERAGE:
            gl.store(du + to + shift, new * 0.25, mask=ok)
        else:
            change = gl.where(best == p, new.to(gl.float32), 0.0)
            change += gl.where(best == was, 0.0, gl.where(best == p, SCALE * h, gl.where(was == p, -SCALE * h, 0.0)))
            gl.store(du + to + shift, change.to(gl.float16), mask=ok)


@gluon.jit
def _behind(a, f, won, SCALE: gl.constexpr, LIMIT: gl.constexpr, LEAST: gl.constexpr):
    """How far a position is behind the winner: 0 at the winner alone, so that it can be told from this."""
    return gl.where(won, 0.0, gl.minimum(gl.maximum(SCALE * (a - f), -LIMIT), -LEAST)).to(gl.float16)


@gluon.jit
def _deviate(f, b, y, x, rn, ok, hi, lo, slack, d, t, bias, omega, B, BASE, H: gl.constexpr, W: gl.constexpr, N: gl.constexpr,
             NUM_T: gl.constexpr, BIAS: gl.constexpr, UPDATE: gl.constexpr, REST: gl.constexpr, SCALE: gl.constexpr,
             LIMIT: gl.constexpr):  # fmt: skip
    """Write the slack and the first deviations, or move the deviations; the new ones, and the free state."""
    o = ((b * H + y) * W + x)[:, None] * N + rn[None, :]
    base = (((b % BASE) * H + y) * W + x)[:, None] * N + rn[None, :]
    h = gl.load(hi + base, mask=ok, other=0.0).to(gl.float32)
    part = B.to(gl.int64) * (H * W * N)
    if REST or UPDATE:
        for i in gl.static_range(NUM_T):
            f += gl.load(t + i * part + o, mask=ok, other=0.0).to(gl.float32)
    if REST:
        if BIAS:
            f += gl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
        gl.store(slack + o, gl.minimum(gl.maximum(SCALE * (f - h), -LIMIT), LIMIT).to(gl.float16), mask=ok)
        new = (SCALE * gl.load(lo + o, mask=ok, other=0.0).to(gl.float32)).to(gl.float16)
        gl.store(d + o, new, mask=ok)
        gl.store(d + part + o, new, mask=ok)
    else:
        new = gl.load(d + o, mask=ok, other=0.0)
        if UPDATE:
            f += gl.load(slack + base, mask=ok, other=0.0).to(gl.float32)
            low = -SCALE * h
            high = SCALE * (1.0 - h)
            now = new.to(gl.float32)
            now += gl.load(omega) * (gl.minimum(gl.maximum(f, low), high) - now)
            new = gl.minimum(gl.maximum(now, low), high).to(gl.float16)
            gl.store(d + o, new, mask=ok)
    return new, h


@gluon.jit
def _load_pair(gd, xd, bars, ring_g, ring_x, chunk, live, n0, c0, dh, dw, HO: gl.constexpr, WO: gl.constexpr, BB: gl.constexpr,
               WW: gl.constexpr, BP: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, S: gl.constexpr, slot):  # fmt: skip
    """Ask for 64 positions of both partners: chunk = (examples, row, columns)."""
    nw: gl.constexpr = WO // WW
    w0 = (chunk % nw) * WW
    h = (chunk // nw) % HO
    b0 = (chunk // (nw * HO)) * BB
    bar = bars.index(slot)
    mbarrier.expect(bar, BP * (BM + BN) * 2, live)
    g = ring_g.index(slot)._reinterpret(gl.float16, [1, BB, WW, BM], gd.layout)
    x = ring_x.index(slot)._reinterpret(gl.float16, [1, BB, WW, BN], xd.layout)
    tma.async_copy_global_to_shared(gd, [h, b0, w0, n0], bar, g, live)
    tma.async_copy_global_to_shared(xd, [h + dh, b0, w0 + dw, c0], bar, x, live)


@gluon.jit(do_not_specialize=["chunks"])
def weight_kernel(
    gd, xd, out, chunks, N, C,
    HO: gl.constexpr, WO: gl.constexpr, K: gl.constexpr, PAD: gl.constexpr,
    BB: gl.constexpr, WW: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, S: gl.constexpr,
):  # fmt: skip
    """A tile of one tap's weight gradient, over a part of the positions."""
    NW: gl.constexpr = gl.num_warps()
    BP: gl.constexpr = BB * WW
    n0 = gl.program_id(0) * BM
    tap = gl.program_id(1) % (K * K)
    c0 = (gl.program_id(1) // (K * K)) * BN
    dh = tap // K - PAD
    dw = tap % K - PAD
    part = gl.program_id(2)
    first = (part * chunks) // gl.num_programs(2)
    steps = ((part + 1) * chunks) // gl.num_programs(2) - first
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ring_g = gl.allocate_shared_memory(gl.float16, [S, BP, BM], layout)
    ring_x = gl.allocate_shared_memory(gl.float16, [S, BP, BN], layout)
    bars = gl.allocate_shared_memory(gl.int64, [S, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(S):
        mbarrier.init(bars.index(i), count=1)
    for i in gl.static_range(S):
        _load_pair(gd, xd, bars, ring_g, ring_x, first + i, i < steps, n0, c0, dh, dw, HO, WO, BB, WW, BP, BM, BN, S, i)
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [NW, 1], [16, BN, 16])
    acc = warpgroup_mma_init(gl.zeros([BM, BN], gl.float32, mma))
    for i in range(steps):
        slot = i % S
        mbarrier.wait(bars.index(slot), (i // S) & 1)
        acc = warpgroup_mma(ring_g.index(slot).permute((1, 0)), ring_x.index(slot), acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(acc,)))
        if i > 0:
            at = i - 1 + S
            _load_pair(
                gd, xd, bars, ring_g, ring_x, first + at, at < steps, n0, c0, dh, dw, HO, WO, BB, WW, BP, BM, BN, S, at % S
            )
    z = warpgroup_mma_wait(0, deps=(acc,))
    for i in gl.static_range(S):
        mbarrier.invalidate(bars.index(i))
    rows = n0 + gl.arange(0, BM, gl.SliceLayout(1, mma))
    cols = c0 + gl.arange(0, BN, gl.SliceLayout(0, mma))
    o = (part * N + rows)[:, None] * (K * K * C) + tap * C + cols[None, :]
    gl.store(out + o, z, mask=(rows < N)[:, None] & (cols < C)[None, :])


@dataclass(frozen=True)
class HopperTiles:
    """Warps of a tile (8: 256 positions, 4: 128), its channels, boxes and weights in flight, parts of the sum."""

    warps: int = 8
    channels: int = 128
    boxes: int = 2
    weights: int = 3
    parts: int = 1


def fits(op: Update, x: Tensor, w: Tensor, tiles: HopperTiles) -> bool:
    """Whether this kernel can do it: TMA wants whole boxes and channels in eights, pooling whole windows."""
    map_height, map_width = op.map_size(x)
    chunks = -(-x.shape[3] // 64) * op.kernel_size
    return (
        op.kernel_size in (1, 3, 7)
        and map_height % 2 == 0
        and map_width % 2 == 0
        and x.shape[3] % 8 == 0
        and w.shape[-1] % 8 == 0
        and chunks % tiles.parts == 0
        and (tiles.parts == 1 or op.mode == STORE)
    )


def hopper_update(
    op: Update,
    x: Tensor,
    w: Tensor,
    t: Tensor | None,
    layer: Layer | None,
    omega: Tensor | None,
    watch: bool = False,
    tiles: HopperTiles | None = None,
) -> None:
    """`layer_update` by the kernel above. In mode STORE, t has as many parts as the tiles say."""
    tiles = tiles or HopperTiles()
    xd, wd, grid, shape = _describe(op, x, w, tiles)
    hi, lo, u, bias, gaps = (None,) * 5 if layer is None else (layer.hi, layer.lo, layer.u, layer.bias, layer.gaps)
    anything: Any = x
    conv_kernel[(grid, tiles.parts)](
        xd,
        wd,
        *(anything if v is None else v for v in (t, bias, hi, lo, u, omega, gaps)),
        len(x),
        **shape,
        MODE=op.mode,
        AVERAGE=op.average,
        NUM_T=0 if t is None or op.mode == STORE else len(t),
        BIAS=bias is not None,
        UPDATE=omega is not None,
        WATCH=watch,
        SPLIT=tiles.parts,
        num_warps=tiles.warps,
        launch_pdl=PDL,
    )


def hopper_rest(op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, tiles: HopperTiles | None = None) -> None:
    _launch_deviation(op, x, w, t, layer, None, True, tiles or HopperTiles(4))


def hopper_deviation(
    op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None, tiles: HopperTiles | None = None
) -> None:
    _launch_deviation(op, x, w, t, layer, omega, False, tiles or HopperTiles(4))


def _launch_deviation(
    op: Update, x: Tensor, w: Tensor, t: Tensor | None, layer: Deviation, omega: Tensor | None, rest: bool, tiles: HopperTiles
) -> None:
    xd, wd, grid, shape = _describe(op, x, w, tiles)
    anything: Any = x
    others = (t, layer.bias, omega, layer.behind, layer.u, layer.du)
    deviation_kernel[(grid, 1)](
        xd,
        wd,
        layer.hi,
        layer.lo,
        layer.slack,
        layer.d,
        *(anything if v is None else v for v in others),
        len(x),
        len(layer.hi),
        **shape,
        POOLS=op.mode == POOL,
        AVERAGE=op.average,
        NUM_T=0 if t is None else len(t),
        BIAS=layer.bias is not None and rest,
        UPDATE=omega is not None,
        REST=rest,
        SCALE=SCALE,
        LIMIT=LIMIT,
        LEAST=LEAST,
        num_warps=tiles.warps,
        launch_pdl=PDL,
    )


def _describe(op: Update, x: Tensor, w: Tensor, tiles: HopperTiles) -> tuple[Any, Any, int, dict[str, Any]]:
    """TMA descriptors of input and weights, the number of tiles, and what both kernels want to know of the shapes."""
    batch, height, width, channels_in = x.shape
    map_height, map_width = op.map_size(x)
    num_out = w.shape[-1] if op.down else w.shape[-3]
    pairs = 16 * tiles.warps
    ww = min(map_width & -map_width, pairs)
    bb = pairs // ww
    k = op.kernel_size
    box, tile = [k + 1, bb, ww, 64], [64, tiles.channels] if op.down else [tiles.channels, 64]
    strides = [width * channels_in, height * width * channels_in, channels_in, 1]
    xd = TensorDescriptor(x, [height, batch, width, channels_in], strides, box, gl.NVMMASharedLayout(128, 16, 4))
    row = k * k * w.shape[-1]
    wd = TensorDescriptor(w, [w.numel() // row, row], [row, 1], tile, gl.NVMMASharedLayout(128, 16, 2))
    grid = -(-batch // bb) * (map_height // 2) * (map_width // ww) * -(-num_out // tiles.channels)
    shape = {
        "HO": map_height,
        "WO": map_width,
        "CIN": channels_in,
        "N": num_out,
        "C": w.shape[-1],
        "ROWS": w.shape[-3],
        "HALVES": halves_of(w),
        "K": k,
        "PAD": k - 1 - op.padding if op.down else op.padding,
        "DOWN": op.down,
        "BB": bb,
        "WW": ww,
        "BN": tiles.channels,
        "SA": tiles.boxes,
        "SW": tiles.weights,
    }
    return xd, wd, grid, shape


def hopper_weight_gradient(op: Update, below: Tensor, above: Tensor, out: Tensor, warps: int = 4) -> None:
    """`weight_gradient` of ebl.engine.gradient by the kernel above."""
    batch, height, width, c = below.shape
    n, k = above.shape[3], op.kernel_size
    map_height, map_width = above.shape[1:3]
    ww = min(map_width & -map_width, 64)
    bb = 64 // ww
    bm, bn = 32 * warps, 128
    layout = gl.NVMMASharedLayout(128, 16, 4)
    gd, xd = (
        TensorDescriptor(v, [h, batch, w, channels], [w * channels, h * w * channels, channels, 1], [1, bb, ww, block], layout)
        for v, h, w, channels, block in ((above, map_height, map_width, n, bm), (below, height, width, c, bn))
    )
    chunks = -(-batch // bb) * map_height * (map_width // ww)
    weight_kernel[(-(-n // bm), -(-c // bn) * k * k, len(out))](
        gd, xd, out, chunks, n, c, HO=map_height, WO=map_width, K=k, PAD=op.padding, BB=bb, WW=ww, BM=bm, BN=bn,
        S=3, num_warps=warps,
    )  # fmt: skip
