"""Matrix products with what follows them fused in, where the device has a kernel for that."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: oneDNN's product with packed weights and an operation behind it, as torch.compile's CPU backend uses it.
_pointwise = torch.ops.mkldnn._linear_pointwise


class Linear:
    """`x Wᵀ + b` for x `[tokens, in]`, W `[out, in]`; also with GELU(tanh) or a residual behind it.

    With `packed`, the weight is stored in the blocked layout of the CPU's matrix kernels (oneDNN), which
    saves a reordering at every call: half of the time of a product with few tokens.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, packed: bool) -> None:
        self.out_features = weight.shape[0]
        self.bias = bias
        self._packed = packed
        self.weight = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1) if packed else weight.contiguous()
        )

    def __call__(self, x: Tensor) -> Tensor:
        """`x Wᵀ + b`: `[tokens, in]` → `[tokens, out]`."""
        if self._packed:
            return self._fused(x, "none", "")
        return F.linear(x, self.weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        """`GELU(x Wᵀ + b)`, the tanh form."""
        if self._packed:
            return self._fused(x, "gelu", "tanh")
        return F.gelu(F.linear(x, self.weight, self.bias), approximate="tanh")

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + x Wᵀ + b`."""
        if self._packed:
            out: Tensor = _pointwise.binary(x, residual, self.weight, self.bias, "add")
            return out
        return residual + F.linear(x, self.weight, self.bias)

    def _fused(self, x: Tensor, operation: str, algorithm: str) -> Tensor:
        out: Tensor = _pointwise(x, self.weight, self.bias, operation, [], algorithm)
        return out


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed weights exist here: bf16 or fp32 on a CPU with oneDNN."""
    return (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (
            dtype == torch.float32
            or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
    )
