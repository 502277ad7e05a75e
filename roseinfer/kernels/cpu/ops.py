"""C++ kernels for the operators between the linear layers of a Llama layer; see llama_ops.cpp.

Tensors are contiguous, float32 or bfloat16. References: `roseinfer.models.ops.Ops`, of the same arguments.
All raise BuildError where the kernels cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, kernel

_SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}
#: Kernels work in vectors of this many elements; widths, and half of a head, must be multiples of it.
VECTOR = 16
DTYPES = tuple(_SUFFIX)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMS norm of `x` `[T, width]` with `gain` `[width]`."""
    out = torch.empty_like(x)
    _rms_norm(x.dtype)(x.data_ptr(), gain.data_ptr(), out.data_ptr(), len(x), x.shape[-1], eps)
    return out


def rotate(qk: Tensor, gain: Tensor | None, eps: float, turns: Tensor) -> Tensor:
    """Apply RoPE to `qk` `[T, heads, head_dim]` in place."""
    _rotate(qk.dtype)(
        qk.data_ptr(), None if gain is None else gain.data_ptr(), turns.data_ptr(),
        len(qk), qk.stride(0), qk.shape[1], qk.shape[2], eps,
    )  # fmt: skip
    return qk


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) · up`: `[T, 2 · ffn]`, gate first → `[T, ffn]`."""
    rows, width = gate_up.shape
    out = gate_up.new_empty(rows, width // 2)
    _swiglu(gate_up.dtype)(gate_up.data_ptr(), out.data_ptr(), rows, width // 2)
    return out


@cache
def _rms_norm(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"rms_norm_{_SUFFIX[dtype]}", *[POINTER] * 3, LONG, INT, FLOAT)


@cache
def _rotate(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"rotate_{_SUFFIX[dtype]}", *[POINTER] * 3, LONG, LONG, INT, INT, FLOAT)


@cache
def _swiglu(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"swiglu_{_SUFFIX[dtype]}", POINTER, POINTER, LONG, INT)
