"""Paged attention in plain PyTorch operators, on any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention, Batch
from roseinfer.kvcache.pool import KVPool


class TorchPagedAttention(Attention):
    """Gathers each request's cached rows by its block table and calls scaled_dot_product_attention."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._offsets = torch.arange(pool.block_size, device=pool.device)

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        self._slots = self._tensor(batch.cache_slots)
        self._contexts = [
            self._rows(self._tensor(segment.blocks))[: segment.context] for segment in batch.segments
        ]
        if len(batch.decode_lengths):
            lengths = self._tensor(batch.decode_lengths)
            longest = int(batch.decode_lengths.max())
            self._gather = self._rows(self._tensor(batch.decode_blocks))[:, :longest]
            seen = torch.arange(longest, device=self._pool.device) < lengths[:, None]
            self._mask = seen[:, None, None, :]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._pool.layer(layer)
        keys.index_copy_(0, self._slots, k)
        values.index_copy_(0, self._slots, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for segment, context in zip(self._batch.segments, self._contexts, strict=True):
            rows = slice(segment.start, segment.start + segment.count)
            out[rows] = self._prefill(q[rows], k[rows], v[rows], keys[context], values[context])
        start = self._batch.decode_start
        if start < len(q):
            out[start:] = self._decode(q[start:], keys, values)
        return out.flatten(1)

    def _prefill(self, q: Tensor, k: Tensor, v: Tensor, past_k: Tensor, past_v: Tensor) -> Tensor:
        context, count = len(past_k), len(q)
        if context:
            k, v = torch.cat((past_k, k)), torch.cat((past_v, v))
            mask = torch.ones(count, context + count, dtype=torch.bool, device=q.device).tril(context)
            return self._sdpa(q[None], k[None], v[None], mask)[0]
        return self._sdpa(q[None], k[None], v[None], None, causal=True)[0]

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self._sdpa(q[:, None], keys[self._gather], values[self._gather], self._mask)[:, 0]

    @staticmethod
    def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
        """q `[B, Q, heads, dim]`, k and v `[B, K, kv heads, dim]` → `[B, Q, heads, dim]`."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )
        return out.transpose(1, 2)

    def _rows(self, blocks: Tensor) -> Tensor:
        """Block ids `[..., n]` → cache rows `[..., n · block size]`."""
        return (blocks[..., None] * self._pool.block_size + self._offsets).flatten(-2)

    def _tensor(self, array: object) -> Tensor:
        return torch.as_tensor(array, device=self._pool.device)
