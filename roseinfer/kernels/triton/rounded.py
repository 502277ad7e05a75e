"""Rounding of keys and values for an FP8 cache. Reference: `roseinfer.e4m3.to_e4m3`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(x, FP8: tl.constexpr):
    """`x`, with FP8 rounded to E4M3, saturating at ±448."""
    if FP8:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0).to(tl.float8e4nv)
    return x
