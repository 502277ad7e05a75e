"""Attention of one new token of each request over its cached blocks, and the append of its key and value.

The cached tokens of a request are split among several programs where there are few requests; each leaves its
weighted mean and the logarithm of its weight, which a second kernel joins (flash decoding, Dao et al. 2023).
Where the head size allows it, `roseinfer.kernels.cuda.paged_decode` runs instead of the first, which has more
loads under way.
Reference: `TorchPagedAttention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.cuda import paged_decode as cuda
from roseinfer.kernels.triton.launch import early, follow, multiprocessors

LOG2E = tl.constexpr(1.4426950408889634)
#: Cached tokens a program reads at a time.
BLOCK_TOKENS = 64
WARPS, STAGES = 4, 3


@triton.jit
def _paged_attention(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride,
    keys_ptr, values_ptr, table_ptr, table_stride, rows_ptr, lengths_ptr,
    out_ptr, share_ptr, scale,
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
        tl.store(share_ptr + at, tl.where(total > 0, top + tl.log2(total), float("-inf")))


@triton.jit
def _paged_attention_join(mean_ptr, share_ptr, out_ptr,
          DIM: tl.constexpr, PAD_DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    at = tl.program_id(0)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    s = tl.arange(0, SPLITS)
    follow(EARLY)
    share = tl.load(share_ptr + at * SPLITS + s)
    share = tl.exp2(share - tl.max(share, 0))
    mean = tl.load(mean_ptr + (at * SPLITS + s)[:, None] * DIM + d[None, :], inside[None, :], 0.0)
    out = tl.sum(mean * share[:, None], 0) / tl.sum(share, 0)
    tl.store(out_ptr + at * DIM + d, out.to(out_ptr.dtype.element_ty), inside)


def splits_for(requests: int, heads: int, device: torch.device) -> int:
    """Into how many parts a request's tokens are split, so that there is work for every multiprocessor: a
    power of two, at most 8."""
    wanted = triton.cdiv(multiprocessors(device), requests * heads)
    return min(8, int(triton.next_power_of_2(wanted)))


def paged_decode(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int,
) -> Tensor:  # fmt: skip
    """Append `k`, `v` to the cache and attend.

    Args:
        q: `[D, heads, dim]`, and k, v `[D, kv heads, dim]`: a token's row of each is contiguous.
        keys, values: one layer's cache, `[slots, kv heads, dim]`.
        table: block tables, `[running rows, max blocks]` int32.
        rows: `[D]` int32, which line of `table` each request has.
        lengths: `[D]` int32, tokens of each request, the new one included; 0 for a row that is padding, which
            writes nothing and gives anything finite.

    Returns:
        `[D, heads · dim]` in the dtype of `q`.
    """
    count, heads, dim = q.shape
    out = torch.empty(count, heads * dim, dtype=q.dtype, device=q.device)
    splits = splits_for(count, heads, q.device)
    if splits == 1:
        _launch(q, k, v, keys, values, table, rows, lengths, out, out, block_size, 1)
        return out
    means, shares = paged_decode_split(q, k, v, keys, values, table, rows, lengths, block_size, splits)
    _paged_attention_join[(count * heads,)](
        means, shares, out, DIM=dim, PAD_DIM=triton.next_power_of_2(dim), SPLITS=splits, num_warps=1,
        **early(q.device),
    )  # fmt: skip
    return out


def paged_decode_split(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int, splits: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `paged_decode`, each request's tokens in `splits` parts (at least 2) that are not joined.

    Returns:
        The weighted mean of each part, `[D, heads, splits, dim]` float32, and the logarithm to base 2 of its
        weight, `[D, heads, splits]` float32: −inf for a part without tokens.
    """
    count, heads, dim = q.shape
    means = torch.empty(count, heads, splits, dim, dtype=torch.float32, device=q.device)
    shares = torch.empty(count, heads, splits, dtype=torch.float32, device=q.device)
    _launch(q, k, v, keys, values, table, rows, lengths, means, shares, block_size, splits)
    return means, shares


def _launch(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, means: Tensor, shares: Tensor, block_size: int, splits: int,
) -> None:  # fmt: skip
    count, heads, dim = q.shape
    if q.is_cuda and cuda.supports(dim, q.dtype):
        cuda.launch(q, k, v, keys, values, table, rows, lengths, means, shares, block_size, splits)
        return
    _paged_attention[(count, heads, splits)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0),
        keys, values, table, table.stride(0), rows, lengths, means, shares, dim**-0.5,
        HEADS=heads, KV_HEADS=k.shape[1], DIM=dim, PAD_DIM=triton.next_power_of_2(dim),
        BLOCK_SIZE=block_size, BLOCK_TOKENS=BLOCK_TOKENS, SPLITS=splits, num_warps=WARPS, num_stages=STAGES,
        **early(q.device),
    )  # fmt: skip
