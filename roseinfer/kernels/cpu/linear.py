"""The C++ product of bfloat16 rows and weights behind `Linear`; see linear.cpp and products.h."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.kernels.cpu.build import INT, LONG, POINTER, kernel
from roseinfer.kernels.cpu.dot import has_bf16_dot
from roseinfer.models.config import ModelConfig
from roseinfer.models.linear import Linear

_PANEL, _VECTOR = 48, 16


class CpuLinear(Linear):
    """bfloat16, with bias, GELU and residual added to the float32 sums. Raises BuildError."""

    name = "cpu-bf16"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self._inputs = weight.shape
        fill = -self.out_features % _VECTOR
        self.weight = _in_panels(F.pad(weight, (0, 0, 0, fill)))
        self.bias = None if bias is None else F.pad(bias, (0, fill))
        self._kernel = kernel("linear_bf16", *[POINTER] * 5, *[LONG] * 3, INT)

    @staticmethod
    def supports(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
        """bf16 on a CPU that has its dot product, even numbers of inputs. Raises BuildError."""
        even = not (config.width | config.ffn_width | config.heads * config.head_dim) % 2
        return even and device.type == "cpu" and dtype == torch.bfloat16 and has_bf16_dot()

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x)

    def gelu(self, x: Tensor) -> Tensor:
        return self._run(x, gelu=True)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._run(x, residual.contiguous())

    def _run(self, x: Tensor, residual: Tensor | None = None, *, gelu: bool = False) -> Tensor:
        x, rows = x.contiguous(), x.shape[0]
        out = x.new_empty(rows, self.out_features)
        self._kernel(
            self.weight.data_ptr(), None if self.bias is None else self.bias.data_ptr(), x.data_ptr(),
            None if residual is None else residual.data_ptr(), out.data_ptr(),
            rows, self._inputs, self.out_features, gelu,
        )  # fmt: skip
        return out


def _in_panels(weight: Tensor) -> Tensor:
    """`[out, in]`, whole vectors of outputs → flat: panels, pairs of inputs, outputs, the two of the pair."""
    whole = len(weight) // _PANEL * _PANEL
    pairs = weight.reshape(len(weight), -1, 2)
    panels = pairs[:whole].view(-1, _PANEL, *pairs.shape[1:])
    return torch.cat([panels.transpose(1, 2).flatten(), pairs[whole:].transpose(0, 1).flatten()])
