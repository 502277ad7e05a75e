"""Linear layers in FP8 (E4M3), with a scale for each output of the weight and for each row of x."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.e4m3 import E4M3, LARGEST
from roseinfer.models.linear import Linear

#: The scale of a row of zeros.
SMALLEST_SCALE = 1e-12


@dataclass(frozen=True)
class Rows:
    """`values` `[T, inputs]` in E4M3, times `scales` `[T, 1]` float32."""

    values: Tensor
    scales: Tensor


def quantize(x: Tensor) -> Rows:
    """Quantize each row of `x` `[T, inputs]` by its largest magnitude."""
    wide = x.float()
    scales = (wide.abs().amax(-1, keepdim=True) / LARGEST).clamp_(min=SMALLEST_SCALE)
    return Rows((wide / scales).to(E4M3), scales)


class Fp8Linear(Linear):
    """`x Wᵀ + b` with x and W rounded to E4M3, and float32 sums.

    On a CPU the rounded numbers are multiplied in float32: slow, and the reference for GPUs.
    """

    name = "fp8"
    scales: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rows = quantize(weight)
        self.weight, self.scales, self.bias = rows.values, rows.scales, bias
        self._wide = None if weight.is_cuda else self.weight.float()

    @staticmethod
    def supports(device: torch.device, dtype: torch.dtype, divisor: int) -> bool:
        """On a GPU: bf16, compute capability 8.9 or later, and `divisor`, which divides all sizes, a multiple
        of 16."""
        return device.type != "cuda" or (
            dtype == torch.bfloat16
            and torch.cuda.get_device_capability(device) >= (8, 9)
            and divisor % 16 == 0
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.times(quantize(x), x.dtype)

    def times(self, x: Rows, dtype: torch.dtype) -> Tensor:
        """`x Wᵀ + b` of rows that are quantized already, `[T, outputs]` in `dtype`."""
        if self._wide is None:
            out: Tensor = torch._scaled_mm(
                x.values, self.weight.t(), x.scales, self.scales.t(), bias=self.bias, out_dtype=dtype
            )
            return out
        out = (x.values.float() @ self._wide.t()) * (x.scales * self.scales.t())
        return (out if self.bias is None else out + self.bias.float()).to(dtype)
