"""Support for the bfloat16 GEMM kernels on this processor."""

from __future__ import annotations

from roseinfer.kernels.cpu.build import load_library


def has_bf16_products() -> bool:
    """Return whether the processor has AVX-512, and the system lets this process use AMX where it has that
    too. Raises BuildError."""
    return bool(load_library().has_bf16_products())
