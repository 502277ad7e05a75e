"""Paged attention in plain PyTorch operators, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention
from roseinfer.batch import Batch, Ints
from roseinfer.e4m3 import E4M3, movable, to_e4m3
from roseinfer.kvcache.pool import KVPool
from roseinfer.kvcache.states import StateRows
from roseinfer.tensors import to_device


class TorchPagedAttention(Attention):
    """Gathers each request's cached rows by its block table and calls scaled_dot_product_attention.

    With an FP8 cache every query sees rounded keys and values, those of its own step too, so that a token's
    result does not depend on which of them were cached before.
    """

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._offsets = torch.arange(pool.block_size, device=pool.device)

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        if batch.segments:
            self._prepare_prefill()
        if len(batch.decode_lengths):
            self._prepare_decode()

    @property
    def state_rows(self) -> StateRows:
        assert self._pool.states is not None
        decodes = self._batch.decode_requests
        return StateRows(
            self._pool.states, self._batch.segments, self._tensor(decodes) if len(decodes) else None
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._pool.layer(layer)
        if keys.dtype == E4M3:
            k, v = (to_e4m3(x).to(q.dtype) for x in (k, v))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        start = self._batch.decode_start
        if start:
            self._prefill(q[:start], k[:start], v[:start], keys, values, out[:start])
        if start < len(q):
            self._decode(q[start:], k[start:], v[start:], keys, values, out[start:])
        return out.flatten(1)

    def _prepare_prefill(self) -> None:
        batch = self._batch
        self._prefill_slots = self._tensor(batch.cache_slots[: batch.decode_start])
        self._contexts = [
            self._rows(self._tensor(segment.blocks))[: segment.context] for segment in batch.segments
        ]

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Store `k`, `v` `[tokens of prompts, kv heads, dim]` and write the attention of `q` to `out`."""
        _store(keys, self._prefill_slots, k)
        _store(values, self._prefill_slots, v)
        for segment, context in zip(self._batch.segments, self._contexts, strict=True):
            rows = slice(segment.start, segment.start + segment.count)
            past = (gather(cache, context, q.dtype) for cache in (keys, values))
            out[rows] = _causal(q[rows], k[rows], v[rows], *past)

    def _prepare_decode(self) -> None:
        batch = self._batch
        longest = int(batch.decode_lengths.max())
        self._decode_slots = self._tensor(batch.cache_slots[batch.decode_start :])
        self._gather = self._rows(self._tensor(batch.decode_blocks))[:, :longest]
        is_cached = (
            torch.arange(longest, device=self._pool.device) < self._tensor(batch.decode_lengths)[:, None]
        )
        self._mask = is_cached[:, None, None, :]

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """Store `k`, `v` `[D, kv heads, dim]` and write the attention of `q` `[D, heads, dim]` to `out`."""
        _store(keys, self._decode_slots, k)
        _store(values, self._decode_slots, v)
        past_k, past_v = (
            gather(cache, self._gather.flatten(), q.dtype).view(*self._gather.shape, *cache.shape[1:])
            for cache in (keys, values)
        )
        out.copy_(_sdpa(q[:, None], past_k, past_v, self._mask)[:, 0])

    def _rows(self, blocks: Tensor) -> Tensor:
        """Block ids `[..., n]` → cache rows `[..., n · block size]`."""
        return (blocks[..., None] * self._pool.block_size + self._offsets).flatten(-2)

    def _tensor(self, array: Ints) -> Tensor:
        return to_device(array, self._pool.device)


def gather(cache: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `rows` of a cache `[slots, kv heads, dim]`, in `dtype`."""
    return movable(cache).index_select(0, rows).view(cache.dtype).to(dtype)


def _store(cache: Tensor, rows: Tensor, x: Tensor) -> None:
    """Write `x` `[rows, kv heads, dim]`, which an FP8 cache represents exactly, to `rows` of the cache."""
    movable(cache).index_copy_(0, rows, movable(x.to(cache.dtype)))


def _causal(q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> Tensor:
    """Causal attention of `[count, heads, dim]` after `past`, `[context, kv heads, dim]`."""
    context, count = len(past_k), len(q)
    if not context:
        return _sdpa(q[None], k[None], v[None], None, causal=True)[0]
    k, v = torch.cat((past_k, k)), torch.cat((past_v, v))
    mask = torch.ones(count, context + count, dtype=torch.bool, device=q.device).tril(context)
    return _sdpa(q[None], k[None], v[None], mask)[0]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """q `[B, Q, heads, dim]`, k and v `[B, K, kv heads, dim]` → `[B, Q, heads, dim]`."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.transpose(1, 2)
