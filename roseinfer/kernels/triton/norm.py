"""Layer norm, also of a sum. Reference: `x = x + branch.sum(0) + bias`, then `F.layer_norm(x)`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait


@triton.jit
def normed(x, gain, shift, k, K: tl.constexpr, eps):
    """Layer norm of `x` `[K padded]` in float32; `k` are the elements' numbers."""
    mean = tl.sum(x, 0) / K
    off = tl.where(k < K, x - mean, 0.0)
    return off * tl.rsqrt(tl.sum(off * off, 0) / K + eps) * gain + shift


@triton.jit(do_not_specialize=["rows"])
def _norm(x_ptr, branch_ptr, bias_ptr, gain_ptr, shift_ptr, out_ptr, rows, eps, K: tl.constexpr,
          PAD_K: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * K
    k = tl.arange(0, PAD_K)
    inside = k < K
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + k, inside, 0.0).to(tl.float32)
    pdl_wait(EARLY)
    x = tl.load(x_ptr + at + k, inside, 0.0).to(tl.float32)
    if PARTS > 0:
        x += tl.load(bias_ptr + k, inside, 0.0).to(tl.float32)
        for part in tl.static_range(PARTS):
            x += tl.load(branch_ptr + part * rows * K + at + k, inside, 0.0).to(tl.float32)
        tl.store(x_ptr + at + k, x.to(x_ptr.dtype.element_ty), inside)
    tl.store(out_ptr + at + k, normed(x, gain, shift, k, K, eps).to(out_ptr.dtype.element_ty), inside)


def norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Layer norm of `x` `[T, width]`."""
    return _launch(x, x, gain, gain, shift, eps, parts=0)


def add_norm_(x: Tensor, branch: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Add the sum of `branch` `[parts, T, width]` over its parts, and `bias` `[width]`, to `x` `[T, width]`
    in place. Returns the layer norm of `x`."""
    return _launch(x, branch, bias, gain, shift, eps, parts=len(branch))


def _launch(
    x: Tensor, branch: Tensor, bias: Tensor, gain: Tensor, shift: Tensor, eps: float, *, parts: int
) -> Tensor:
    out = torch.empty_like(x)
    rows, width = x.shape
    _norm[(rows,)](
        x, branch, bias, gain, shift, out, rows, eps, K=width, PAD_K=triton.next_power_of_2(width),
        PARTS=parts, num_warps=4, **early(x.device),
    )  # fmt: skip
    return out
