"""Chooses the attention implementation for a device."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.attention.cpu_prefill import CpuPrefillAttention
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.config import PrefillBackend
from roseinfer.kernels.cpu.build import BuildError
from roseinfer.kvcache.pool import KVPool

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """An implementation, and what the start-up line calls its parts for one token and for prompts."""

    attention: Attention
    decode: str
    prefill: str


def make_attention(pool: KVPool, *, cpu_kernels: bool, prefill_backend: PrefillBackend | None = None) -> Made:
    """Without a GPU's kernels: C++ on a CPU, else PyTorch's operators."""
    if cpu_kernels and pool.device.type == "cpu" and CpuPagedAttention.supports(pool.shape):
        try:
            if prefill_backend in (None, "auto", "auto2") and CpuPrefillAttention.supports(pool.shape):
                return Made(CpuPrefillAttention(pool), "cpu-paged", "cpu-paged")
            return Made(CpuPagedAttention(pool), "cpu-paged", "sdpa")
        except BuildError as error:
            log.warning("CPU kernels are off, attention falls back to PyTorch: %s", error)
    return Made(TorchPagedAttention(pool), "torch", "sdpa")
