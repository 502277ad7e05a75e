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
    ROWS: tl.constexpr, K: tl.constexpr, PAD_K: tl.constexpr, BLOCK_N: tl.constexpr, GELU: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, PAD_K)
    inside = k < K
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], (n < N)[:, None] & inside[None, :], 0.0)
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + k, inside, 0.0).to(tl.float32)
    bias = tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)
    follow(EARLY)
    for row in tl.static_range(ROWS):
        x = tl.load(x_ptr + row * K + k, inside, 0.0).to(tl.float32)
        x = normed(x, gain, shift, k, K, eps)
        y = tl.sum(weight.to(tl.float32) * x[None, :], 1) + bias
        if GELU:
            y = _gelu(y)
        tl.store(out_ptr + row * N + n, y.to(out_ptr.dtype.element_ty), n < N)


@triton.jit
def _linear_add(
    in_ptr, weight_ptr, bias_ptr, x_ptr, N,
    ROWS: tl.constexpr, K: tl.constexpr, PAD_K: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, PAD_K)
    inside = k < K
    weight = tl.load(weight_ptr + n[:, None] * K + k[None, :], (n < N)[:, None] & inside[None, :], 0.0)
    bias = tl.load(bias_ptr + n, n < N, 0.0).to(tl.float32)
    follow(EARLY)
    for row in tl.static_range(ROWS):
        given = tl.load(in_ptr + row * K + k, inside, 0.0).to(tl.float32)
        y = tl.sum(weight.to(tl.float32) * given[None, :], 1) + bias
        at = x_ptr + row * N + n
        y += tl.load(at, n < N, 0.0).to(tl.float32)
        tl.store(at, y.to(x_ptr.dtype.element_ty), n < N)


@triton.jit
def _head(
    x_ptr, gain_ptr, shift_ptr, weight_ptr, logits_ptr, best_ptr, token_ptr, vocab, eps,
    ROWS: tl.constexpr, K: tl.constexpr, PAD_K: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    n = part * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, PAD_K)
    inside = k < K
    weight = tl.load(
        weight_ptr + n[:, None].to(tl.int64) * K + k[None, :], (n < vocab)[:, None] & inside[None, :], 0.0
    )
    gain = tl.load(gain_ptr + k, inside, 0.0).to(tl.float32)
    shift = tl.load(shift_ptr + k, inside, 0.0).to(tl.float32)
    follow(EARLY)
    for row in tl.static_range(ROWS):
        x = normed(tl.load(x_ptr + row * K + k, inside, 0.0).to(tl.float32), gain, shift, k, K, eps)
        y = tl.where(n < vocab, tl.sum(weight.to(tl.float32) * x[None, :], 1), float("-inf"))
        tl.store(logits_ptr + row * vocab + n, y.to(logits_ptr.dtype.element_ty), n < vocab)
        best = tl.max(y, 0)
        tl.store(best_ptr + row * PARTS + part, best)
        tl.store(token_ptr + row * PARTS + part, tl.min(tl.where(y == best, n, vocab), 0))


@dataclass(frozen=True)
class Tile:
    """Rows of the weight a program holds, and its warps."""

    rows: int
    warps: int


def tile_for(outputs: int, inputs: int, multiprocessors: int) -> Tile:
    """Such that every multiprocessor has a program or two, and a thread holds at most 64 elements."""
    rows = max(2, min(16, triton.next_power_of_2(outputs // multiprocessors + 1) // 2))
    warps = max(4, min(16, rows * triton.next_power_of_2(inputs) // (32 * 64)))
    return Tile(rows, triton.next_power_of_2(warps))


def norm_linear(
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    tile: Tile,
    *,
    gelu: bool,
) -> Tensor:
    """`linear(layer_norm(x))`, with GELU behind it where `gelu`.

    x `[R, width]`, R at most MAX_ROWS; gain, shift `[width]`; weight `[N, width]`; bias `[N]` → `[R, N]`.
    """
    rows, width = x.shape
    outputs = len(weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    _norm_linear[(triton.cdiv(outputs, tile.rows),)](
        x, gain, shift, weight, bias, out, outputs, eps, ROWS=rows, K=width,
        PAD_K=triton.next_power_of_2(width), BLOCK_N=tile.rows, GELU=gelu, num_warps=tile.warps,
        **early(x.device),
    )  # fmt: skip
    return out


def linear_add_(x: Tensor, given: Tensor, weight: Tensor, bias: Tensor, tile: Tile) -> None:
    """Add `linear(given)` to `x` in place: given `[R, K]`, weight `[N, K]`, bias `[N]`, x `[R, N]`."""
    rows, inputs = given.shape
    outputs = len(weight)
    _linear_add[(triton.cdiv(outputs, tile.rows),)](
        given, weight, bias, x, outputs, ROWS=rows, K=inputs, PAD_K=triton.next_power_of_2(inputs),
        BLOCK_N=tile.rows, num_warps=tile.warps, **early(x.device),
    )  # fmt: skip


def head(
    x: Tensor, gain: Tensor, shift: Tensor, weight: Tensor, eps: float, tile: Tile
) -> tuple[Tensor, Tensor, Tensor]:
    """Final layer norm and the vocabulary's product: x `[R, width]`, weight `[vocab, width]`.

    Returns:
        Logits `[R, vocab]` in the dtype of `x`; of each part of the vocabulary the best logit (float32, before
        rounding) and its token (int32), both `[R, parts]`.
    """
    rows, width = x.shape
    vocab = len(weight)
    parts = triton.cdiv(vocab, tile.rows)
    logits = torch.empty(rows, vocab, dtype=x.dtype, device=x.device)
    best = torch.empty(rows, parts, dtype=torch.float32, device=x.device)
    token = torch.empty(rows, parts, dtype=torch.int32, device=x.device)
    _head[(parts,)](
        x, gain, shift, weight, logits, best, token, vocab, eps, ROWS=rows, K=width,
        PAD_K=triton.next_power_of_2(width), BLOCK_N=tile.rows, PARTS=parts, num_warps=tile.warps,
        **early(x.device),
    )  # fmt: skip
    return logits, best, token
