"""Chooses the attention implementation for a device."""

from __future__ import annotations

import logging

import torch

from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kernels.cpu.build import BuildError
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig

log = logging.getLogger(__name__)


def make_attention(
    pool: KVPool, config: ModelConfig, dtype: torch.dtype, *, cpu_kernels: bool
) -> tuple[Attention, str]:
    """The implementation and its name, for the start-up line."""
    if cpu_kernels and pool.device.type == "cpu" and CpuPagedAttention.supports(config, dtype):
        try:
            return CpuPagedAttention(pool, config, dtype), "cpu-paged"
        except BuildError as error:
            log.warning("CPU kernels are off, attention falls back to PyTorch: %s", error)
    return TorchPagedAttention(pool), "torch"
