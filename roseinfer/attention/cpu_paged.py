"""Paged attention on a CPU: prompts through PyTorch, one-token rows through a C++ kernel."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kernels.cpu.build import load_library
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig
from roseinfer.ranges import named_range

_KERNELS = {torch.float32: "paged_decode_fp32", torch.bfloat16: "paged_decode_bf16"}
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_ARGUMENTS = (
    [_POINTER] * 3 + [_LONG] * 3 + [_POINTER] * 5 + [_LONG, _POINTER, _LONG] + [_INT] * 4 + [ctypes.c_float]
)


class CpuPagedAttention(TorchPagedAttention):
    """Reads keys and values where they lie, block by block; see kernels/cpu/paged_decode.cpp."""

    def __init__(self, pool: KVPool, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(pool)
        self._kernel = getattr(load_library(), _KERNELS[dtype])
        self._kernel.argtypes, self._kernel.restype = _ARGUMENTS, None
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
