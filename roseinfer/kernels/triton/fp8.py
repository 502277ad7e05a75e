"""The operators between FP8 linear layers: each kernel writes rows quantized to E4M3, and their scales.

References: `roseinfer.models.fp8.quantize`, of `add_rms_norm_` and of `swiglu`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.swiglu import gated


@triton.jit
def _store_rounded(y, row, n, inside, values_ptr, scales_ptr, WIDTH: tl.constexpr):
    scale = tl.maximum(tl.max(tl.abs(y), 0) / 448.0, 1e-12)
    tl.store(values_ptr + row * WIDTH + n, (y / scale).to(values_ptr.dtype.element_ty), inside)
    tl.store(scales_ptr + row, scale)


@triton.jit
def _round_rows(x_ptr, values_ptr, scales_ptr, WIDTH: tl.constexpr, PAD: tl.constexpr, GATED: tl.constexpr,
                EARLY: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, PAD)
    inside = n < WIDTH
    at = x_ptr + row * (WIDTH + GATED * WIDTH) + n
    pdl_wait(EARLY)
    y = tl.load(at, inside, 0.0).to(tl.float32)
    if GATED:
        y = gated(y, tl.load(at + WIDTH, inside, 0.0).to(tl.float32))
    _store_rounded(y, row, n, inside, values_ptr, scales_ptr, WIDTH)


@triton.jit
def _norm_rows(x_ptr, branch_ptr, gain_ptr, values_ptr, scales_ptr, eps, WIDTH: tl.constexpr,
               PAD: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, PAD)
    inside = n < WIDTH
    gain = tl.load(gain_ptr + n, inside, 0.0).to(tl.float32)
    at = x_ptr + row * WIDTH + n
    pdl_wait(EARLY)
    x = tl.load(at, inside, 0.0).to(tl.float32)
    if ADD:
        x += tl.load(branch_ptr + row * WIDTH + n, inside, 0.0).to(tl.float32)
        tl.store(at, x.to(x_ptr.dtype.element_ty), inside)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * gain
    _store_rounded(y, row, n, inside, values_ptr, scales_ptr, WIDTH)


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` `[T, width]` → values in E4M3, scales `[T, 1]` float32."""
    return _round(x, x.shape[1], gated=False)


def swiglu_rows(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """Round the rows of SwiGLU as `round_rows` does: `[T, 2 · width]`, gates first → `[T, width]`."""
    return _round(gate_up, gate_up.shape[1] // 2, gated=True)


def _round(x: Tensor, width: int, *, gated: bool) -> tuple[Tensor, Tensor]:
    values, scales = _empty(x, width)
    pad = triton.next_power_of_2(width)
    _round_rows[(len(x),)](
        x, values, scales, WIDTH=width, PAD=pad, GATED=gated, num_warps=_warps(pad), **early(x.device)
    )
    return values, scales


def norm_rows_(x: Tensor, branch: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Round, as `round_rows` does, the rows of the RMS norm with `gain` of `x` `[T, width]`, to which
    `branch` is first added in place."""
    width = x.shape[1]
    values, scales = _empty(x, width)
    pad = triton.next_power_of_2(width)
    _norm_rows[(len(x),)](
        x, x if branch is None else branch, gain, values, scales, eps, WIDTH=width, PAD=pad,
        ADD=branch is not None, num_warps=_warps(pad), **early(x.device),
    )  # fmt: skip
    return values, scales


def _warps(pad: int) -> int:
    return max(1, min(16, pad // 512))


def _empty(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    values = torch.empty(len(x), width, dtype=E4M3, device=x.device)
    return values, torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
