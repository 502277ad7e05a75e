"""The LM head for a few rows. Every program keeps its largest logit, so that argmax need not read all logits.

Reference: `F.linear`, then `argmax`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.launch import early, multiprocessors, pdl_wait

#: More rows than this are left to cuBLAS: this kernel does not use tensor cores, and on an H200 a step of 8
#: requests took 600 us with GEMMs like this and 455 with cuBLAS (2026-11-21, docs/notes/h200.md).
MAX_ROWS = 4
_TILE = 16


@triton.jit
def _head_linear(
    x_ptr, weight_ptr, logits_ptr, best_ptr, token_ptr, vocab, tiles,
    ROWS: tl.constexpr, K: tl.constexpr, PAD_K: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    k = tl.arange(0, PAD_K)
    inside = k < K
    pdl_wait(EARLY)
    xs = ()
    bests = ()
    tokens = ()
    for row in tl.static_range(ROWS):
        xs = xs + (tl.load(x_ptr + row * K + k, inside, 0.0).to(tl.float32),)  # noqa: RUF005
        bests = bests + (float("-inf"),)  # noqa: RUF005
        tokens = tokens + (0,)  # noqa: RUF005
    for tile in tl.range(program, tiles, PROGRAMS, num_stages=3):
        n = tile * TILE + tl.arange(0, TILE)
        at = weight_ptr + n[:, None].to(tl.int64) * K + k[None, :]
        weight = tl.load(at, (n < vocab)[:, None] & inside[None, :], 0.0).to(tl.float32)
        better = ()
        likeliest = ()
        for row in tl.static_range(ROWS):
            y = tl.where(n < vocab, tl.sum(weight * xs[row][None, :], 1), float("-inf"))
            tl.store(logits_ptr + row * vocab + n, y.to(logits_ptr.dtype.element_ty), n < vocab)
            largest = tl.max(y, 0)
            token = tl.min(tl.where(y == largest, n, vocab), 0)
            likeliest = likeliest + (tl.where(largest > bests[row], token, tokens[row]),)  # noqa: RUF005
            better = better + (tl.maximum(largest, bests[row]),)  # noqa: RUF005
        bests = better
        tokens = likeliest
    for row in tl.static_range(ROWS):
        tl.store(best_ptr + row * PROGRAMS + program, bests[row])
        tl.store(token_ptr + row * PROGRAMS + program, tokens[row])


def takes(x: Tensor) -> bool:
    """Return whether it can multiply `x` `[R, width]`: two tiles of the weight must fit in a program's
    memory."""
    buffered = 2 * _TILE * triton.next_power_of_2(x.shape[1]) * x.element_size() + 256
    return len(x) <= MAX_ROWS and buffered <= shared_memory(x.device)


def head(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`x` `[R, width]`, which `takes` allows, times `weight` `[vocab, width]`.

    Returns:
        Logits `[R, vocab]` in the dtype of `x`; each program's largest logit (float32, before rounding) and
        its token (int32), both `[R, programs]`.
    """
    (count, width), vocab = x.shape, len(weight)
    tiles = triton.cdiv(vocab, _TILE)
    programs = min(2 * multiprocessors(x.device), tiles)
    logits = torch.empty(count, vocab, dtype=x.dtype, device=x.device)
    best = torch.empty(count, programs, dtype=torch.float32, device=x.device)
    token = torch.empty(count, programs, dtype=torch.int32, device=x.device)
    _head_linear[(programs,)](
        x, weight, logits, best, token, vocab, tiles, ROWS=count, K=width,
        PAD_K=triton.next_power_of_2(width), TILE=_TILE, PROGRAMS=programs, num_warps=4, **early(x.device),
    )  # fmt: skip
    return logits, best, token
