"""Paged attention on a CPU: prefill in PyTorch, decode in a C++ kernel."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roseinfer.attention.torch_paged import TorchPagedAttention
from roseinfer.kernels.cpu.build import load_library
from roseinfer.kernels.cpu.paged import (
    DECODE_DTYPES,
    VECTOR,
    DecodeCall,
    Pointers,
    array_pointers,
    paged_decode,
)
from roseinfer.kvcache.pool import KVPool, KVShape


class CpuPagedAttention(TorchPagedAttention):
    """Decode reads cached keys and values in place, block by block. Raises BuildError."""

    #: The arrays of this step's decode rows, for `decode_call`.
    pointers: Pointers

    def __init__(self, pool: KVPool) -> None:
        super().__init__(pool)
        load_library()

    @staticmethod
    def supports(shape: KVShape) -> bool:
        """The kernel takes float32 or bfloat16, and head sizes that are multiples of VECTOR."""
        return shape.dtype in DECODE_DTYPES and shape.head_dim % VECTOR == 0

    @property
    def only_decodes(self) -> bool:
        """True if the step has no prompts."""
        return not self._batch.segments

    def decode_call(self, layer: int, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> DecodeCall:
        """`attend` of a step without prompts into `out` `[D, heads, head_dim]`, as a call for any such step,
        with its `pointers`."""
        return DecodeCall(q, k, v, *self._pool.layer(layer), out, self._pool.block_size)

    def _prepare_decode(self) -> None:
        batch = self._batch
        self._decode_arrays = (
            batch.cache_slots[batch.decode_start :].copy(),
            batch.decode_blocks.copy(),
            batch.decode_lengths.copy(),
        )
        self.pointers = array_pointers(*self._decode_arrays)

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        DecodeCall(q, k, v, keys, values, out, self._pool.block_size)(self.pointers)


class CpuInvariantAttention(CpuPagedAttention):
    """Batch-invariant: prefill runs the decode kernel for every prompt token, each with the tokens before it.

    So a token gets the same result, bit for bit, in a whole prompt, in a chunk, as a generated token, and
    when it is recomputed after a preemption.
    """

    def _prepare_prefill(self) -> None:
        batch = self._batch
        super()._prepare_prefill()
        self._slots = batch.cache_slots[: batch.decode_start].copy()
        self._tables = [batch.block_table[segment.request].copy() for segment in batch.segments]

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        keys.index_copy_(0, self._prefill_slots, k)
        values.index_copy_(0, self._prefill_slots, v)
        for segment, table in zip(self._batch.segments, self._tables, strict=True):
            rows = slice(segment.start, segment.start + segment.count)
            tables = np.broadcast_to(table, (segment.count, len(table)))
            lengths = np.arange(1, segment.count + 1) + segment.context
            paged_decode(
                q[rows], k[rows], v[rows], keys, values, out[rows], self._slots[rows], tables, lengths,
                self._pool.block_size,
            )  # fmt: skip
