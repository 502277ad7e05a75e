"""SwiGLU of the outputs of the gate and up projections. Reference: `Ops.swiglu`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from roseinfer.kernels.triton.launch import early, pdl_wait

_BLOCK = 1024


@triton.jit
def gated(gate, up):
    """silu(gate) · up in float32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu(x_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < WIDTH
    pdl_wait(EARLY)
    gate = tl.load(x_ptr + row * 2 * WIDTH + n, inside, 0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * WIDTH + WIDTH + n, inside, 0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + n, gated(gate, up).to(out_ptr.dtype.element_ty), inside)


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) · up`: `[T, 2 · ffn]`, gates first → `[T, ffn]`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    _swiglu[(rows, triton.cdiv(width, _BLOCK))](
        gate_up, out, WIDTH=width, BLOCK=_BLOCK, num_warps=4, **early(gate_up.device)
    )
    return out
