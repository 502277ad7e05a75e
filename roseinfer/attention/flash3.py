"""Prefill by FlashAttention-3 (Shah et al., 2024), where the package of its forward kernels is installed."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from roseinfer.attention.prefill import Spans

PACKAGE = "fa3_fwd_interface"


def loads() -> bool:
    """Return whether the package is installed and was built for this release of PyTorch."""
    try:
        import_module(PACKAGE)
    except (ImportError, OSError):
        return False
    return True


class FlashAttention3:
    """A `Prefill` for bfloat16 on GPUs of compute capability 9.0."""

    def __init__(self) -> None:
        import_module(PACKAGE)  # which registers the operator
        self._attend = torch.ops.fa3_fwd.fwd

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
        attended: Tensor = self._attend(
            q, k, v, out=out, cu_seqlens_q=spans.query, cu_seqlens_k=spans.key, is_causal=True, num_splits=1,
            max_seqlen_q=spans.longest_query, max_seqlen_k=spans.longest_key, softmax_scale=q.shape[2] ** -0.5
        )[0]  # fmt: skip
        return attended
