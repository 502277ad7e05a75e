"""The C++ GEMM of bfloat16 rows and weights; see linear.cpp and products.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kernels.cpu.build import INT, LONG, POINTER, Call, kernel, load_library

_VECTOR = 16


@dataclass(frozen=True)
class Packed:
    """A weight `[outputs, inputs]` and its bias in the kernel's layout, outputs padded to whole vectors."""

    weight: Tensor
    bias: Tensor | None
    inputs: int
    outputs: int


def pack(weight: Tensor, bias: Tensor | None) -> Packed:
    """Pack `weight` `[outputs, inputs]`, inputs even, and `bias` `[outputs]`, both bfloat16.

    Raises:
        BuildError: The kernels cannot be built here.
    """
    outputs, inputs = weight.shape
    fill = -outputs % _VECTOR
    panels = _in_panels(F.pad(weight, (0, 0, 0, fill)))
    return Packed(panels, None if bias is None else F.pad(bias, (0, fill)), inputs, outputs)


def linear(x: Tensor, packed: Packed, residual: Tensor | None = None, *, gelu: bool = False) -> Tensor:
    """`x Wᵀ + b`, then GELU (the tanh form) or `residual` added, all on the float32 sums.

    Args:
        x: `[rows, inputs]` bfloat16.
        residual: `[rows, outputs]` bfloat16.

    Returns:
        `[rows, outputs]` bfloat16.

    Raises:
        BuildError: The kernels cannot be built here.
    """
    out = x.new_empty(x.shape[0], packed.outputs)
    linear_call(x.contiguous(), packed, out, None if residual is None else residual.contiguous(), gelu=gelu)()
    return out


def linear_call(
    x: Tensor, packed: Packed, out: Tensor, residual: Tensor | None = None, *, gelu: bool = False
) -> Call:
    """Prepare `linear` of contiguous `x` `[rows, inputs]` into `out` `[rows, outputs]`, which may be
    `residual`.

    Raises BuildError."""
    tensors = packed.weight, packed.bias, x, residual, out
    return Call.of(_kernel(), tensors, x.shape[0], packed.inputs, packed.outputs, gelu)


@cache
def _kernel() -> Callable[..., None]:
    return kernel("linear_bf16", *[POINTER] * 5, *[LONG] * 3, INT)


def _in_panels(weight: Tensor) -> Tensor:
    """`[out, in]`, out a multiple of _VECTOR → flat: panels of outputs, pairs of inputs, outputs, pair."""
    panel = load_library().panel_outputs()
    whole = len(weight) // panel * panel
    pairs = weight.reshape(len(weight), -1, 2)
    panels = pairs[:whole].view(-1, panel, *pairs.shape[1:])
    return torch.cat([panels.transpose(1, 2).flatten(), pairs[whole:].transpose(0, 1).flatten()])
