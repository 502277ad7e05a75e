"""GEMMs of so few rows that launch latency matters, with a tiling that suits the number of rows.

Where there are too few outputs to give every SM a tile, the inputs are split too (split-K), and the kernel
that reads the result adds up the partial sums. Sums are in float32. References: `F.linear`,
`F.gelu(approximate="tanh")`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def gelu_of(x):
    """GELU, the tanh form (Hendrycks and Gimpel, 2016)."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x / (1.0 + tl.exp(-2.0 * inner))


class Tile(ABC):
    """A GEMM kernel and its tiling; the inputs are split in `splits` parts."""

    splits: int

    @abstractmethod
    def takes(self, x: Tensor, weight: Tensor) -> bool:
        """Return whether it can multiply x `[R, K]` with weight `[N, K]`, and does so well."""

    @abstractmethod
    def launch(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, gelu: bool) -> None:
        """Run the GEMM. With a bias `out` is `[R, N]`, and `splits` 1; without one `[splits, R, N]`."""


def product(x: Tensor, weight: Tensor, bias: Tensor, tile: Tile, *, gelu: bool = False) -> Tensor:
    """`F.linear`, then GELU where `gelu`: x `[R, K]`, weight `[N, K]`, bias `[N]` → `[R, N]`."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    tile.launch(x, weight, bias, out, gelu=gelu)
    return out


def product_in_parts(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """Partial sums `[splits, R, N]` float32, which add up to `x @ weight.T`."""
    out = torch.empty(tile.splits, len(x), len(weight), dtype=torch.float32, device=x.device)
    tile.launch(x, weight, None, out, gelu=False)
    return out
