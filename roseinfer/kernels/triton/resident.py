"""GEMMs of up to some dozen rows, bound by memory bandwidth and launch latency.

Every program loads its whole tile of the weight before the previous kernel has ended. Sums are in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.capability import shared_memory
from roseinfer.kernels.triton.launch import early, pdl_wait
from roseinfer.kernels.triton.products import Tile, gelu_of

#: More rows than this are left to `pipelined`, which is slower below (H200, 2026-11-22, docs/notes/h200.md).
MAX_ROWS = 32


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TURNS: tl.constexpr,
    ALONE: tl.constexpr, GELU: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    inside_n, inside_m = n < N, m < rows
    first = split * TURNS * BLOCK_K
    weights = ()
    for turn in tl.static_range(TURNS):
        k = first + turn * BLOCK_K + tl.arange(0, BLOCK_K)
        at = weight_ptr + n[None, :] * K + k[:, None]
        weights = weights + (tl.load(at, inside_n[None, :] & (k < K)[:, None], 0.0),)  # noqa: RUF005
    pdl_wait(EARLY)
    xs = ()
    for turn in tl.static_range(TURNS):
        k = first + turn * BLOCK_K + tl.arange(0, BLOCK_K)
        at = x_ptr + m[:, None] * K + k[None, :]
        xs = xs + (tl.load(at, inside_m[:, None] & (k < K)[None, :], 0.0),)  # noqa: RUF005
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for turn in tl.static_range(TURNS):
        y = tl.dot(xs[turn], weights[turn], y, input_precision="ieee")
    if ALONE:
        y += tl.load(bias_ptr + n, inside_n, 0.0).to(tl.float32)[None, :]
        if GELU:
            y = gelu_of(y)
    at = (split * rows + m[:, None]) * N + n[None, :]
    tl.store(out_ptr + at, y.to(out_ptr.dtype.element_ty), inside_m[:, None] & inside_n[None, :])


@dataclass(frozen=True)
class ResidentTile(Tile):
    """Tiling of a GEMM: a program computes all rows by `outputs` from one of `splits` parts of the inputs
    (split-K), `inputs` at a time."""

    outputs: int = 32
    splits: int = 1
    inputs: int = 128

    def takes(self, x: Tensor, weight: Tensor) -> bool:
        if len(x) > MAX_ROWS or x.element_size() != 2:
            return False
        count, inputs = x.shape
        buffered = 2 * self._turns(inputs) * self.inputs * (_height(count) + self.outputs)
        return buffered <= shared_memory(x.device)

    def _turns(self, inputs: int) -> int:
        return triton.cdiv(triton.cdiv(inputs, self.splits), self.inputs)

    def launch(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, gelu: bool) -> None:
        count, inputs = x.shape
        outputs = len(weight)
        _linear[(triton.cdiv(outputs, self.outputs), self.splits)](
            x, weight, bias if bias is not None else weight, out, count, outputs, inputs,
            BLOCK_M=_height(count), BLOCK_N=self.outputs, BLOCK_K=self.inputs, TURNS=self._turns(inputs),
            ALONE=bias is not None, GELU=gelu, num_warps=4, **early(x.device),
        )  # fmt: skip


def _height(rows: int) -> int:
    """Rows of a program's tile of x."""
    return max(16, triton.next_power_of_2(rows))
