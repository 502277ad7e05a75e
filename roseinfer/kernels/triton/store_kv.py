"""Stores keys and values of prompts in the paged KV cache. References: `index_copy_` by slot, `to_e4m3`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.rounded import rounded


@triton.jit
def _store_kv(k_ptr, v_ptr, k_stride, v_stride, keys_ptr, values_ptr, slots_ptr, WIDTH: tl.constexpr,
           PAD_WIDTH: tl.constexpr, FP8: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    pdl_wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, PAD_WIDTH)
    inside = e < WIDTH
    slot = tl.load(slots_ptr + token).to(tl.int64)
    k_at, v_at = k_ptr + token * k_stride + e, v_ptr + token * v_stride + e
    if slot >= 0:
        k, v = rounded(tl.load(k_at, inside), FP8), rounded(tl.load(v_at, inside), FP8)
        tl.store(keys_ptr + slot * WIDTH + e, k, inside)
        tl.store(values_ptr + slot * WIDTH + e, v, inside)
        if FP8:
            tl.store(k_at, k.to(k_ptr.dtype.element_ty), inside)
            tl.store(v_at, v.to(v_ptr.dtype.element_ty), inside)
    else:
        tl.store(k_at, tl.zeros([PAD_WIDTH], k_ptr.dtype.element_ty), inside)
        tl.store(v_at, tl.zeros([PAD_WIDTH], v_ptr.dtype.element_ty), inside)


def store_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write `k`, `v` `[T, kv heads, dim]` (a token's row is contiguous) to `slots` `[T]` of one layer's
    `keys`, `values` `[slots, kv heads, dim]`. `k` and `v` become what the cache holds, which an FP8 cache
    rounds. With slot −1 nothing is stored, and they become 0, as attention may read them with a weight of
    0."""
    width = k.shape[1] * k.shape[2]
    _store_kv[(len(k),)](
        k, v, k.stride(0), v.stride(0), keys, values, slots, WIDTH=width,
        PAD_WIDTH=triton.next_power_of_2(width), FP8=keys.dtype == E4M3, num_warps=2, **early(k.device),
    )  # fmt: skip
