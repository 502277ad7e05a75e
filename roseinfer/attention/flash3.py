"""FlashAttention-3 of prompts (Shah et al., 2024), where the package of its forward kernels is installed."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from roseinfer.attention.prefill import Spans

_PACKAGE = "fa3_fwd_interface"


def loads() -> bool:
    """Whether the package is there, for this release of PyTorch."""
    try:
        import_module(_PACKAGE)
    except (ImportError, OSError):
        return False
    return True


class FlashAttention3:
    """A `Prefill` for bfloat16 on GPUs of compute capability 9.0."""

    def __init__(self) -> None:
        self._attend = import_module(_PACKAGE).flash_attn_varlen_func

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        out: Tensor = self._attend(
            q, k, v, cu_seqlens_q=spans.query, cu_seqlens_k=spans.key, max_seqlen_q=spans.longest_query,
            max_seqlen_k=spans.longest_key, causal=True,
        )  # fmt: skip
        return out
