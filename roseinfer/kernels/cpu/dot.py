"""Whether the kernels that need the processor's bfloat16 dot product are used here."""

from __future__ import annotations

import torch

from roseinfer.kernels.cpu.build import load_library


def has_bf16_dot() -> bool:
    """AVX-512 BF16, but not AMX, whose tiles (through oneDNN) are faster. Raises BuildError."""
    return not torch.cpu._is_amx_tile_supported() and bool(load_library().has_bf16_dot())
