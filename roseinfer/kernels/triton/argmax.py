"""Greedy sampling: the argmax of each row, stored for the next step, too. Reference: `logits.argmax(-1)`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait

_BLOCK = 2048


@triton.jit
def _argmax_of_parts(logits_ptr, best_ptr, token_ptr, vocab, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr,
             EARLY: tl.constexpr):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = part * BLOCK + tl.arange(0, BLOCK)
    pdl_wait(EARLY)
    logits = tl.load(logits_ptr + row * stride + n, n < vocab, float("-inf")).to(tl.float32)
    logits = tl.where(logits == logits, logits, float("inf"))  # NaN is the largest, as in PyTorch
    best = tl.max(logits, 0)
    tl.store(best_ptr + row * PARTS + part, best)
    tl.store(token_ptr + row * PARTS + part, tl.min(tl.where(logits == best, n, vocab), 0))


@triton.jit
def _argmax(best_ptr, token_ptr, rows_ptr, last_ptr, out_ptr, PARTS: tl.constexpr, PAD_PARTS: tl.constexpr,
            EARLY: tl.constexpr):  # fmt: skip
    index = tl.program_id(0)
    p = tl.arange(0, PAD_PARTS)
    inside = p < PARTS
    pdl_wait(EARLY)
    best = tl.load(best_ptr + index * PARTS + p, inside, float("-inf"))
    token = tl.load(token_ptr + index * PARTS + p, inside, 2147483647)
    choice = tl.min(tl.where(best == tl.max(best, 0), token, 2147483647), 0).to(tl.int64)
    tl.store(out_ptr + index, choice)
    tl.store(last_ptr + tl.load(rows_ptr + index), choice)


def choose(best: Tensor, token: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> None:
    """Reduce the largest logits of every part of the vocabulary, `best` `[R, parts]` float32 at `token` `[R,
    parts]` int32, to the argmax: to `out` `[R]` int64 and to `last[rows]`, `rows` `[R]` int32. The first of
    equals."""
    parts = best.shape[1]
    _argmax[(len(out),)](
        best, token, rows, last, out, PARTS=parts, PAD_PARTS=triton.next_power_of_2(parts), num_warps=4,
        **early(best.device),
    )  # fmt: skip


def argmax(logits: Tensor, rows: Tensor, last: Tensor, out: Tensor) -> None:
    """The argmax of `logits` `[R, vocab]` to `out` `[R]` int64 and to `last[rows]`. The first of equals; of a
    row with NaN the first NaN. Always a token of the vocabulary."""
    count, vocab = logits.shape
    parts = triton.cdiv(vocab, _BLOCK)
    best = torch.empty(count, parts, dtype=torch.float32, device=logits.device)
    token = torch.empty(count, parts, dtype=torch.int32, device=logits.device)
    _argmax_of_parts[(count, parts)](
        logits, best, token, vocab, logits.stride(0), PARTS=parts, BLOCK=_BLOCK, num_warps=4,
        **early(logits.device),
    )  # fmt: skip
    choose(best, token, rows, last, out)
