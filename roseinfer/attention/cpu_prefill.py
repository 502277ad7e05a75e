"""Paged attention on a CPU, prefill and decode in C++ kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.kernels.cpu.build import has_bf16_products
from roseinfer.kernels.cpu.paged import MAX_PREFILL_DIM, paged_prefill, workspace_size
from roseinfer.kvcache.pool import KVShape


class CpuPrefillAttention(CpuPagedAttention):
    """bfloat16: prefill, too, reads cached keys and values in place."""

    @staticmethod
    def supports(shape: KVShape) -> bool:
        """bf16 on a CPU with AVX-512, and head sizes that are multiples of VECTOR, up to
        MAX_PREFILL_DIM. Raises BuildError."""
        fits = CpuPagedAttention.supports(shape) and shape.head_dim <= MAX_PREFILL_DIM
        return fits and shape.dtype == torch.bfloat16 and has_bf16_products()

    def _prepare_prefill(self) -> None:
        segments, shape = self._batch.segments, self._pool.shape
        first_block = np.cumsum([0, *(len(segment.blocks) for segment in segments)])
        self._prompts = np.array(
            [(s.start, s.count, s.context, first) for s, first in zip(segments, first_block, strict=False)],
            dtype=np.int64,
        )
        self._blocks = np.concatenate([segment.blocks for segment in segments])
        self._slots = self._batch.cache_slots[: self._batch.decode_start].copy()
        size = workspace_size(self._prompts, shape.kv_heads, shape.head_dim)
        self._workspace = torch.empty(size, dtype=torch.bfloat16)

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        paged_prefill(
            q, k, v, keys, values, out, self._workspace, self._slots, self._blocks, self._prompts,
            self._pool.block_size,
        )  # fmt: skip
