"""Paged attention on a CPU: prefill in PyTorch, decode in a C++ kernel."""

from __future__ import annotations

from torch import Tensor

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kernels.cpu.build import load_library
from roseinfer.kernels.cpu.paged import DECODE_DTYPES, VECTOR, paged_decode
from roseinfer.kvcache.pool import KVPool, KVShape


class CpuPagedAttention(TorchPagedAttention):
    """Decode reads cached keys and values in place, block by block. Raises BuildError."""

    def __init__(self, pool: KVPool) -> None:
        super().__init__(pool)
        load_library()

    @staticmethod
    def supports(shape: KVShape) -> bool:
        """The kernel takes float32 or bfloat16, and head sizes that are multiples of VECTOR."""
        return shape.dtype in DECODE_DTYPES and shape.head_dim % VECTOR == 0

    def _prepare_decode(self) -> None:
        batch = self._batch
        self._decode_arrays = (
            batch.cache_slots[batch.decode_start :].copy(),
            batch.decode_blocks.copy(),
            batch.decode_lengths.copy(),
        )

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        paged_decode(q, k, v, keys, values, out, *self._decode_arrays, self._pool.block_size)
