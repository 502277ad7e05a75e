"""Attention of one new token of each request over its cached blocks, and the append of its key and value.

The cached tokens of a request are split among several programs where there are few requests; each leaves its
weighted mean and the logarithm of its weight, which `merge` joins (flash decoding, Dao et al. 2023).
Reference: `TorchPagedAttention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, follow

LOG2E = tl.constexpr(1.4426950408889634)
#: Cached tokens a program reads at a time.
BLOCK_TOKENS = 64


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride,
    keys_ptr, values_ptr, table_ptr, table_stride, rows_ptr, lengths_ptr,
    out_ptr, weight_ptr, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    index, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    follow(EARLY)
    length = tl.load(lengths_ptr + index)
    row = tl.load(rows_ptr + index).to(tl.int64)
    table = table_ptr + row * table_stride
    cached = length - 1
    share = tl.cdiv(tl.cdiv(cached, SPLITS), BLOCK_TOKENS) * BLOCK_TOKENS
    begin = split * share
    end = tl.minimum(begin + share, cached)

    q = tl.load(q_ptr + index * q_stride + head * DIM + d, inside, 0.0).to(tl.float32) * (scale * LOG2E)
    new = inside & (length > 0)
    top = float("-inf")
    total = 0.0
    acc = tl.zeros([PAD_DIM], tl.float32)
    if split == 0:
        k = tl.load(k_ptr + index * k_stride + kv_head * DIM + d, new, 0.0)
        v = tl.load(v_ptr + index * v_stride + kv_head * DIM + d, new, 0.0)
        if head % (HEADS // KV_HEADS) == 0 and length > 0:
            block = tl.load(table + cached // BLOCK_SIZE).to(tl.int64)
            slot = (block * BLOCK_SIZE + cached % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
            tl.store(keys_ptr + slot + d, k, inside)
            tl.store(values_ptr + slot + d, v, inside)
        top = tl.sum(q * k.to(tl.float32))
        total = 1.0
        acc = v.to(tl.float32)
    for start in range(begin, end, BLOCK_TOKENS):
        t = start + tl.arange(0, BLOCK_TOKENS)
        seen = t < end
        block = tl.load(table + t // BLOCK_SIZE, seen, 0).to(tl.int64)
        slot = (block * BLOCK_SIZE + t % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        mask = seen[:, None] & inside[None, :]
        k = tl.load(keys_ptr + slot[:, None] + d[None, :], mask, 0.0).to(tl.float32)
        v = tl.load(values_ptr + slot[:, None] + d[None, :], mask, 0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(q[None, :] * k, 1), float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        weight = tl.exp2(score - higher)
        keep = tl.exp2(top - higher)
        acc = acc * keep + tl.sum(weight[:, None] * v, 0)
        total = total * keep + tl.sum(weight, 0)
        top = higher
    mean = acc / tl.where(total > 0, total, 1.0)
    at = (index * HEADS + head) * SPLITS + split
    tl.store(out_ptr + at * DIM + d, mean.to(out_ptr.dtype.element_ty), inside)
    if SPLITS > 1:
        tl.store(weight_ptr + at, tl.where(total > 0, top + tl.log2(total), float("-inf")))


@triton.jit
def joined(mean_ptr, weight_ptr, at, d, inside, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """The weighted mean of the `SPLITS` parts from `at` on, elements `d` of the head."""
    s = tl.arange(0, SPLITS)
    weight = tl.load(weight_ptr + at * SPLITS + s)
    weight = tl.exp2(weight - tl.max(weight, 0))
    part = tl.load(mean_ptr + (at * SPLITS + s)[:, None] * DIM + d[None, :], inside[None, :], 0.0)
    return tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)


@triton.jit
def _join(mean_ptr, weight_ptr, out_ptr,
          DIM: tl.constexpr, PAD_DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    at = tl.program_id(0)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    follow(EARLY)
    out = joined(mean_ptr, weight_ptr, at, d, inside, DIM, SPLITS)
    tl.store(out_ptr + at * DIM + d, out.to(out_ptr.dtype.element_ty), inside)


def splits_for(requests: int, heads: int, multiprocessors: int) -> int:
    """Into how many parts a request's tokens are split, so that the device has two programs a
    multiprocessor: a power of two, at most 16."""
    wanted = -(-2 * multiprocessors // (requests * heads))
    return min(16, triton.next_power_of_2(wanted))


def paged_decode(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int, splits: int,
) -> Tensor:  # fmt: skip
    """Append `k`, `v` to the cache and attend.

    Args:
        q: `[D, heads, dim]`, and k, v `[D, kv heads, dim]`: a token's row of each is contiguous.
        keys, values: one layer's cache, `[slots, kv heads, dim]`.
        table: block tables, `[running rows, max blocks]` int32.
        rows: `[D]` int32, which line of `table` each request has.
        lengths: `[D]` int32, tokens of each request, the new one included; 0 for a row that is padding, which
            writes nothing and gives anything finite.
        splits: from `splits_for`.

    Returns:
        `[D, heads · dim]` in the dtype of `q`.
    """
    count, heads, dim = q.shape
    kv_heads = k.shape[1]
    pad = triton.next_power_of_2(dim)
    out = torch.empty(count, heads * dim, dtype=q.dtype, device=q.device)
    how = early(q.device)
    if splits == 1:
        means = weights = out
    else:
        means = torch.empty(count, heads, splits, dim, dtype=torch.float32, device=q.device)
        weights = torch.empty(count, heads, splits, dtype=torch.float32, device=q.device)
    _attend[(count, heads, splits)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0),
        keys, values, table, table.stride(0), rows, lengths, means, weights, dim**-0.5,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, PAD_DIM=pad, BLOCK_SIZE=block_size,
        BLOCK_TOKENS=BLOCK_TOKENS, SPLITS=splits, num_warps=4, **how,
    )  # fmt: skip
    if splits > 1:
        _join[(count * heads,)](means, weights, out, DIM=dim, PAD_DIM=pad, SPLITS=splits, num_warps=1, **how)
    return out
