"""The operators between the linear layers of a Llama layer, in plain PyTorch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F


class Ops:
    """The reference, on any device. A device's own kernels are a subclass with the same results."""

    #: Whether it is batch-invariant: a row's result is the same, bit for bit, whatever the other rows are.
    rows_alone: ClassVar[bool] = False

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        """Compute `x / sqrt(mean(x²) + eps) · gain` of `[rows, width]` in float32 (Zhang, Sennrich 2019)."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return wide.to(x.dtype) * gain

    def rotate(self, qk: Tensor, gain: Tensor | None, eps: float, turns: Tensor) -> Tensor:
        """Apply rotary position embeddings (Su et al., 2021) to queries and keys.

        Args:
            qk: `[T, heads + kv heads, head_dim]`; a row is contiguous.
            gain: `[heads + kv heads, head_dim]`, gains of an RMS norm over each head before that, or None.
            turns: cos and sin of each row's angles, `[T, 2, head_dim / 2]` float32. Elements i and
                i + head_dim / 2 of a head are rotated together.

        Returns:
            The same shape; may be `qk` itself, changed.
        """
        if gain is not None:
            qk = self.rms_norm(qk, gain, eps)
        cos, sin = turns[:, :, None].unbind(1)
        first, second = qk.float().chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(qk.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) · up` (Shazeer, 2020): `[T, 2 · ffn]`, gate first → `[T, ffn]`."""
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up
