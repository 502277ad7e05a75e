"""The gate and up projections with SwiGLU fused, for some dozen to a few hundred rows.

As `pipelined`, with two tiles of the weight for each program. Reference: `F.linear`, then `Ops.swiglu`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.swiglu import gated


@triton.jit(do_not_specialize=["rows"])
def _gated_linear(
    x_ptr, weight_ptr, out_ptr, rows,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = (m < rows)[:, None]
    pdl_wait(EARLY)
    k = tl.arange(0, BLOCK_K)
    x_at = x_ptr + m[:, None] * K + k[None, :]
    gate_at = weight_ptr + n[None, :] * K + k[:, None]
    up_at = gate_at + N * K
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in tl.range(0, K // BLOCK_K, num_stages=STAGES):
        x = tl.load(x_at, inside, 0.0)
        gate = tl.dot(x, tl.load(gate_at), gate, input_precision="ieee")
        up = tl.dot(x, tl.load(up_at), up, input_precision="ieee")
        x_at += BLOCK_K
        gate_at += BLOCK_K
        up_at += BLOCK_K
    at = m[:, None] * N + n[None, :]
    tl.store(out_ptr + at, gated(gate, up).to(out_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class GatedTile:
    """Tiling of a GEMM: a program computes `rows` by `outputs`, `inputs` at a time in a pipeline of
    `stages`."""

    rows: int
    outputs: int
    inputs: int = 64
    stages: int = 4
    warps: int = 4

    def takes(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether it divides `x` `[rows, inputs]` times `weight` `[outputs, inputs]` evenly, and has
        room for its pipeline."""
        buffered = 2 * (self.stages - 1) * self.inputs * (self.rows + 2 * self.outputs)
        return (
            x.element_size() == 2
            and buffered <= shared_memory(x.device)
            and len(weight) % (2 * self.outputs) == 0
            and x.shape[1] % self.inputs == 0
        )


def gated_product(x: Tensor, weight: Tensor, tile: GatedTile) -> Tensor:
    """`silu(x G^T) · (x U^T)`: x `[R, K]`, weight `[2 · N, K]`, G first → `[R, N]`."""
    (count, inputs), outputs = x.shape, len(weight) // 2
    out = torch.empty(count, outputs, dtype=x.dtype, device=x.device)
    _gated_linear[(outputs // tile.outputs, triton.cdiv(count, tile.rows))](
        x, weight, out, count, N=outputs, K=inputs, BLOCK_M=tile.rows, BLOCK_N=tile.outputs,
        BLOCK_K=tile.inputs, STAGES=tile.stages, num_warps=tile.warps, **early(x.device),
    )  # fmt: skip
    return out
