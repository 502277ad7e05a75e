"""Embeddings of decode rows: of tokens, or of tokens and positions. Reference: `F.embedding`, and a sum."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _embedding(last_ptr, rows_ptr, lengths_ptr, tokens_ptr, positions_ptr, out_ptr, WIDTH: tl.constexpr,
           PAD_WIDTH: tl.constexpr):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    token = tl.load(last_ptr + tl.load(rows_ptr + index))
    position = tl.maximum(tl.load(lengths_ptr + index) - 1, 0).to(tl.int64)
    e = tl.arange(0, PAD_WIDTH)
    inside = e < WIDTH
    x = tl.load(tokens_ptr + token * WIDTH + e, inside, 0.0).to(tl.float32)
    x += tl.load(positions_ptr + position * WIDTH + e, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + index * WIDTH + e, x.to(out_ptr.dtype.element_ty), inside)


def embed_last(last: Tensor, rows: Tensor, lengths: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    """`tokens[last[rows]] + positions[lengths - 1]`: last `[running rows]` int64, rows and lengths `[R]`
    int32, tokens `[vocab, width]`, positions `[context, width]` → `[R, width]`."""
    width = tokens.shape[1]
    out = torch.empty(len(rows), width, dtype=tokens.dtype, device=tokens.device)
    _embedding[(len(rows),)](
        last, rows, lengths, tokens, positions, out, WIDTH=width, PAD_WIDTH=triton.next_power_of_2(width),
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _row(last_ptr, rows_ptr, tokens_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    token = tl.load(last_ptr + tl.load(rows_ptr + index))
    e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(tokens_ptr + token * WIDTH + e, e < WIDTH)
    tl.store(out_ptr + index * WIDTH + e, x, e < WIDTH)


def embed_rows(last: Tensor, rows: Tensor, tokens: Tensor, out: Tensor | None = None) -> Tensor:
    """`tokens[last[rows]]`, as `embed_last` takes them, to `out` `[R, width]` where it is given."""
    width = tokens.shape[1]
    if out is None:
        out = torch.empty(len(rows), width, dtype=tokens.dtype, device=tokens.device)
    _row[(len(rows), triton.cdiv(width, _BLOCK))](
        last, rows, tokens, out, WIDTH=width, BLOCK=_BLOCK, num_warps=4
    )
    return out
