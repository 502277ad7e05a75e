"""Keys and values of prompt tokens into the paged cache. Reference: `index_copy_` by slot."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait


@triton.jit
def _store_kv(k_ptr, v_ptr, k_stride, v_stride, keys_ptr, values_ptr, slots_ptr, WIDTH: tl.constexpr,
           PAD_WIDTH: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    pdl_wait(EARLY)
    token = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, PAD_WIDTH)
    inside = e < WIDTH
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        tl.store(keys_ptr + slot * WIDTH + e, tl.load(k_ptr + token * k_stride + e, inside), inside)
        tl.store(values_ptr + slot * WIDTH + e, tl.load(v_ptr + token * v_stride + e, inside), inside)


def store_kv(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Write `k`, `v` `[T, kv heads, dim]` (a token's row is contiguous) to `slots` `[T]` of one layer's
    `keys`, `values` `[slots, kv heads, dim]`. Slot −1 is nowhere."""
    width = k.shape[1] * k.shape[2]
    _store_kv[(len(k),)](
        k, v, k.stride(0), v.stride(0), keys, values, slots, WIDTH=width,
        PAD_WIDTH=triton.next_power_of_2(width), num_warps=2, **early(k.device),
    )  # fmt: skip
