"""What reaches layer 1 from the images: the definition in PyTorch, and the same as one Triton kernel.

Found once a batch, in float32: rounding here would move the equilibrium that a nudge is contrasted with."""

from __future__ import annotations

import torch
from torch import Tensor

from ebl.engine.available import tl, triton
from ebl.models.links import Conv


def drive(link: Conv, x: Tensor, w: Tensor, b: Tensor, coarse: Tensor, exact: Tensor | None, where: Tensor | None) -> None:
    """The definition. pool(w * x) + b, (B, H, W, channels), goes to `coarse` (16-bit) and, if wanted, `exact` (float32), and
    which position of each window won to `where` (uint8); channels beyond those of w are left alone."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        pooled, indices = link.up(w, None, x)
    n = len(b)
    maps = pooled.permute(0, 2, 3, 1) + b
    coarse[..., :n].copy_(maps)
    if exact is not None:
        exact[..., :n].copy_(maps)
    if where is not None and indices is not None:
        width = link.map_size[1]
        at = indices.permute(0, 2, 3, 1)
        where[..., :n].copy_((at // width % 2) * 2 + at % 2)


def triton_drive(
    link: Conv, x: Tensor, w: Tensor, b: Tensor, coarse: Tensor, exact: Tensor | None, where: Tensor | None
) -> None:
    batch, height, width, channels = coarse.shape
    tensor_cores = x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) >= (8, 0)
    cells = batch * height * width
    bn = max(16, min(64, triton.next_power_of_2(len(b))))
    _drive_kernel[(triton.cdiv(cells, 32), triton.cdiv(len(b), bn))](
        x,
        w,
        b,
        coarse,
        coarse if exact is None else exact,
        coarse if where is None else where,
        cells,
        *x.shape[2:],
        height,
        width,
        *x.stride(),
        *w.stride(),
        CIN=x.shape[1],
        N=len(b),
        CHANNELS=channels,
        K=link.kernel_size,
        PAD=link.padding,
        AVERAGE=link.pool == "average",
        EXACT=exact is not None,
        WHERE=where is not None,
        PRECISION="tf32x3" if tensor_cores else "ieee",
        BM=32,
        BN=bn,
        BK=32,
        num_warps=4,
    )


if triton is not None:

    @triton.jit
    def _at(x, w, b, y, z, live, rn, HI, WI, xb, xc, xh, xw, wn, wc, wh, ww, CIN: tl.constexpr, N: tl.constexpr,
            K: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
        """The convolution where the kernel's corner lies at (y, z)."""
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(0, (CIN * K * K + BK - 1) // BK):
            rk = i * BK + tl.arange(0, BK)
            c = rk // (K * K)
            dh = (rk // K) % K
            dw = rk % K
            yy = y[:, None] + dh[None, :]
            zz = z[:, None] + dw[None, :]
            seen = (c < CIN)[None, :] & live[:, None] & (yy >= 0) & (yy < HI) & (zz >= 0) & (zz < WI)
            image = tl.load(x + b[:, None] * xb + c[None, :] * xc + yy * xh + zz * xw, mask=seen, other=0.0)
            at = rn[None, :] * wn + (c * wc + dh * wh + dw * ww)[:, None]
            kernel = tl.load(w + at, mask=(c < CIN)[:, None] & (rn < N)[None, :], other=0.0)
            acc = tl.dot(image, kernel, acc, input_precision=PRECISION)
        return acc

    @triton.jit
    def _drive_kernel(x, w, bias, coarse, exact, where, cells, HI, WI, H, W, xb, xc, xh, xw, wn, wc, wh, ww, CIN: tl.constexpr,
                      N: tl.constexpr, CHANNELS: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr, AVERAGE: tl.constexpr,
                      EXACT: tl.constexpr, WHERE: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr,
                      BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
        cell = tl.program_id(0) * BM + tl.arange(0, BM)
        rn = tl.program_id(1) * BN + tl.arange(0, BN)
        live = cell < cells
        z = (cell % W) * 2 - PAD
        y = (cell // W % H) * 2 - PAD
        b = cell // (W * H)
        a0 = _at(x, w, b, y, z, live, rn, HI, WI, xb, xc, xh, xw, wn, wc, wh, ww, CIN, N, K, PRECISION, BM, BN, BK)
        a1 = _at(x, w, b, y, z + 1, live, rn, HI, WI, xb, xc, xh, xw, wn, wc, wh, ww, CIN, N, K, PRECISION, BM, BN, BK)
        a2 = _at(x, w, b, y + 1, z, live, rn, HI, WI, xb, xc, xh, xw, wn, wc, wh, ww, CIN, N, K, PRECISION, BM, BN, BK)
        a3 = _at(x, w, b, y + 1, z + 1, live, rn, HI, WI, xb, xc, xh, xw, wn, wc, wh, ww, CIN, N, K, PRECISION, BM, BN, BK)
        if AVERAGE:
            f = (a0 + a1 + a2 + a3) * 0.25
        else:
            f = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
        ok = live[:, None] & (rn < N)[None, :]
        o = cell[:, None] * CHANNELS + rn[None, :]
        if WHERE:
            best = tl.where(a0 == f, 0, tl.where(a1 == f, 1, tl.where(a2 == f, 2, 3)))
            tl.store(where + o, best.to(tl.uint8), mask=ok)
        f += tl.load(bias + rn, mask=rn < N, other=0.0)[None, :]
        tl.store(coarse + o, f.to(coarse.dtype.element_ty), mask=ok)
        if EXACT:
            tl.store(exact + o, f, mask=ok)
