"""8-bit floats with a sign, 4 bits of exponent and 3 of mantissa (E4M3, without infinities)."""

from __future__ import annotations

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
#: The largest number.
LARGEST = 448.0


def to_e4m3(x: Tensor) -> Tensor:
    """`x` rounded, beyond ±LARGEST to these."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3)


def movable(x: Tensor) -> Tensor:
    """8-bit floats as bytes, for operators that move elements but not these; other tensors as they are."""
    return x.view(torch.uint8) if x.dtype == E4M3 else x
