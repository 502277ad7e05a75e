"""Prefill attention (causal) of many prompts of any lengths, with keys and values contiguous or in a paged KV
cache.

A program takes a tile of one prompt's queries for one head, and loops over the keys that they see, a block at
a time (FlashAttention-2, Dao, 2023). It finds its tile on the device: the number of programs depends only on
the numbers of rows and prompts, so that one captured launch serves any lengths. Prompt i, from row s on, owns
the tiles from s // ROWS + i up to the next prompt's first, never fewer than it needs.
Reference: `roseinfer.attention.prefill.sdpa`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, padded_prompts, pdl_wait

LOG2E = tl.constexpr(1.4426950408889634)
#: The largest head size.
MAX_DIM = 128


@triton.jit(do_not_specialize=["prompts", "table_stride"])
def _prefill_attention(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride, out_ptr, query_ptr, key_ptr, table_ptr, table_stride,
    rows_ptr, prompts, scale, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    PAD_DIM: tl.constexpr, PAD_PROMPTS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    pdl_wait(EARLY)
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # tiles that see the most keys first
    p = tl.arange(0, PAD_PROMPTS)
    first = tl.load(query_ptr + p, p < prompts, 0) // ROWS + p
    prompt = tl.sum(((first <= tile) & (p < prompts)).to(tl.int32), 0) - 1
    start = tl.load(query_ptr + prompt)
    count = tl.load(query_ptr + prompt + 1) - start
    row = (tile - start // ROWS - prompt) * ROWS
    if row >= count:
        return
    key_start = tl.load(key_ptr + prompt).to(tl.int64)
    keys = tl.load(key_ptr + prompt + 1) - key_start.to(tl.int32)
    m = tl.arange(0, ROWS)
    t = tl.arange(0, TOKENS)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    rows = (row + m < count)[:, None] & inside[None, :]
    last_key = keys - count + row + m  # the last key that each query sees
    at = (start + row).to(tl.int64)
    kv_head = head // (HEADS // KV_HEADS)
    q = tl.load(q_ptr + at * q_stride + m[:, None] * q_stride + head * DIM + d[None, :], rows, 0.0)
    k_at = k_ptr + kv_head * DIM + d[:, None]
    v_at = v_ptr + kv_head * DIM + d[None, :]
    if BLOCK_SIZE:
        table_ptr += tl.load(rows_ptr + prompt).to(tl.int64) * table_stride
    running_max = tl.full([ROWS], float("-inf"), tl.float32)
    running_sum = tl.zeros([ROWS], tl.float32)
    accumulator = tl.zeros([ROWS, PAD_DIM], tl.float32)
    for begin in range(0, tl.minimum(keys - count + row + ROWS, keys), TOKENS):
        token = begin + t
        there = token < keys
        if BLOCK_SIZE:
            block = tl.load(table_ptr + token // BLOCK_SIZE, there, 0).to(tl.int64)
            slot = block * BLOCK_SIZE + token % BLOCK_SIZE
        else:
            slot = key_start + token
        k = tl.load(k_at + slot[None, :] * k_stride, there[None, :] & inside[:, None], 0.0).to(q.dtype)
        score = tl.dot(q, k, input_precision="ieee") * (scale * LOG2E)
        score = tl.where(token[None, :] <= last_key[:, None], score, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 1))
        weight = tl.exp2(score - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        v = tl.load(v_at + slot[:, None] * v_stride, there[:, None] & inside[None, :], 0.0).to(q.dtype)
        accumulator = tl.dot(weight.to(v.dtype), v, accumulator * rescale[:, None], input_precision="ieee")
        running_sum = running_sum * rescale + tl.sum(weight, 1)
        running_max = new_max
    out = (accumulator / running_sum[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at * (HEADS * DIM) + (m[:, None] * HEADS + head) * DIM + d[None, :], out, rows)


def prefill(q: Tensor, k: Tensor, v: Tensor, query: Tensor, key: Tensor, out: Tensor | None = None) -> Tensor:
    """Attend within each of `P` prompts; a prompt's queries are the tokens of its last keys.

    Args:
        q: `[T, heads, dim]`, dim at most MAX_DIM, and k, v `[S, kv heads, dim]`: a token's row is contiguous.
        query, key: cumulative lengths (cu_seqlens) of queries and of keys, `[P + 1]` int32 on the device. A
            prompt without rows is padding, as are rows after the last prompt, whose result is undefined.

    Returns:
        `[T, heads, dim]` in the dtype of `q`, contiguous, in `out` where it is given. The host does not wait
        for the device.
    """
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return _launch(q, k, v, query, key, out)


def prefill_paged(
    q: Tensor, keys: Tensor, values: Tensor, query: Tensor, key: Tensor, table: Tensor, rows: Tensor,
    block_size: int, out: Tensor,
) -> None:  # fmt: skip
    """Do what `prefill` does, with all keys and values in a layer's cache, `keys` and `values` `[slots, kv
    heads, dim]` in the dtype of `q` or in E4M3. The blocks of prompt i are row `rows[i]`, `rows` `[P]`, of
    `table` `[running rows, max blocks]`, both int32. The result goes to `out` `[T, heads, dim]`,
    contiguous."""
    _launch(q, keys, values, query, key, out, table, rows, block_size)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, query: Tensor, key: Tensor, out: Tensor, table: Tensor | None = None,
    rows: Tensor | None = None, block_size: int = 0,
) -> Tensor:  # fmt: skip
    (count, heads, dim), prompts = q.shape, len(query) - 1
    tile = 64 if q.element_size() == 2 else 32
    _prefill_attention[(heads, count // tile + prompts)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0), out, query, key, query if table is None else table,
        0 if table is None else table.stride(0), query if rows is None else rows, prompts, dim**-0.5,
        HEADS=heads, KV_HEADS=k.shape[1], DIM=dim, PAD_DIM=max(16, triton.next_power_of_2(dim)),
        PAD_PROMPTS=padded_prompts(prompts), ROWS=tile, TOKENS=tile,
        BLOCK_SIZE=block_size, num_warps=4, num_stages=3, **early(q.device),
    )  # fmt: skip
    return out
