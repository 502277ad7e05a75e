"""Prefill by FlashInfer (Ye et al., 2025), where its package is installed."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from roseinfer.attention.prefill import Spans, into

#: The size that FlashInfer recommends for its workspace.
_WORKSPACE_BYTES = 128 << 20


class FlashInfer:
    """A `Prefill` for half precision. It plans a step on the host, before the first layer, and waits for the
    device there, so a CUDA graph cannot capture it."""

    def __init__(self, device: torch.device) -> None:
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper = import_module("flashinfer").BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        self._planned: Spans | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
        if spans is not self._planned:
            heads, kv_heads, dim = q.shape[1], k.shape[1], q.shape[2]
            self._wrapper.plan(spans.query, spans.key, heads, kv_heads, dim, causal=True, q_data_type=q.dtype)
            self._planned = spans
        return into(out, self._wrapper.run(q, k, v))
