"""Paged attention on a CPU, prompts too through a C++ kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, kernel
from roseinfer.kernels.cpu.dot import has_bf16_dot
from roseinfer.kvcache.pool import KVPool
from roseinfer.models.config import ModelConfig

_ARGUMENTS = (*[POINTER] * 3, *[LONG] * 3, *[POINTER] * 7, LONG, *[INT] * 4, FLOAT)
_VECTOR = 16


class CpuPrefillAttention(CpuPagedAttention):
    """bfloat16: cached keys and values are read where they lie; see kernels/cpu/paged_prefill.cpp."""

    def __init__(self, pool: KVPool, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__(pool, config, dtype)
        self._prefill_kernel = kernel("paged_prefill_bf16", *_ARGUMENTS)

    @staticmethod
    def supports(config: ModelConfig, dtype: torch.dtype) -> bool:
        """bf16 where the processor has its dot product, heads of whole vectors. Raises BuildError."""
        whole = CpuPagedAttention.supports(config, dtype) and config.head_dim <= 1024
        return whole and dtype == torch.bfloat16 and has_bf16_dot()

    def _prepare_prefill(self) -> None:
        segments = self._batch.segments
        held = np.cumsum([0, *(len(segment.blocks) for segment in segments)])
        self._prompts = np.array(
            [(s.start, s.count, s.context, at) for s, at in zip(segments, held, strict=False)], dtype=np.int64
        )
        self._blocks = np.concatenate([segment.blocks for segment in segments])
        self._slots = self._batch.cache_slots[: self._batch.decode_start].copy()
        keys = sum(-(-(s.context + s.count) // _VECTOR) * _VECTOR for s in segments)
        _, kv_heads, dim, _ = self._shape
        self._workspace = torch.empty(2 * keys * kv_heads * dim, dtype=torch.bfloat16)

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        self._prefill_kernel(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
            keys.data_ptr(), values.data_ptr(), out.data_ptr(), self._workspace.data_ptr(),
            self._slots.ctypes.data, self._blocks.ctypes.data, self._prompts.ctypes.data, len(self._prompts),
            *self._shape, self._scale,
        )  # fmt: skip
