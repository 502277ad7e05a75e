"""Paged attention on a GPU: decode in Triton or CUDA C++ kernels, prefill in the chosen backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.attention.prefill import Prefill, Spans
from roseinfer.attention.torch_paged import gather
from roseinfer.batch import Batch, Segment
from roseinfer.kernels.cuda.gqa_decode import (
    CONTEXTS,
    Heads,
    How,
    Rotation,
    gqa_decode,
    how_for,
    supports,
)
from roseinfer.kernels.triton.gather_kv import gather_kv
from roseinfer.kernels.triton.paged_decode import paged_decode
from roseinfer.kernels.triton.prefill import prefill_paged
from roseinfer.kernels.triton.rotate import rotate_
from roseinfer.kernels.triton.store_kv import store_kv
from roseinfer.kvcache.pool import KVPool
from roseinfer.kvcache.states import StateRows
from roseinfer.tensors import to_device


@dataclass(frozen=True)
class Blocks:
    """Block tables of a captured step's prompts, as `prefill_paged` and `gather_kv` take them. `in_place`:
    keys and values are never gathered, as their queries are few."""

    table: Tensor
    rows: Tensor
    in_place: bool = False


@dataclass(frozen=True)
class Prompts:
    """The prefill rows of a step: `slots` `[T]`, where their keys and values go (−1: nowhere). `cached`: the
    slots or the blocks of all keys of the prompts, if some are in the cache already; else None. `segments`:
    as in Batch, for models with states, whose prompts are not captured."""

    slots: Tensor
    spans: Spans
    cached: Tensor | Blocks | None
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Decodes:
    """The decode rows of a step, as `paged_decode` takes them. `context` as in `how_for`; `requests`: their
    running rows, if those are not `rows`."""

    table: Tensor
    rows: Tensor
    lengths: Tensor
    context: int = 0
    requests: Tensor | None = None


class CudaPagedAttention(Attention):
    """`begin` takes a step from the host; `use` one whose arrays are on the device already.

    `gathered` `[2, S, kv heads, dim]`: a captured step gathers the cached keys and values of its prompts
    there, for `prefill`; None: the Triton kernel reads them in place.
    With an FP8 cache, keys and values of the step are rounded as in TorchPagedAttention, those of prompts in
    place.
    """

    def __init__(self, pool: KVPool, prefill: Prefill, gathered: Tensor | None = None) -> None:
        self._pool, self._prefill, self._gathered = pool, prefill, gathered
        self._prompts: Prompts | None = None
        self._decodes: Decodes | None = None

    def use(self, prompts: Prompts | None, decodes: Decodes | None) -> None:
        """Set the step of the following calls of `attend`, whose rows are prefill, then decode."""
        self._prompts, self._decodes = prompts, decodes

    def contexts(self, rows: int) -> tuple[int, ...]:
        """The contexts from which on `gqa_decode` has another launch configuration for so many rows."""
        shape = self._pool.shape
        first: dict[How, int] = {}
        for context in CONTEXTS:
            first.setdefault(how_for(rows, shape.kv_heads, context, shape.head_dim), context)
        return tuple(first.values())

    def takes(self, keys: int) -> bool:
        """Return whether the prompts of a captured step may have `keys` keys together."""
        return self._gathered is None or keys <= self._gathered.shape[1]

    def begin(self, batch: Batch) -> None:
        self.use(self.prompts(batch) if batch.segments else None, self._decodes_of(batch))

    def prompts(self, batch: Batch) -> Prompts:
        """The prefill rows of `batch`."""
        counts = np.array([segment.count for segment in batch.segments])
        lengths = counts + [segment.context for segment in batch.segments]
        query, key = (np.concatenate([[0], c.cumsum()]).astype(np.int32) for c in (counts, lengths))
        spans = Spans(self._upload(query), self._upload(key), int(counts.max()), int(lengths.max()))
        slots = self._upload(batch.cache_slots[: batch.decode_start])
        if (counts == lengths).all():
            return Prompts(slots, spans, None, batch.segments)
        size = batch.block_size
        cached = [
            (batch.block_table[s.request, : -(-n // size), None] * size + np.arange(size)).ravel()[:n]
            for s, n in zip(batch.segments, lengths, strict=True)
        ]
        return Prompts(slots, spans, self._upload(np.concatenate(cached)), batch.segments)

    @property
    def state_rows(self) -> StateRows:
        assert self._pool.states is not None
        prompts, decodes = self._prompts, self._decodes
        rows = None if decodes is None else decodes.rows if decodes.requests is None else decodes.requests
        return StateRows(self._pool.states, () if prompts is None else prompts.segments, rows)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._pool.layer(layer)
        prompts, decodes = self._prompts, self._decodes
        parts = []
        start = 0
        if prompts is not None:
            start = len(prompts.slots)
            parts.append(self._attend_prompts(prompts, q[:start], k[:start], v[:start], keys, values))
        if decodes is not None:
            rows = q[start:], k[start:], v[start:], keys, values
            parts.append(
                paged_decode(*rows, decodes.table, decodes.rows, decodes.lengths, self._pool.block_size)
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_product(
        self, layer: int, qkv: Tensor, positions: Tensor | None, heads: Heads, rotation: Rotation
    ) -> Tensor:
        """Do what `attend` does with the output of the QKV projection, `[T, (queries + 2 · keys) · dim]`:
        norms and rotary embeddings of queries and keys are applied here, and may change it.

        `positions` `[T]`; None where all rows are decode rows, at the end of their requests.
        """
        prompts, decodes = self._prompts, self._decodes
        start = 0 if prompts is None else len(prompts.slots)
        if not supports(heads, self.block_size, qkv.dtype, qkv.device):
            if positions is None:
                assert decodes is not None
                positions = (decodes.lengths - 1).clamp_(min=0)
            rotate_(qkv, positions, heads, rotation)
            return self.attend(layer, *self._split(qkv, heads))
        cache = self._pool.layer(layer)
        out = None
        if prompts is not None and decodes is not None:
            out = torch.empty(len(qkv), heads.queries * heads.dim, dtype=qkv.dtype, device=qkv.device)
        if prompts is not None:
            assert positions is not None
            rotate_(qkv[:start], positions[:start], heads, rotation, (*cache, prompts.slots))
            q, k, v = self._split(qkv[:start], heads)
            part_out = None if out is None else out[:start]
            attended = self._attend_stored(prompts, q, k, v, *cache, out=part_out)
        if decodes is not None:
            attended = gqa_decode(
                qkv[start:], heads, rotation, cache, decodes.table, decodes.rows, decodes.lengths,
                self.block_size, out=None if out is None else out[start:], context=decodes.context,
            )  # fmt: skip
        return attended if out is None else out

    @staticmethod
    def _split(qkv: Tensor, heads: Heads) -> tuple[Tensor, ...]:
        sizes = [heads.queries, heads.keys, heads.keys]
        return qkv.view(len(qkv), -1, heads.dim).split_with_sizes(sizes, 1)

    @property
    def decodes_alone(self) -> Decodes | None:
        """The decode rows of a step without prompts, for fused kernels that include attention."""
        return self._decodes if self._prompts is None else None

    @property
    def block_size(self) -> int:
        return self._pool.block_size

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, `[slots, kv heads, dim]` each."""
        return self._pool.layer(layer)

    def _attend_prompts(
        self, prompts: Prompts, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        store_kv(k, v, keys, values, prompts.slots)
        return self._attend_stored(prompts, q, k, v, keys, values)

    def _attend_stored(
        self, prompts: Prompts, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """`[T, queries · dim]`, in `out` where it is given."""
        spans = prompts.spans
        if isinstance(prompts.cached, Blocks):
            blocks = prompts.cached.table, prompts.cached.rows, self.block_size
            if self._gathered is None or prompts.cached.in_place:
                out = q.new_empty(len(q), q[0].numel()) if out is None else out
                prefill_paged(q, keys, values, spans.query, spans.key, *blocks, out.view(q.shape))
                return out
            k, v = self._gathered
            gather_kv(keys, values, spans.key, *blocks, k, v)
        elif prompts.cached is not None:
            k, v = (gather(cache, prompts.cached, q.dtype) for cache in (keys, values))
        attended = self._prefill(q, k, v, spans, None if out is None else out.view(q.shape))
        return attended.flatten(1)

    def _decodes_of(self, batch: Batch) -> Decodes | None:
        if not len(batch.decode_lengths):
            return None
        rows = np.arange(len(batch.decode_lengths), dtype=np.int32)
        table, lengths = (x.astype(np.int32) for x in (batch.decode_blocks, batch.decode_lengths))
        requests, context = self._upload(batch.decode_requests), int(lengths.mean())
        return Decodes(self._upload(table), self._upload(rows), self._upload(lengths), context, requests)

    def _upload(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return to_device(np.ascontiguousarray(array), self._pool.device)
