"""A mixture of experts for any number of rows: each expert's rows are gathered for GEMMs of their own.

The host does not see which experts are chosen. GEMMs have as many programs as the least favourable choice
needs, and those without rows end at once. Reference: `roseinfer.models.mlp.Experts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.fp8 import round_rows
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.swiglu import gated

#: Rows that a program routes, and rows of counts that it reads at once.
_ROWS = tl.constexpr(32)


@triton.jit(do_not_specialize=["rows"])
def _route(
    logits_ptr, shares_ptr, counts_ptr, rows, E: tl.constexpr, PAD_E: tl.constexpr, TOP_K: tl.constexpr,
    PARTS: tl.constexpr, NORMALIZED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    e = tl.arange(0, PAD_E)
    inside = (r < rows)[:, None] & (e < E)[None, :]
    at = r.to(tl.int64)[:, None] * E + e[None, :]
    pdl_wait(EARLY)
    logits = tl.zeros([_ROWS, PAD_E], tl.float32)
    for part in tl.static_range(PARTS):
        logits += tl.load(logits_ptr + part * rows.to(tl.int64) * E + at, inside, 0.0).to(tl.float32)
    # rows of padding may have anything in them, and each row needs its choice
    logits = tl.where(inside & (tl.abs(logits) < 1e30), logits, -1e30)
    scores = tl.exp(logits - tl.max(logits, 1)[:, None])
    left = tl.where(inside, scores, -1.0)
    for _ in tl.static_range(TOP_K):
        best = tl.max(left, 1)[:, None]
        first = tl.min(tl.where(left == best, e[None, :], PAD_E), 1)
        left = tl.where(e[None, :] == first[:, None], -2.0, left)
    chosen = inside & (left == -2.0)
    scores = tl.where(chosen if NORMALIZED else inside, scores, 0.0)
    shares = scores / tl.where(r < rows, tl.sum(scores, 1), 1.0)[:, None]
    tl.store(shares_ptr + at, tl.where(chosen, shares, -1.0), inside)
    tl.store(counts_ptr + tl.program_id(0) * E + e, tl.sum(chosen.to(tl.int32), 0), e < E)


@triton.jit(do_not_specialize=["rows", "chunks", "blocks"])
def _place(
    shares_ptr, counts_ptr, tokens_ptr, rows_ptr, weights_ptr, places_ptr, blocks_ptr, rows, chunks, blocks,
    E: tl.constexpr, PAD_E: tl.constexpr, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    lane = tl.arange(0, _ROWS)
    r = chunk * _ROWS + lane
    e = tl.arange(0, PAD_E)
    pdl_wait(EARLY)
    totals = tl.zeros([PAD_E], tl.int32)
    before = tl.zeros([PAD_E], tl.int32)
    for earliest in range(0, chunks, _ROWS):
        c = earliest + lane
        some = (c < chunks)[:, None] & (e < E)[None, :]
        counts = tl.load(counts_ptr + c[:, None] * E + e[None, :], some, 0)
        totals += tl.sum(counts, 0)
        before += tl.sum(tl.where((c < chunk)[:, None], counts, 0), 0)
    starts = tl.cumsum(totals, 0) - totals
    if chunk == 0:
        tl.store(tokens_ptr + e, tl.load(tokens_ptr + e, e < E, 0) + totals, e < E)
    inside = (r < rows)[:, None] & (e < E)[None, :]
    shares = tl.load(shares_ptr + r.to(tl.int64)[:, None] * E + e[None, :], inside, -1.0)
    chosen = shares >= 0
    ones = chosen.to(tl.int32)
    place = (starts + before)[None, :] + tl.cumsum(ones, 0) - ones
    tl.store(rows_ptr + place, r[:, None] + tl.zeros_like(place), chosen)
    tl.store(weights_ptr + place, shares, chosen)
    tl.store(places_ptr + r[:, None] * TOP_K + tl.cumsum(ones, 1) - ones, place, chosen)
    needed = (totals + BLOCK_M - 1) // BLOCK_M
    ends = tl.cumsum(needed, 0)
    expert = tl.sum((ends[None, :] <= r[:, None]).to(tl.int32), 1)
    of_block = e[None, :] == expert[:, None]
    start = tl.sum(tl.where(of_block, starts[None, :], 0), 1)
    first = start + (r - tl.sum(tl.where(of_block, (ends - needed)[None, :], 0), 1)) * BLOCK_M
    end = start + tl.sum(tl.where(of_block, totals[None, :], 0), 1)
    tl.store(blocks_ptr + 3 * r, tl.where(expert < E, expert, -1), r < blocks)
    tl.store(blocks_ptr + 3 * r + 1, first, r < blocks)
    tl.store(blocks_ptr + 3 * r + 2, end, r < blocks)


@triton.jit
def _grouped(
    x_ptr, x_scales_ptr, weight_ptr, scales_ptr, rows_ptr, weights_ptr, blocks_ptr, out_ptr,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, GATED: tl.constexpr, EIGHT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    block = blocks_ptr + 3 * tl.program_id(1)
    pdl_wait(EARLY)
    expert = tl.load(block)
    if expert >= 0:
        m = tl.load(block + 1) + tl.arange(0, BLOCK_M)
        inside = m < tl.load(block + 2)
        row = tl.load(rows_ptr + m, inside, 0) if GATED else m
        x_at = x_ptr + row.to(tl.int64)[:, None] * K + k[None, :]
        weight_at = weight_ptr + expert.to(tl.int64) * (1 + GATED) * N * K + n[None, :] * K + k[:, None]
        y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for _ in tl.range(0, K // BLOCK_K, num_stages=STAGES):
            x = tl.load(x_at, inside[:, None], 0.0)
            y = tl.dot(x, tl.load(weight_at), y, input_precision="ieee")
            if GATED:
                up = tl.dot(x, tl.load(weight_at + N * K), up, input_precision="ieee")
            x_at += BLOCK_K
            weight_at += BLOCK_K
        if EIGHT:
            x_scales = tl.load(x_scales_ptr + row, inside, 0.0)[:, None]
            scales_at = scales_ptr + expert * (1 + GATED) * N + n
            y = y * x_scales * tl.load(scales_at)[None, :]
            if GATED:
                up = up * x_scales * tl.load(scales_at + N)[None, :]
        if GATED:
            y = gated(y, up) * tl.load(weights_ptr + m, inside, 0.0)[:, None]
        at = m.to(tl.int64)[:, None] * N + n[None, :]
        tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), inside[:, None])


@dataclass(frozen=True)
class GroupTile:
    """Tiling of an expert's GEMM: a program computes some rows by `outputs`, `inputs` at a time in a pipeline
    of `stages`."""

    outputs: int
    inputs: int
    stages: int = 4
    warps: int = 4

    def fitting(self, x: Tensor, outputs: int, rows: int, *, gated: bool) -> GroupTile:
        """The largest tiling up to this one, with twice its inputs in E4M3, that divides a weight `[outputs,
        inputs]` for `x` `[…, inputs]` and has room for its pipeline."""
        inputs, longest = x.shape[1], self.inputs * (2 if x.element_size() == 1 else 1)
        n, k, stages = min(self.outputs, outputs & -outputs), min(longest, inputs & -inputs), self.stages
        stage = k * (rows + (1 + gated) * n) * x.element_size()
        # below 64 rows Hopper's tensor cores read the newest stage from registers
        fitting = shared_memory(x.device) // stage + (rows < 64)
        return GroupTile(n, k, max(1, min(stages, fitting)), self.warps)


@dataclass(frozen=True)
class Tiles:
    """Tilings of both GEMMs of an expert, of `rows` rows."""

    rows: int
    gate_up: GroupTile
    down: GroupTile


#: Tilings by the largest mean number of rows of an expert. Measured on an H200, 2026-11-29, with 64, 256,
#: 1,024, 2,048 and 8,192 rows of Qwen3-30B-A3B (docs/notes/h200-mixtures.md).
TILES = {
    4: Tiles(16, GroupTile(64, 128, stages=3), GroupTile(64, 128, stages=3)),
    16: Tiles(32, GroupTile(64, 128, stages=3), GroupTile(64, 128, stages=3)),
    64: Tiles(64, GroupTile(64, 64, stages=3), GroupTile(128, 64)),
    1 << 30: Tiles(128, GroupTile(128, 64, warps=8), GroupTile(128, 64, stages=3)),
}


@dataclass(frozen=True)
class Routed:
    """The choice of `top_k` experts for each of T rows: pairs of a row and an expert, in the order of the
    experts.

    Args:
        rows, weights: of each pair, `[pairs]` int32 and float32.
        places: the pairs of each row, `[T, top_k]` int32.
        blocks: of each program of a GEMM, its expert, or -1, its first pair, and the end of the expert's,
            `[blocks, 3]` int32.
        block_rows: pairs of a program.
    """

    rows: Tensor
    weights: Tensor
    places: Tensor
    blocks: Tensor
    block_rows: int


def route(logits: Tensor, tokens: Tensor, top_k: int, block_rows: int, *, normalized: bool) -> Routed:
    """Choose experts by the router's `logits` `[parts, T, experts]`, to be summed over their parts.

    `tokens`: of each expert so far, `[experts]` int64, counted on. `normalized`: as in Mixture.
    """
    parts, count, experts = logits.shape
    device, pad, pairs = logits.device, triton.next_power_of_2(experts), count * top_k
    chunks, blocks = triton.cdiv(count, _ROWS.value), min(pairs, pairs // block_rows + experts)
    shares = torch.empty(count, experts, dtype=torch.float32, device=device)
    counts = torch.empty(chunks, experts, dtype=torch.int32, device=device)
    rows, places = torch.empty(2, pairs, dtype=torch.int32, device=device)
    weights = torch.empty(pairs, dtype=torch.float32, device=device)
    of_blocks = torch.empty(blocks, 3, dtype=torch.int32, device=device)
    _route[(chunks,)](
        logits, shares, counts, count, E=experts, PAD_E=pad, TOP_K=top_k, PARTS=parts, NORMALIZED=normalized,
        **early(device),
    )  # fmt: skip
    _place[(max(chunks, triton.cdiv(blocks, _ROWS.value)),)](
        shares, counts, tokens, rows, weights, places, of_blocks, count, chunks, blocks, E=experts, PAD_E=pad,
        TOP_K=top_k, BLOCK_M=block_rows, **early(device),
    )  # fmt: skip
    return Routed(rows, weights, places.view(count, top_k), of_blocks, block_rows)


def product(
    x: Tensor, weight: Tensor, routed: Routed, tile: GroupTile, *, gated: bool, scales: Tensor | None = None
) -> Tensor:
    """Multiply the row of each pair with its expert's weight: `[pairs, outputs]` in the dtype of x.

    Args:
        x: `[pairs, inputs]`; with `gated` `[T, inputs]`.
        weight: `[experts, outputs, inputs]`; with `gated` `[experts, 2 · outputs, inputs]`, gates first.
        gated: SwiGLU follows, times the pair's weight.
        scales: of a weight in E4M3, `[experts, outputs]` or `[experts, 2 · outputs]`. Rows of x are rounded
            to E4M3, too.
    """
    inputs, outputs, pairs = weight.shape[2], weight.shape[1] // (1 + gated), len(routed.rows)
    out = torch.empty(pairs, outputs, dtype=x.dtype, device=x.device)
    values, x_scales = (x, x) if scales is None else round_rows(x)
    tile = tile.fitting(values, outputs, routed.block_rows, gated=gated)
    _grouped[(outputs // tile.outputs, len(routed.blocks))](
        values, x_scales, weight, weight if scales is None else scales, routed.rows, routed.weights,
        routed.blocks, out, N=outputs, K=inputs, BLOCK_M=routed.block_rows, BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs, STAGES=tile.stages, GATED=gated, EIGHT=scales is not None, num_warps=tile.warps,
        **early(x.device),
    )  # fmt: skip
    return out


def tiles_for(pairs: int, experts: int) -> Tiles:
    """The tilings for so many pairs of a row and one of `experts` experts."""
    return next(tiles for rows, tiles in TILES.items() if pairs <= rows * experts)
