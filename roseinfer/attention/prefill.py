"""Prefill attention over contiguous keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Spans:
    """Rows of each of `P` prompts: cumulative lengths (cu_seqlens) of their queries and of their keys,
    `query` and `key` `[P + 1]` int32 on the device. A prompt's queries are the tokens of its last keys.
    `longest_query` and `longest_key` are upper bounds of the lengths."""

    query: Tensor
    key: Tensor
    longest_query: int
    longest_key: int


class Prefill(Protocol):
    """Causal attention within each prompt."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
        """q `[T, heads, dim]`, k and v `[S, kv heads, dim]` → `[T, heads, dim]`, in `out` where it is given.
        Rows of the result that belong to no prompt are undefined; such rows of k and v must be finite."""


def into(out: Tensor | None, attended: Tensor) -> Tensor:
    """Return `attended` `[T, heads, dim]`, in `out` where that is given."""
    return attended if out is None else out.copy_(attended)


def flash(q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """Attend with PyTorch's FlashAttention-2 for variable lengths (Dao, 2023): half precision on a GPU.

    Shapes as in Prefill."""
    attended = torch.ops.aten._flash_attention_forward(
        q, k, v, spans.query, spans.key, spans.longest_query, spans.longest_key, 0.0, True, False
    )[0]
    return into(out, attended)


def sdpa(q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    """Attend with PyTorch's scaled_dot_product_attention, prompt by prompt: any dtype, any device.

    Shapes as in Prefill."""
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    queries, keys = spans.query.tolist(), spans.key.tolist()
    for (q0, q1), (k0, k1) in zip(pairwise(queries), pairwise(keys), strict=True):
        if q1 == q0:
            continue
        query, key, value = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        mask = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool, device=q.device).tril((k1 - k0) - (q1 - q0))
        attended = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
        )
        out[q0:q1] = attended[0].transpose(0, 1)
    return out
