"""C++ kernels for the operators between the linear layers of a Llama layer; see llama_ops.cpp.

Tensors are contiguous, float32 or bfloat16. References: `roseinfer.models.ops.Ops`, of the same arguments.
All raise BuildError where the kernels cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, Call, kernel

_SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}
#: Kernels work in vectors of this many elements; widths, and half of a head, must be multiples of it.
VECTOR = 16
DTYPES = tuple(_SUFFIX)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMS norm of `x` `[T, width]` with `gain` `[width]`."""
    out = torch.empty_like(x)
    rms_norm_call(x, gain, eps, out)()
    return out


def rms_norm_call(x: Tensor, gain: Tensor, eps: float, out: Tensor) -> Call:
    """Prepare `rms_norm` of `x` `[rows, width]` into `out`, of the same shape."""
    return Call.of(_rms_norm(x.dtype), (x, gain, out), len(x), x.shape[-1], eps)


def rotate(qk: Tensor, gain: Tensor | None, eps: float, turns: Tensor) -> Tensor:
    """Apply RoPE to `qk` `[T, heads, head_dim]` in place."""
    rotate_call(qk, gain, eps, turns)()
    return qk


def rotate_call(qk: Tensor, gain: Tensor | None, eps: float, turns: Tensor) -> Call:
    """Prepare `rotate` of `qk` `[rows, heads, dim]`, in place."""
    shape = len(qk), qk.stride(0), qk.shape[1], qk.shape[2]
    return Call.of(_rotate(qk.dtype), (qk, gain, turns), *shape, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) · up`: `[T, 2 · ffn]`, gate first → `[T, ffn]`."""
    rows, width = gate_up.shape
    out = gate_up.new_empty(rows, width // 2)
    swiglu_call(gate_up, out)()
    return out


def swiglu_call(gate_up: Tensor, out: Tensor) -> Call:
    """Prepare `swiglu` of `gate_up` `[rows, 2 · width]` into `out` `[rows, width]`."""
    return Call.of(_swiglu(gate_up.dtype), (gate_up, out), *out.shape)


@cache
def _rms_norm(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"rms_norm_{_SUFFIX[dtype]}", *[POINTER] * 3, LONG, INT, FLOAT)


@cache
def _rotate(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"rotate_{_SUFFIX[dtype]}", *[POINTER] * 3, LONG, LONG, INT, INT, FLOAT)


@cache
def _swiglu(dtype: torch.dtype) -> Callable[..., None]:
    return kernel(f"swiglu_{_SUFFIX[dtype]}", POINTER, POINTER, LONG, INT)
