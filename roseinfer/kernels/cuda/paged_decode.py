"""Decode attention over the paged KV cache: see `paged_decode.cu`.

The same as `roseinfer.kernels.triton.paged_decode`, in half precision for head sizes of 32, 64, 128 and 256.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.kernels.cuda.build import available, kernel

#: At least so many; more where a head has more elements than their threads, each of which writes one.
_WARPS = 4


def supports(dim: int, dtype: torch.dtype) -> bool:
    """Return whether the kernel exists for this head size and dtype, and can be compiled."""
    return dim in (32, 64, 128, 256) and dtype in (torch.float16, torch.bfloat16) and available()


def launch(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, table: Tensor, rows: Tensor,
    lengths: Tensor, parts: Tensor, lse: Tensor, block_size: int, splits: int,
) -> None:  # fmt: skip
    """Launch the kernel with the arguments, and their shapes, of Triton's; `parts` is in the dtype of `q`
    where `splits` is 1."""
    count, heads, dim = q.shape
    kv_heads, warps = k.shape[1], max(_WARPS, dim // 32)
    run = kernel(
        "paged_decode", "paged_decode", ("BF16", int(q.dtype == torch.bfloat16)), ("DIM", dim),
        ("HEADS", heads), ("KV_HEADS", kv_heads), ("BLOCK_SIZE", block_size), ("SPLITS", splits),
        ("WARPS", warps),
    )  # fmt: skip
    run(
        (count, heads, splits),
        32 * warps,
        [
            q, k, v, q.stride(0), k.stride(0), v.stride(0), keys, values, table, table.stride(0), rows,
            lengths, parts, lse,
        ],
    )  # fmt: skip
