"""Gathers keys and values of many prompts from the paged KV cache into contiguous memory.

For attention kernels that do not read a paged cache. Which prompt a row belongs to is read on the device, so
that one captured launch serves any lengths. Reference: `roseinfer.attention.torch_paged.gather`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, padded_prompts, pdl_wait

#: Tokens of a program.
_TOKENS = 8


@triton.jit(do_not_specialize=["prompts", "table_stride"])
def _gather_kv(
    keys_ptr, values_ptr, key_ptr, table_ptr, table_stride, rows_ptr, prompts, k_ptr, v_ptr,
    WIDTH: tl.constexpr, PAD_WIDTH: tl.constexpr, PAD_PROMPTS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    pdl_wait(EARLY)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    total = tl.load(key_ptr + prompts)
    if tl.program_id(0) * TOKENS >= total:
        return
    there = token < total
    p = tl.arange(0, PAD_PROMPTS)
    ends = tl.load(key_ptr + 1 + p, p < prompts, 2147483647)
    prompt = tl.sum((ends[None, :] <= token[:, None]).to(tl.int32), 1)
    position = token - tl.load(key_ptr + prompt, there, 0)
    line = tl.load(rows_ptr + prompt, there, 0).to(tl.int64) * table_stride
    block = tl.load(table_ptr + line + position // BLOCK_SIZE, there, 0).to(tl.int64)
    slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    e = tl.arange(0, PAD_WIDTH)
    inside = there[:, None] & (e < WIDTH)[None, :]
    source = slot[:, None] * WIDTH + e[None, :]
    target = token.to(tl.int64)[:, None] * WIDTH + e[None, :]
    tl.store(k_ptr + target, tl.load(keys_ptr + source, inside).to(k_ptr.dtype.element_ty), inside)
    tl.store(v_ptr + target, tl.load(values_ptr + source, inside).to(v_ptr.dtype.element_ty), inside)


def gather_kv(
    keys: Tensor, values: Tensor, key: Tensor, table: Tensor, rows: Tensor, block_size: int, k: Tensor,
    v: Tensor,
) -> None:  # fmt: skip
    """Copy keys and values of `P` prompts to `k`, `v`, in their dtype.

    Args:
        keys, values: one layer's cache, `[slots, kv heads, dim]`.
        key: `[P + 1]` int32; prompt i goes to rows `key[i]` to `key[i + 1]` of `k` and `v`.
        table: block tables, `[running rows, max blocks]` int32.
        rows: `[P]` int32, which row of `table` each prompt has.
        k, v: `[S, kv heads, dim]`, S at least `key[P]`. Rows after the last prompt are left unchanged.
    """
    (room, heads, dim), prompts = k.shape, len(key) - 1
    width = heads * dim
    _gather_kv[(triton.cdiv(room, _TOKENS),)](
        keys, values, key, table, table.stride(0), rows, prompts, k, v, WIDTH=width,
        PAD_WIDTH=triton.next_power_of_2(width), PAD_PROMPTS=padded_prompts(prompts),
        BLOCK_SIZE=block_size, TOKENS=_TOKENS, num_warps=4, **early(k.device),
    )  # fmt: skip
