"""Matrix products of few enough rows that the start of kernels counts, by the tile that suits their number.

Where the outputs are too few to give every multiprocessor a tile, the inputs are split too, and what reads
the product adds up its parts. Sums are in float32. References: `F.linear`, `F.gelu(approximate="tanh")`.
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
    """A kernel, and the part of a product that one of its programs makes; inputs are split in `splits`."""

    splits: int

    @abstractmethod
    def takes(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the product of x `[R, K]` with weight `[N, K]` is one that it can make, and does well."""

    @abstractmethod
    def launch(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, gelu: bool) -> None:
        """Make it. With a bias `out` is `[R, N]`, and `splits` 1; without one `[splits, R, N]`."""


def product(x: Tensor, weight: Tensor, bias: Tensor, tile: Tile, *, gelu: bool = False) -> Tensor:
    """`F.linear`, then GELU where `gelu`: x `[R, K]`, weight `[N, K]`, bias `[N]` → `[R, N]`."""
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    tile.launch(x, weight, bias, out, gelu=gelu)
    return out


def product_in_parts(x: Tensor, weight: Tensor, tile: Tile) -> Tensor:
    """`[splits, R, N]` float32, whose sum over the splits is `x @ weight.T`."""
    out = torch.empty(tile.splits, len(x), len(weight), dtype=torch.float32, device=x.device)
    tile.launch(x, weight, None, out, gelu=False)
    return out
