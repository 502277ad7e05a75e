"""RMS norm, also of a sum. Reference: `x = x + branch.sum(0)`, then `Ops.rms_norm(x)`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(x_ptr, branch_ptr, places_ptr, gain_ptr, out_ptr, rows, eps,
              K: tl.constexpr, PAD_K: tl.constexpr, PARTS: tl.constexpr, PLACED: tl.constexpr,
              EARLY: tl.constexpr):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * K
    k = tl.arange(0, PAD_K)
    inside = k < K
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    pdl_wait(EARLY)
    x = tl.load(x_ptr + at + k, inside, 0.0).to(tl.float32)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            if PLACED:
                place = tl.load(places_ptr + tl.program_id(0) * PARTS + part).to(tl.int64) * K
            else:
                place = part * rows.to(tl.int64) * K + at
            x += tl.load(branch_ptr + place + k, inside, 0.0).to(tl.float32)
        tl.store(x_ptr + at + k, x.to(x_ptr.dtype.element_ty), inside)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps) * gain
    tl.store(out_ptr + at + k, y.to(out_ptr.dtype.element_ty), inside)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMS norm of `x` `[T, width]` with `gain` `[width]`."""
    return _launch(x, x, gain, eps, parts=0)


def add_rms_norm_(
    x: Tensor, branch: Tensor, gain: Tensor, eps: float, places: Tensor | None = None
) -> Tensor:
    """Add the sum of `branch` `[parts, T, width]` over its parts to `x` `[T, width]` in place. Returns the
    RMS norm of `x`. With `places` `[T, parts]` int32, these say which rows of `branch` `[1, rows, width]` are
    the parts of a row of `x`."""
    return _launch(
        x, branch, gain, eps, parts=len(branch) if places is None else places.shape[1], places=places
    )


def _launch(
    x: Tensor, branch: Tensor, gain: Tensor, eps: float, *, parts: int, places: Tensor | None = None
) -> Tensor:
    out = torch.empty_like(x)
    rows, width = x.shape
    pad = triton.next_power_of_2(width)
    _rms_norm[(rows,)](
        x, branch, x if places is None else places, gain, out, rows, eps, K=width, PAD_K=pad, PARTS=parts,
        PLACED=places is not None,
        num_warps=max(1, min(8, pad // 512)), **early(x.device),
    )  # fmt: skip
    return out
