"""The C++ kernels behind `Ops`; see llama_ops.cpp."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.kernels.cpu.build import FLOAT, INT, LONG, POINTER, kernel
from roseinfer.models.config import ModelConfig
from roseinfer.models.ops import Ops

_SUFFIX = {torch.float32: "fp32", torch.bfloat16: "bf16"}


class CpuOps(Ops):
    """Tensors are contiguous, float32 or bfloat16; `rotate` works in place. Raises BuildError."""

    def __init__(self, dtype: torch.dtype) -> None:
        suffix = _SUFFIX[dtype]
        self._rms_norm = kernel(f"rms_norm_{suffix}", *[POINTER] * 3, LONG, INT, FLOAT)
        self._rotate = kernel(f"rotate_{suffix}", *[POINTER] * 3, LONG, LONG, INT, INT, FLOAT)
        self._swiglu = kernel(f"swiglu_{suffix}", POINTER, POINTER, LONG, INT)

    @staticmethod
    def supports(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> bool:
        """The kernels work in vectors of 16 elements; half a head is the least of them."""
        whole = config.width % 16 == 0 and config.ffn_width % 16 == 0 and config.head_dim % 32 == 0
        return device.type == "cpu" and dtype in _SUFFIX and whole

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        self._rms_norm(x.data_ptr(), gain.data_ptr(), out.data_ptr(), len(x), x.shape[-1], eps)
        return out

    def rotate(self, qk: Tensor, gain: Tensor | None, eps: float, turns: Tensor) -> Tensor:
        self._rotate(
            qk.data_ptr(), None if gain is None else gain.data_ptr(), turns.data_ptr(),
            len(qk), qk.stride(0), qk.shape[1], qk.shape[2], eps,
        )  # fmt: skip
        return qk

    def swiglu(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._swiglu(gate_up.data_ptr(), out.data_ptr(), rows, width // 2)
        return out
