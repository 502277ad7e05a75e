"""Whether the bfloat16 GEMM kernels are used here."""

from __future__ import annotations

import torch

from roseinfer.kernels.cpu.build import load_library


def has_bf16_products() -> bool:
    """Whether the processor has AVX-512 but not AMX, with which oneDNN is faster. Raises BuildError."""
    return not torch.cpu._is_amx_tile_supported() and bool(load_library().has_bf16_products())
