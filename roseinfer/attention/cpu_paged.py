"""Paged attention on a CPU: prompts through PyTorch, one-token rows through a C++ kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, kernel
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig
from roseinfer.tracing.ranges import named_range

_KERNELS = {torch.float32: "paged_decode_fp32", torch.bfloat16: "paged_decode_bf16"}
_ARGUMENTS = (*[POINTER] * 3, *[LONG] * 3, *[POINTER] * 5, LONG, POINTER, LONG, *[INT] * 4, FLOAT)


class CpuPagedAttention(TorchPagedAttention):
    """Reads keys and values where they lie, block by block; see kernels/cpu/paged_decode.cpp."""

    def __init__(self, pool: KVPool, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(pool)
        self._kernel = kernel(_KERNELS[dtype], *_ARGUMENTS)
        self._shape = (config.heads, config.kv_heads, config.head_dim, pool.block_size)
        self._scale = config.head_dim**-0.5

    @staticmethod
    def supports(config: ModelConfig, dtype: torch.dtype) -> bool:
        """The kernel reads heads in vectors of 16 elements, float32 or bfloat16."""
        return dtype in _KERNELS and config.head_dim % 16 == 0

    def _prepare_decode(self) -> None:
        batch = self._batch
        self._decode_arrays = (
            batch.cache_slots[batch.decode_start :].copy(),
            batch.decode_blocks.copy(),
            batch.decode_lengths.copy(),
        )

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        slots, blocks, lengths = self._decode_arrays
        with named_range("roseinfer.attention.decode"):
            self._kernel(
                q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
                keys.data_ptr(), values.data_ptr(), out.data_ptr(), slots.ctypes.data,
                blocks.ctypes.data, blocks.shape[1], lengths.ctypes.data, len(lengths),
                *self._shape, self._scale,
            )  # fmt: skip
