"""GEMMs of some dozen to a few hundred rows, launched while the previous kernel ends.

A program prefetches its part of the weight into the L2 cache before it waits for that kernel. Then it loops
over the inputs in a software pipeline of several stages. Sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.launch import early, pdl_launch_late, pdl_wait
from roseinfer.kernels.triton.products import Tile, gelu_of

#: Halves in a cache line.
_LINE = tl.constexpr(64)


@triton.jit(do_not_specialize=["rows"])
def _pipelined_linear(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, ALONE: tl.constexpr, GELU: tl.constexpr, LATE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    share: tl.constexpr = K // SPLITS
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = (m < rows)[:, None]
    if EARLY:
        for start in tl.static_range(0, share, 16 * _LINE):
            line = start + tl.arange(0, 16) * _LINE
            at = weight_ptr + n[:, None] * K + split * share + tl.where(line < share, line, 0)[None, :]
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32,
                is_pure=False, pack=1,
            )  # fmt: skip
    pdl_wait(EARLY, LATE)
    k = split * share + tl.arange(0, BLOCK_K)
    x_at = x_ptr + m[:, None] * K + k[None, :]
    weight_at = weight_ptr + n[None, :] * K + k[:, None]
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in tl.range(0, share // BLOCK_K, num_stages=STAGES):
        y = tl.dot(tl.load(x_at, inside, 0.0), tl.load(weight_at), y, input_precision="ieee")
        x_at += BLOCK_K
        weight_at += BLOCK_K
    pdl_launch_late(EARLY, LATE)
    if ALONE:
        y += tl.load(bias_ptr + n).to(tl.float32)[None, :]
        if GELU:
            y = gelu_of(y)
    at = (split * rows + m[:, None]) * N + n[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class PipelinedTile(Tile):
    """Tiling of a GEMM: a program computes `rows` by `outputs` from one of `splits` parts of the inputs
    (split-K), `inputs` at a time in a pipeline of `stages`. `late`: the next kernel, which would compete for
    memory bandwidth, starts only when this one has read its inputs."""

    rows: int
    outputs: int
    splits: int = 1
    inputs: int = 64
    stages: int = 6
    late: bool = False

    def takes(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether it divides `x` `[rows, inputs]` times `weight` `[outputs, inputs]` evenly, and has
        room for its pipeline."""
        buffered = 2 * (self.stages - 1) * self.inputs * (self.rows + self.outputs)
        return (
            x.element_size() == 2
            and buffered <= shared_memory(x.device)
            and len(weight) % self.outputs == 0
            and x.shape[1] % (self.splits * self.inputs) == 0
        )

    def launch(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, gelu: bool) -> None:
        count, inputs = x.shape
        outputs = len(weight)
        _pipelined_linear[(outputs // self.outputs, self.splits, triton.cdiv(count, self.rows))](
            x, weight, bias if bias is not None else weight, out, count, N=outputs, K=inputs,
            BLOCK_M=self.rows, BLOCK_N=self.outputs, BLOCK_K=self.inputs, SPLITS=self.splits,
            STAGES=self.stages, ALONE=bias is not None, GELU=gelu, LATE=self.late,
            num_warps=4 if self.rows <= 64 else 8, **early(x.device),
        )  # fmt: skip
