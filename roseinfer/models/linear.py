"""Linear layers, fused with the operation after them where the device has a kernel for that."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

#: oneDNN's linear with packed weights and a fused operation after it, as torch.compile's CPU backend uses it.
_pointwise = torch.ops.mkldnn._linear_pointwise


class Adds(Protocol):
    """A linear layer, or an MLP, whose result is added to the residual stream."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor: ...


class Linear:
    """`x Wᵀ + b` for x `[tokens, in]`, W `[out, in]`; also with GELU(tanh) or a residual after it.

    The reference, on any device. Subclasses have the same results within rounding.
    """

    name = "torch"
    #: Scales of a quantized weight, float32, one for each output.
    scales: Tensor | None = None
    #: Whether it is batch-invariant: a row's result is the same, bit for bit, whatever the other rows are.
    rows_alone: ClassVar[bool] = False

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """`x Wᵀ + b`: `[tokens, in]` → `[tokens, out]`."""
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        """Compute `GELU(x Wᵀ + b)`, the tanh form, `[rows, inputs]` → `[rows, outputs]`."""
        return F.gelu(self(x), approximate="tanh")

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Compute `residual + x Wᵀ + b`, `[rows, outputs]`."""
        return residual + self(x)


class WidenedLinear(Linear):
    """bf16 on a CPU for which oneDNN has no bf16 kernels (AVX2): products of several rows in float32.

    The weight is converted in each of them. On an AMD EPYC that takes a sixth of the time of PyTorch's own
    product with 512 rows, as much with 4 and more with one.
    """

    name = "torch, in float32"
    #: The fewest rows with which that is faster.
    LEAST_ROWS: ClassVar[int] = 5

    @staticmethod
    def supports(device: torch.device, dtype: torch.dtype) -> bool:
        """bf16 on a CPU."""
        return device.type == "cpu" and dtype == torch.bfloat16

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) < self.LEAST_ROWS:
            return super().__call__(x)
        bias = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), bias).to(x.dtype)


class OneDnnLinear(Linear):
    """Stores the weight in the blocked layout of oneDNN's kernels, which saves a reorder at every call.

    That is half of the time of a GEMM with few rows.
    """

    name = "onednn"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
        self.bias = bias

    @staticmethod
    def supports(device: torch.device, dtype: torch.dtype) -> bool:
        """bf16 or fp32 on a CPU with oneDNN."""
        return (
            device.type == "cpu"
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and (
                dtype == torch.float32
                or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
            )
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._fused(x, "none", "")

    def gelu(self, x: Tensor) -> Tensor:
        return self._fused(x, "gelu", "tanh")

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        out: Tensor = _pointwise.binary(x, residual, self.weight, self.bias, "add")
        return out

    def _fused(self, x: Tensor, operation: str, algorithm: str) -> Tensor:
        out: Tensor = _pointwise(x, self.weight, self.bias, operation, [], algorithm)
        return out
