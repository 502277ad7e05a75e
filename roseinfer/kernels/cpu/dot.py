"""Whether the kernels that multiply bfloat16 are used here."""

from __future__ import annotations

import torch

from roseinfer.kernels.cpu.build import load_library


def has_bf16_products() -> bool:
    """AVX-512, but not AMX, whose tiles (through oneDNN) are faster. Raises BuildError."""
    return not torch.cpu._is_amx_tile_supported() and bool(load_library().has_bf16_products())
