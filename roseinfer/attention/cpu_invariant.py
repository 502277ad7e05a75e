"""Batch-invariant paged attention on a CPU: a token's result is the same in every batch."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.kernels.cpu.paged import paged_decode


class CpuInvariantAttention(CpuPagedAttention):
    """Prefill runs the decode kernel for every prompt token, each with the tokens before it.

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
