"""Triton, where it is installed; without it the definitions are all there is."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

__all__ = ["tl", "triton"]
