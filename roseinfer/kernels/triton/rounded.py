"""What becomes of a key or a value in a cache of 8-bit floats. Reference: `roseinfer.e4m3.to_e4m3`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(x, FP8: tl.constexpr):
    """As it is, or with FP8 in E4M3, beyond ±448 these."""
    if FP8:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0).to(tl.float8e4nv)
    return x
