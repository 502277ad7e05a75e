"""The C++ CPU kernels as a model's linear layers and operators."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.kernels.cpu import linear as products
from roseinfer.kernels.cpu import ops
from roseinfer.kernels.cpu.build import has_bf16_products, load_library
from roseinfer.models.config import ModelConfig
from roseinfer.models.linear import Linear
from roseinfer.models.ops import Ops


class CpuLinear(Linear):
    """bfloat16; bias, GELU and residual are applied to the float32 sums. Raises BuildError."""

    name = "cpu-bf16"
    rows_alone = True

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = products.pack(weight, bias)
        self.weight, self.bias = self.packed.weight, self.packed.bias

    @staticmethod
    def supports(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
        """bf16 on a CPU with AVX-512, and even input sizes. Raises BuildError."""
        even = not any(
            size % 2 for size in (config.width, *config.ffn_widths, config.heads * config.head_dim)
        )
        return even and device.type == "cpu" and dtype == torch.bfloat16 and has_bf16_products()

    def __call__(self, x: Tensor) -> Tensor:
        return products.linear(x, self.packed)

    def gelu(self, x: Tensor) -> Tensor:
        return products.linear(x, self.packed, gelu=True)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return products.linear(x, self.packed, residual)


class CpuOps(Ops):
    """Tensors are contiguous, float32 or bfloat16; `rotate` works in place. Raises BuildError."""

    rows_alone = True

    def __init__(self) -> None:
        load_library()

    @staticmethod
    def supports(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
        """The widths, and half of the head size, must be multiples of `ops.VECTOR`."""
        vector = ops.VECTOR
        widths = config.width, *config.ffn_widths
        whole = not (any(size % vector for size in widths) or config.head_dim % (2 * vector))
        return device.type == "cpu" and dtype in ops.DTYPES and whole

    rms_norm = staticmethod(ops.rms_norm)
    rotate = staticmethod(ops.rotate)
    swiglu = staticmethod(ops.swiglu)
