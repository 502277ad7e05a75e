"""Prefill attention backends of a GPU, and the choice between them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from roseinfer.attention.prefill import Prefill, Spans, flash, into, sdpa
from roseinfer.config import ConfigError, PrefillBackend
from roseinfer.kernels.capability import is_hopper
from roseinfer.kernels.triton import prefill as kernel

#: Backends that are tried one after the other; any other name is that backend, or an error.
_ORDERS: dict[PrefillBackend | None, tuple[PrefillBackend, ...]] = {
    None: ("flash-attn-3", "triton", "flash-attn", "sdpa"),
    "auto": ("flashinfer", "flash-attn", "sdpa"),
    "auto2": ("flash-attn", "flashinfer", "sdpa"),
}


_FLASH3 = "fa3_fwd_interface"


def flash3_loads() -> bool:
    """Return whether FlashAttention-3's package is installed and was built for this release of PyTorch."""
    try:
        import_module(_FLASH3)
    except (ImportError, OSError):
        return False
    return True


class FlashAttention3:
    """FlashAttention-3 (Shah et al., 2024), a `Prefill` for bfloat16 on GPUs of compute capability 9.0."""

    def __init__(self) -> None:
        import_module(_FLASH3)  # which registers the operator
        self._attend = torch.ops.fa3_fwd.fwd

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
        attended: Tensor = self._attend(
            q, k, v, out=out, cu_seqlens_q=spans.query, cu_seqlens_k=spans.key, is_causal=True, num_splits=1,
            max_seqlen_q=spans.longest_query, max_seqlen_k=spans.longest_key, softmax_scale=q.shape[2] ** -0.5
        )[0]  # fmt: skip
        return attended


#: The size that FlashInfer recommends for its workspace.
_WORKSPACE_BYTES = 128 << 20


class FlashInfer:
    """FlashInfer (Ye et al., 2025), a `Prefill` for half precision. It plans a step on the host, before the
    first layer, and waits for the device there, so a CUDA graph cannot capture it."""

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


@dataclass(frozen=True)
class Backend:
    """`capturable`: it needs nothing from the host, so that a CUDA graph can capture it. `paged`: a captured
    step can also use keys and values in the cache, which the Triton kernel reads in place, or which are
    `gathered` for `attend`."""

    name: PrefillBackend
    attend: Prefill
    capturable: bool
    paged: bool = False
    gathered: bool = False


def choose(
    backend: PrefillBackend | None, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Backend:
    """The first backend in the order of `backend` that can run here. Raises ConfigError where a named one
    cannot."""
    names = _ORDERS[backend] if backend is None or backend in _ORDERS else (backend,)
    lacking = {name: _lacking(name, head_dim, dtype, device) for name in names}
    for name in names:
        if lacking[name] is None:
            return _make(name, device)
    raise ConfigError(f"prefill backend {backend} needs {lacking[names[0]]}; use --prefill-backend auto")


def _lacking(name: PrefillBackend, head_dim: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Describe what the backend lacks here; None if it can run."""
    half = dtype in (torch.float16, torch.bfloat16)
    if name == "flashinfer" and find_spec("flashinfer") is None:
        return "its package: pip install flashinfer-python"
    if name == "flashinfer" and not (half and head_dim in (64, 128, 256)):
        return "fp16 or bf16, and a head size of 64, 128 or 256"
    if name == "flash-attn" and not (half and head_dim % 8 == 0 and head_dim <= 256):
        return "fp16 or bf16, and a head size that is a multiple of 8, up to 256"
    if name == "flash-attn-3":
        if find_spec(_FLASH3) is None:
            return "its package: pip install fa3-fwd"
        hopper = is_hopper(device) and torch.cuda.get_device_capability(device) == (9, 0)  # not later ones
        if not (hopper and dtype == torch.bfloat16 and head_dim in (64, 128, 256)):
            return "a GPU of compute capability 9.0, bf16, and a head size of 64, 128 or 256"
        if not flash3_loads():
            return "a package fa3-fwd that was built for this release of PyTorch"
    if name == "triton" and head_dim > kernel.MAX_DIM:
        return f"a head size of at most {kernel.MAX_DIM}"
    return None


def _make(name: PrefillBackend, device: torch.device) -> Backend:
    if name == "flashinfer":
        return Backend(name, FlashInfer(device), capturable=False)
    if name == "flash-attn":
        return Backend(name, flash, capturable=True)
    if name == "flash-attn-3":
        return Backend(name, FlashAttention3(), capturable=True, paged=True, gathered=True)
    if name == "triton":
        return Backend(name, triton_prefill, capturable=True, paged=True)
    return Backend(name, sdpa, capturable=False)


def triton_prefill(q: Tensor, k: Tensor, v: Tensor, spans: Spans, out: Tensor | None = None) -> Tensor:
    return kernel.prefill(q, k, v, spans.query, spans.key, out)
