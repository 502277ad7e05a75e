"""FP8 GEMMs of up to 64 rows, at the bandwidth at which memory delivers the weights.

A program computes some outputs from all inputs, in a software pipeline of several stages. It prefetches its
first weights into the L2 cache before the previous kernel has ended. Reference:
`roseinfer.models.fp8.Fp8Linear.times`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait

#: Bytes of a cache line.
_LINE = tl.constexpr(128)


@triton.jit(do_not_specialize=["rows"])
def _fp8_linear(
    x_ptr, x_scales_ptr, weight_ptr, scales_ptr, out_ptr, rows,
    N: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    inside = (m < rows)[:, None]
    if EARLY:
        at = weight_ptr + n[:, None] * K + tl.arange(0, 8)[None, :] * _LINE
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [at.to(tl.int64)], dtype=tl.int32,
            is_pure=False, pack=1,
        )  # fmt: skip
    weight_scales = tl.load(scales_ptr + n)
    pdl_wait(EARLY)
    k = tl.arange(0, BLOCK_K)
    x_at = x_ptr + m[:, None] * K + k[None, :]
    weight_at = weight_ptr + n[None, :] * K + k[:, None]
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in tl.range(0, K // BLOCK_K, num_stages=STAGES):
        y = tl.dot(tl.load(x_at, inside, 0.0), tl.load(weight_at), y)
        x_at += BLOCK_K
        weight_at += BLOCK_K
    y = y * tl.load(x_scales_ptr + m, m < rows, 0.0)[:, None] * weight_scales[None, :]
    tl.store(out_ptr + m[:, None] * N + n[None, :], y.to(out_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class Fp8Tile:
    """Tiling of a GEMM: a program computes all of up to `rows` rows by `outputs`, `inputs` at a time in a
    pipeline of `stages`."""

    rows: int
    outputs: int
    inputs: int
    stages: int
    warps: int = 4

    def takes(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether it divides evenly, and suits, a GEMM of `x` `[rows, inputs]` and `weight`
        `[outputs, inputs]`."""
        even = len(weight) % self.outputs == 0 and x.shape[1] % self.inputs == 0
        return even and len(x) <= self.rows and x.shape[1] >= 1024


def fp8_product(
    x: Tensor, x_scales: Tensor, weight: Tensor, scales: Tensor, tile: Fp8Tile, dtype: torch.dtype
) -> Tensor:
    """`x Wᵀ` in `dtype`: x `[R, K]` and W `[N, K]` in E4M3, with float32 scales `[R, 1]` and `[N, 1]`."""
    (count, inputs), outputs = x.shape, len(weight)
    out = torch.empty(count, outputs, dtype=dtype, device=x.device)
    _fp8_linear[(outputs // tile.outputs,)](
        x, x_scales, weight, scales, out, count, N=outputs, K=inputs, BLOCK_M=tile.rows,
        BLOCK_N=tile.outputs, BLOCK_K=tile.inputs, STAGES=tile.stages, num_warps=tile.warps,
        **early(x.device),
    )  # fmt: skip
    return out
