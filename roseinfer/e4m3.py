"""FP8 in the format E4M3 (4 bits of exponent, 3 of mantissa, no infinities)."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
#: The largest number.
LARGEST = 448.0


def to_e4m3(x: Tensor) -> Tensor:
    """Round `x`, of any shape, to E4M3, saturating at ±LARGEST."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def movable(x: Tensor) -> Tensor:
    """FP8 tensors as bytes, for operators that move elements but do not take FP8; other tensors unchanged."""
    return x.view(torch.uint8) if x.dtype == E4M3 else x
