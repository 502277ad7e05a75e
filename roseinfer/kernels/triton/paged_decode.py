"""Decode attention over the paged KV cache, and the append of the new token's key and value.

With few requests, the cached tokens of each are split among several programs. Each writes its result and the
logarithm of its sum of exponentials (LSE), with which a second kernel merges the results (flash decoding, Dao
et al. 2023). Where head size and cache allow it, `roseinfer.kernels.cuda.paged_decode`, which has more loads
in flight, runs instead of the first kernel.
Reference: `TorchPagedAttention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.e4m3 import E4M3
from roseinfer.kernels.cuda import paged_decode as cuda
from roseinfer.kernels.triton.launch import early, multiprocessors, pdl_wait
from roseinfer.kernels.triton.rounded import rounded

LOG2E = tl.constexpr(1.4426950408889634)
#: Cached tokens a program reads at a time: the best of 32 to 128 on an H200 (2026-11-21, docs/notes/h200.md).
#: Half as many of heads above 128, which has not been measured.
BLOCK_TOKENS = 64
WARPS, STAGES = 4, 3


@triton.jit
def _paged_attention(
    q_ptr, k_ptr, v_ptr, q_stride, k_stride, v_stride,
    keys_ptr, values_ptr, table_ptr, table_stride, rows_ptr, lengths_ptr,
    out_ptr, lse_ptr, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_TOKENS: tl.constexpr, SPLITS: tl.constexpr,
    FP8: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    index, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    pdl_wait(EARLY)
    length = tl.load(lengths_ptr + index)
    row = tl.load(rows_ptr + index).to(tl.int64)
    table = table_ptr + row * table_stride
    cached = length - 1
    part = tl.cdiv(tl.cdiv(cached, SPLITS), BLOCK_TOKENS) * BLOCK_TOKENS
    begin = split * part
    end = tl.minimum(begin + part, cached)

    q = tl.load(q_ptr + index * q_stride + head * DIM + d, inside, 0.0).to(tl.float32) * (scale * LOG2E)
    new = inside & (length > 0)
    running_max = float("-inf")
    running_sum = 0.0
    accumulator = tl.zeros([PAD_DIM], tl.float32)
    if split == 0:
        k = rounded(tl.load(k_ptr + index * k_stride + kv_head * DIM + d, new, 0.0), FP8)
        v = rounded(tl.load(v_ptr + index * v_stride + kv_head * DIM + d, new, 0.0), FP8)
        if head % (HEADS // KV_HEADS) == 0 and length > 0:
            block = tl.load(table + cached // BLOCK_SIZE).to(tl.int64)
            slot = (block * BLOCK_SIZE + cached % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
            tl.store(keys_ptr + slot + d, k, inside)
            tl.store(values_ptr + slot + d, v, inside)
        running_max = tl.sum(q * k.to(tl.float32))
        running_sum = 1.0
        accumulator = v.to(tl.float32)
    for start in range(begin, end, BLOCK_TOKENS):
        t = start + tl.arange(0, BLOCK_TOKENS)
        is_cached = t < end
        block = tl.load(table + t // BLOCK_SIZE, is_cached, 0).to(tl.int64)
        slot = (block * BLOCK_SIZE + t % BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        mask = is_cached[:, None] & inside[None, :]
        k = tl.load(keys_ptr + slot[:, None] + d[None, :], mask, 0.0).to(tl.float32)
        v = tl.load(values_ptr + slot[:, None] + d[None, :], mask, 0.0).to(tl.float32)
        score = tl.where(is_cached, tl.sum(q[None, :] * k, 1), float("-inf"))
        new_max = tl.maximum(running_max, tl.max(score, 0))
        weight = tl.exp2(score - new_max)
        rescale = tl.exp2(running_max - new_max)
        accumulator = accumulator * rescale + tl.sum(weight[:, None] * v, 0)
        running_sum = running_sum * rescale + tl.sum(weight, 0)
        running_max = new_max
    result = accumulator / tl.where(running_sum > 0, running_sum, 1.0)
    at = (index * HEADS + head) * SPLITS + split
    tl.store(out_ptr + at * DIM + d, result.to(out_ptr.dtype.element_ty), inside)
    if SPLITS > 1:
        tl.store(lse_ptr + at, tl.where(running_sum > 0, running_max + tl.log2(running_sum), float("-inf")))


@triton.jit
def _merge_splits(parts_ptr, lse_ptr, out_ptr,
          DIM: tl.constexpr, PAD_DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr):  # fmt: skip
    at = tl.program_id(0)
    d = tl.arange(0, PAD_DIM)
    inside = d < DIM
    s = tl.arange(0, SPLITS)
    pdl_wait(EARLY)
    weight = tl.load(lse_ptr + at * SPLITS + s)
    weight = tl.exp2(weight - tl.max(weight, 0))
    part = tl.load(parts_ptr + (at * SPLITS + s)[:, None] * DIM + d[None, :], inside[None, :], 0.0)
    out = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out_ptr + at * DIM + d, out.to(out_ptr.dtype.element_ty), inside)


def splits_for(requests: int, heads: int, device: torch.device) -> int:
    """Into how many parts a request's tokens are split, so that every SM has work: a power of two, at most
    8."""
    parts = triton.cdiv(multiprocessors(device), requests * heads)
    return min(8, int(triton.next_power_of_2(parts)))


def paged_decode(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int,
) -> Tensor:  # fmt: skip
    """Append `k`, `v` to the cache and attend.

    Args:
        q: `[D, heads, dim]`, and k, v `[D, kv heads, dim]`: a token's row of each is contiguous.
        keys, values: one layer's cache, `[slots, kv heads, dim]`, in the dtype of `k` or in E4M3.
        table: block tables, `[running rows, max blocks]` int32.
        rows: `[D]` int32, which row of `table` each request has.
        lengths: `[D]` int32, tokens of each request, the new one included; 0 for a padding row, which writes
            nothing to the cache and has an undefined but finite result.

    Returns:
        `[D, heads · dim]` in the dtype of `q`.
    """
    count, heads, dim = q.shape
    out = torch.empty(count, heads * dim, dtype=q.dtype, device=q.device)
    splits = splits_for(count, heads, q.device)
    if splits == 1:
        _launch(q, k, v, keys, values, table, rows, lengths, out, out, block_size, 1)
        return out
    parts, lse = paged_decode_split(q, k, v, keys, values, table, rows, lengths, block_size, splits)
    _merge_splits[(count * heads,)](
        parts, lse, out, DIM=dim, PAD_DIM=triton.next_power_of_2(dim), SPLITS=splits, num_warps=1,
        **early(q.device),
    )  # fmt: skip
    return out


def paged_decode_split(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, block_size: int, splits: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Do what `paged_decode` does, with each request's tokens in `splits` parts (at least 2) that are not
    merged.

    Returns:
        The result of each part, `[D, heads, splits, dim]` float32, and the logarithm to base 2 of its sum of
        exponentials, `[D, heads, splits]` float32: −inf for a part without tokens.
    """
    count, heads, dim = q.shape
    parts = torch.empty(count, heads, splits, dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(count, heads, splits, dtype=torch.float32, device=q.device)
    _launch(q, k, v, keys, values, table, rows, lengths, parts, lse, block_size, splits)
    return parts, lse


def _launch(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, parts: Tensor, lse: Tensor, block_size: int, splits: int,
) -> None:  # fmt: skip
    count, heads, dim = q.shape
    tokens = BLOCK_TOKENS if dim <= 128 else BLOCK_TOKENS // 2
    if q.is_cuda and keys.dtype == q.dtype and cuda.supports(dim, q.dtype):
        cuda.launch(q, k, v, keys, values, table, rows, lengths, parts, lse, block_size, splits)
        return
    _paged_attention[(count, heads, splits)](
        q, k, v, q.stride(0), k.stride(0), v.stride(0),
        keys, values, table, table.stride(0), rows, lengths, parts, lse, dim**-0.5,
        HEADS=heads, KV_HEADS=k.shape[1], DIM=dim, PAD_DIM=triton.next_power_of_2(dim),
        BLOCK_SIZE=block_size, BLOCK_TOKENS=tokens, SPLITS=splits, FP8=keys.dtype == E4M3,
        num_warps=WARPS, num_stages=STAGES, **early(q.device),
    )  # fmt: skip
