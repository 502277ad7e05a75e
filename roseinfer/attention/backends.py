"""Chooses the attention implementation for a device."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuInvariantAttention, CpuPagedAttention
from roseinfer.attention.cpu_prefill import CpuPrefillAttention
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.config import ConfigError, PrefillBackend
from roseinfer.e4m3 import E4M3
from roseinfer.kernels.cpu.build import BuildError
from roseinfer.kvcache.pool import KVPool

log = logging.getLogger(__name__)

#: What batch-invariant results need.
NEEDED = (
    "the C++ kernels: --device cpu --dtype bf16 with packed weights, on a processor with AVX-512, and a "
    "model whose widths and heads are whole vectors, without states"
)


@dataclass(frozen=True)
class AttentionBackend:
    """An implementation, and the names of its decode and its prefill attention in the start-up line."""

    attention: Attention
    decode: str
    prefill: str


def make_attention(
    pool: KVPool,
    *,
    cpu_kernels: bool,
    prefill_backend: PrefillBackend | None = None,
    batch_invariant: bool = False,
) -> AttentionBackend:
    """Attention without GPU kernels: C++ on a CPU, else PyTorch's operators. Raises ConfigError where
    `batch_invariant` cannot be had."""
    if batch_invariant:
        return AttentionBackend(_invariant(pool, cpu_kernels), "cpu-invariant", "cpu-invariant")
    cpu_kernels = cpu_kernels and pool.device.type == "cpu"
    if cpu_kernels and pool.shape.dtype == E4M3:
        log.warning("attention falls back to PyTorch: the C++ kernels do not take an FP8 KV cache")
    if cpu_kernels and CpuPagedAttention.supports(pool.shape):
        try:
            if prefill_backend in (None, "auto", "auto2") and CpuPrefillAttention.supports(pool.shape):
                return AttentionBackend(CpuPrefillAttention(pool), "cpu-paged", "cpu-paged")
            return AttentionBackend(CpuPagedAttention(pool), "cpu-paged", "sdpa")
        except BuildError as error:
            log.warning("CPU kernels are off, attention falls back to PyTorch: %s", error)
    return AttentionBackend(TorchPagedAttention(pool), "torch", "sdpa")


def _invariant(pool: KVPool, cpu_kernels: bool) -> Attention:
    try:
        if cpu_kernels and pool.device.type == "cpu" and CpuInvariantAttention.supports(pool.shape):
            return CpuInvariantAttention(pool)
    except BuildError as error:
        raise ConfigError(f"--batch-invariant needs the C++ kernels: {error}") from None
    raise ConfigError(f"--batch-invariant needs {NEEDED}")
