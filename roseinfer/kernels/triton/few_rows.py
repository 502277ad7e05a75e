"""Matrix products for at most a handful of rows, bound by reading the weights.

Every program holds some rows of the weight whole and reads them before the kernel ahead of it has ended; what
stands before a product (layer norm, the join of split attention) is computed again in every program, which is
cheaper than a kernel of its own. Products and sums are in float32. References: `F.layer_norm`, `F.linear`,
`F.gelu(approximate="tanh")`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, follow
from roseinfer.kernels.triton.norm import normed

#: More rows than this are left to the device's matrix units.
MAX_ROWS = 4


@triton.jit
def _gelu(x):
    """GELU, the tanh form (Hendrycks and Gimpel, 2016)."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * inner))


@triton.jit
def _norm_linear(
    x_ptr, gain_ptr, shift_ptr, weight_ptr, bias_ptr, out_ptr, N, eps,
    K: tl.constexpr, PAD_K: tl.constexpr, BLOCK_N: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, PAD_K)
    inside = k < K
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], (n < N)[:, None] & inside[None, :], 0.0)
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + k, inside, 0.0).to(tl.float32)
    bias = tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)
    follow(EARLY)
    x = normed(tl.load(x_ptr + k, inside, 0.0).to(tl.float32), gain, shift, k, K, eps)
    y = tl.sum(weight.to(tl.float32) * x[None, :], 1) + bias
    if GELU:
        y = _gelu(y)
    tl.store(out_ptr + n, y.to(out_ptr.dtype.element_ty), n < N)


@triton.jit
def _linear(
    in_ptr, weight_ptr, bias_ptr, out_ptr, N,
    ROWS: tl.constexpr, K: tl.constexpr, PAD_K: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
    GELU: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    weights = ()
    for part in tl.static_range(PARTS):
        k = part * PAD_K + tl.arange(0, PAD_K)
        at = weight_ptr + n[:, None] * K + k[None, :]
        weights = weights + (tl.load(at, (n < N)[:, None] & (k < K)[None, :], 0.0),)  # noqa: RUF005
    bias = tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)
    follow(EARLY)
    sums = ()
    for row in tl.static_range(ROWS):
        y = bias
        if ADD:
            y += tl.load(out_ptr + row * N + n, n < N, 0.0).to(tl.float32)
        for part in tl.static_range(PARTS):
            k = part * PAD_K + tl.arange(0, PAD_K)
            x = tl.load(in_ptr + row * K + k, k < K, 0.0).to(tl.float32)
            y += tl.sum(weights[part].to(tl.float32) * x[None, :], 1)
        sums = sums + (y,)  # noqa: RUF005
    for row in tl.static_range(ROWS):
        y = sums[row]
        if GELU:
            y = _gelu(y)
        tl.store(out_ptr + row * N + n, y.to(out_ptr.dtype.element_ty), n < N)


@triton.jit
def _join_linear_add(
    mean_ptr, share_ptr, weight_ptr, bias_ptr, x_ptr, N,
    K: tl.constexpr, PAD_K: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, PAD_K)
    inside = k < K
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], (n < N)[:, None] & inside[None, :], 0.0)
    bias = tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)
    first = k // DIM * SPLITS
    follow(EARLY)
    y = bias + tl.load(x_ptr + n, n < N, 0.0).to(tl.float32)
    top = tl.load(share_ptr + first, inside, 0.0)
    for split in tl.static_range(1, SPLITS):
        top = tl.maximum(top, tl.load(share_ptr + first + split, inside, 0.0))
    total = tl.zeros([PAD_K], tl.float32)
    given = tl.zeros([PAD_K], tl.float32)
    for split in tl.static_range(SPLITS):
        share = tl.exp2(tl.load(share_ptr + first + split, inside, 0.0) - top)
        total += share
        given += share * tl.load(mean_ptr + (first + split) * DIM + k % DIM, inside, 0.0)
    y += tl.sum(weight.to(tl.float32) * (given / total)[None, :], 1)
    tl.store(x_ptr + n, y.to(x_ptr.dtype.element_ty), n < N)


@triton.jit
def _head(
    x_ptr, gain_ptr, shift_ptr, weight_ptr, logits_ptr, best_ptr, token_ptr, vocab, tiles, eps,
    K: tl.constexpr, PAD_K: tl.constexpr, BLOCK_N: tl.constexpr, PROGRAMS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    k = tl.arange(0, PAD_K)
    inside = k < K
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + k, inside, 0.0).to(tl.float32)
    follow(EARLY)
    x = normed(tl.load(x_ptr + k, inside, 0.0).to(tl.float32), gain, shift, k, K, eps)
    best = float("-inf")
    token = 0
    for tile in tl.range(program, tiles, PROGRAMS, num_stages=3):
        n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        at = weight_ptr + n[:, None].to(tl.int64) * K + k[None, :]
        weight = tl.load(at, (n < vocab)[:, None] & inside[None, :], 0.0)
        y = tl.where(n < vocab, tl.sum(weight.to(tl.float32) * x[None, :], 1), float("-inf"))
        tl.store(logits_ptr + n, y.to(logits_ptr.dtype.element_ty), n < vocab)
        top = tl.max(y, 0)
        token = tl.where(top > best, tl.min(tl.where(y == top, n, vocab), 0), token)
        best = tl.maximum(top, best)
    tl.store(best_ptr + program, best)
    tl.store(token_ptr + program, token)


@dataclass(frozen=True)
class Tile:
    """Rows of the weight a program holds, and its warps."""

    rows: int
    warps: int = 4


def tile_for(outputs: int, multiprocessors: int) -> Tile:
    """Such that every multiprocessor has a program or two."""
    wanted = triton.next_power_of_2(triton.cdiv(outputs, 2 * multiprocessors))
    return Tile(max(4, min(16, wanted)))


def norm_linear(
    x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float, tile: Tile, *,
    gelu: bool,
) -> Tensor:  # fmt: skip
    """`linear(layer_norm(x))`, with GELU behind it where `gelu`, of one row.

    x `[1, width]`; gain, shift `[width]`; weight `[N, width]`; bias `[N]` → `[1, N]`.
    """
    width, outputs = x.shape[1], len(weight)
    out = torch.empty(1, outputs, dtype=x.dtype, device=x.device)
    _norm_linear[(triton.cdiv(outputs, tile.rows),)](
        x, gain, shift, weight, bias, out, outputs, eps, K=width, PAD_K=triton.next_power_of_2(width),
        BLOCK_N=tile.rows, GELU=gelu, num_warps=tile.warps, **early(x.device),
    )  # fmt: skip
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor, tile: Tile, *, gelu: bool) -> Tensor:
    """`linear(x)`, with GELU behind it where `gelu`: x `[R, K]`, R at most MAX_ROWS; weight `[N, K]`; bias
    `[N]` → `[R, N]`."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, out, tile, gelu=gelu, add=False)
    return out


def linear_add_(x: Tensor, given: Tensor, weight: Tensor, bias: Tensor, tile: Tile) -> None:
    """Add `linear(given)` to `x` in place: given `[R, K]`, weight `[N, K]`, bias `[N]`, x `[R, N]`."""
    _launch(given, weight, bias, x, tile, gelu=False, add=True)


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, tile: Tile, *, gelu: bool, add: bool
) -> None:
    outputs, inputs = weight.shape
    pad = min(1024, triton.next_power_of_2(inputs))
    _linear[(triton.cdiv(outputs, tile.rows),)](
        x, weight, bias, out, outputs, ROWS=len(x), K=inputs, PAD_K=pad, PARTS=triton.cdiv(inputs, pad),
        BLOCK_N=tile.rows, GELU=gelu, ADD=add, num_warps=tile.warps, **early(x.device),
    )  # fmt: skip


def join_linear_add_(
    x: Tensor, means: Tensor, shares: Tensor, weight: Tensor, bias: Tensor, tile: Tile
) -> None:
    """Join split attention, `means` `[1, heads, splits, dim]` and `shares` `[1, heads, splits]` as
    `paged_decode_split` leaves them, and add its product with `weight` to `x` `[1, N]` in place."""
    _, heads, splits, dim = means.shape
    width, outputs = heads * dim, len(weight)
    _join_linear_add[(triton.cdiv(outputs, tile.rows),)](
        means, shares, weight, bias, x, outputs, K=width, PAD_K=triton.next_power_of_2(width), DIM=dim,
        SPLITS=splits, BLOCK_N=tile.rows, num_warps=tile.warps, **early(x.device),
    )  # fmt: skip


def head(
    x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, eps: float, tile: Tile, programs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Final layer norm and the vocabulary's product of one row: x `[1, width]`, weight `[vocab, width]`.

    Returns:
        Logits `[1, vocab]` in the dtype of `x`; of what each program saw the best logit (float32, before
        rounding) and its token (int32), both `[1, programs]`.
    """
    width, vocab = x.shape[1], len(weight)
    tiles = triton.cdiv(vocab, tile.rows)
    programs = min(programs, tiles)
    logits = torch.empty(1, vocab, dtype=x.dtype, device=x.device)
    best = torch.empty(1, programs, dtype=torch.float32, device=x.device)
    token = torch.empty(1, programs, dtype=torch.int32, device=x.device)
    _head[(programs,)](
        x, gain, shift, weight, logits, best, token, vocab, tiles, eps, K=width,
        PAD_K=triton.next_power_of_2(width), BLOCK_N=tile.rows, PROGRAMS=programs, num_warps=tile.warps,
        **early(x.device),
    )  # fmt: skip
    return logits, best, token
