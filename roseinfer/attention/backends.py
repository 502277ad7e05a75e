"""Chooses the attention implementation for a device."""

from __future__ import annotations

import torch

from roseinfer.attention.base import Attention
from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig


def make_attention(
    pool: KVPool, config: ModelConfig, dtype: torch.dtype, *, kernels: bool
) -> tuple[Attention, str]:
    """The implementation and its name, for the start-up line."""
    return TorchPagedAttention(pool), "torch"
