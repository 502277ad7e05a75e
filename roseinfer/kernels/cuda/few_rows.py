"""A layer of GPT-2 for a few decode rows, in two kernels: see `few_rows.cu`.

For NVIDIA GPUs of compute capability 9.0 or later, where the blocks of a cluster can write to each other's
shared memory. Reference: `GPT2.forward`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.kernels.capability import is_large_hopper
from roseinfer.kernels.cuda.build import available, kernel
from roseinfer.kernels.cuda.launch import Kernel

#: More rows than this are left to other kernels (H200, 2026-11-21, docs/notes/h200.md).
MAX_ROWS = 8
_WARPS = _CLUSTER = 8
_PARTS = 16


@dataclass(frozen=True)
class Shape:
    """The shape that kernels are compiled for: `width` of the residual stream, `inner` units of the MLP."""

    width: int
    heads: int
    inner: int
    eps: float
    dtype: torch.dtype
    block_size: int

    def runs(self, device: torch.device) -> bool:
        """Return whether the kernels exist for this shape, and can be compiled and run on `device`."""
        return (
            self.dtype in (torch.float16, torch.bfloat16)
            and self.width in (768, 1024)
            and self.width == 64 * self.heads
            and self.inner == 4 * self.width
            and is_large_hopper(device)
            and available()
        )


@dataclass(frozen=True)
class Stream:
    """The residual stream between two kernels: `x + bias + parts.sum(0)`.

    x `[R, width]`; bias `[width]`; parts `[P, R, width]` float32; `x` alone where bias and parts are None.
    """

    x: Tensor
    bias: Tensor | None = None
    parts: Tensor | None = None

    def arguments(self, residual: Tensor) -> list[Tensor | int]:
        """Kernel arguments for this stream; the kernel writes the sum to `residual` `[rows, width]`."""
        if self.bias is None or self.parts is None:
            return [self.x, self.x, self.x, 0, residual]
        return [self.x, self.bias, self.parts, len(self.parts), residual]


def attention(
    shape: Shape, stream: Stream, gain: Tensor, shift: Tensor, qkv: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor], table: Tensor, rows: Tensor, lengths: Tensor,
) -> Stream:  # fmt: skip
    """The attention half of a layer, which also appends keys and values to the cache.

    Args:
        gain, shift: of the norm, `[width]`.
        qkv, out: weight and bias of the two projections; the weights are `[3 · width, width]` and `[width,
            width]`.
        cache: one layer's keys and values, `[slots, heads, 64]`.
        table, rows, lengths: as in `roseinfer.kernels.triton.paged_decode`.
    """
    count = len(stream.x)
    residual = torch.empty_like(stream.x)
    parts = _parts(shape.heads, residual)
    _kernel(shape, count, "attention")(
        (shape.heads * _CLUSTER, 1, 1),
        32 * _WARPS,
        [
            *stream.arguments(residual), gain, shift, *qkv, out[0], *cache, table, table.stride(0), rows,
            lengths, parts,
        ],
        shared_bytes=_shared_bytes(shape, count),
    )  # fmt: skip
    return Stream(residual, out[1], parts)


def mlp(
    shape: Shape, stream: Stream, gain: Tensor, shift: Tensor, up: tuple[Tensor, Tensor],
    down: tuple[Tensor, Tensor],
) -> Stream:  # fmt: skip
    """The MLP half: `up` and `down` are weight and bias; the weights are `[inner, width]` and `[width,
    inner]`."""
    count = len(stream.x)
    residual = torch.empty_like(stream.x)
    parts = _parts(_PARTS, residual)
    _kernel(shape, count, "mlp")(
        (_PARTS * _CLUSTER, 1, 1),
        32 * _WARPS,
        [*stream.arguments(residual), gain, shift, *up, down[0], parts],
        shared_bytes=_shared_bytes(shape, count),
    )
    return Stream(residual, down[1], parts)


def _shared_bytes(shape: Shape, rows: int) -> int:
    """An upper bound of the sizes of `AttentionShared` and `MlpShared`."""
    return 4 * shape.width + 4096 + rows * (10 * shape.width + 4096)


def _parts(count: int, x: Tensor) -> Tensor:
    return torch.empty(count, *x.shape, dtype=torch.float32, device=x.device)


def _kernel(shape: Shape, rows: int, name: str) -> Kernel:
    return kernel(
        "few_rows", name, ("BF16", int(shape.dtype == torch.bfloat16)), ("DIM", 64), ("HEADS", shape.heads),
        ("KV_HEADS", shape.heads), ("BLOCK_SIZE", shape.block_size), ("WARPS", _WARPS),
        ("WIDTH", shape.width), ("INNER", shape.inner), ("EPS", shape.eps), ("ROWS", rows),
    )  # fmt: skip
