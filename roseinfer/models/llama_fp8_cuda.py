"""The Llama family on a GPU with linear layers in FP8: five kernels a layer for up to 8 decode rows, of many
shapes for up to 16, where only weights are quantized, and nine otherwise."""

from __future__ import annotations

from torch import Tensor

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.fp8 import norm_rows_, round_rows, swiglu_rows
from roseinfer.kernels.triton.fp8_product import Fp8Tile, fp8_product
from roseinfer.models.cuda_ranks import CudaRanks
from roseinfer.models.fp8 import Fp8Linear, Rows
from roseinfer.models.linear import Linear
from roseinfer.models.llama_cuda import CudaLlama

#: The first that takes a GEMM runs it; otherwise cuBLAS does. Measured on an H200, 2026-11-22.
TILES = (Fp8Tile(16, 32, inputs=256, stages=4), Fp8Tile(64, 32, inputs=256, stages=4))


class Fp8CudaLlama(CudaLlama):
    """The kernels between the linear layers quantize their outputs."""

    def _layers_of(self, x: Tensor, positions: Tensor | None, attention: CudaPagedAttention) -> Tensor:
        if self._streams(x) and attention.decodes_alone is not None:
            return self._few_rows(x, attention)
        eps, layers = self.config.norm_eps, self._layers
        gains = [*(layer.norm_1 for layer in layers[1:]), self._norm]
        normed = norm_rows_(x, None, layers[0].norm_1, eps)
        for index, (layer, gain) in enumerate(zip(layers, gains, strict=True)):
            qkv = _product(normed, layer.qkv, x)
            attended = attention.attend_product(index, qkv, positions, self._heads, self._rotations[index])
            normed = self._added(x, round_rows(attended), layer.out, layer.norm_2)
            gated = swiglu_rows(_product(normed, layer.gate_up, x))
            normed = self._added(x, gated, layer.down, gain)
        return x

    def _added(
        self, x: Tensor, rows: tuple[Tensor, Tensor], linear: Linear, gain: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add a linear layer of `rows` to `x` in place. Returns its RMS norm with `gain`, quantized."""
        product, eps = _product(rows, linear, x), self.config.norm_eps
        if isinstance(self.ranks, CudaRanks):
            part = self.ranks.part(len(x)).copy_(product)
            return round_rows(self.ranks.add_part_norm(part, x, gain, eps))
        return norm_rows_(x, product, gain, eps)


def _product(rows: tuple[Tensor, Tensor], linear: Linear, like: Tensor) -> Tensor:
    assert isinstance(linear, Fp8Linear)
    values, scales = rows
    tile = next((tile for tile in TILES if tile.takes(values, linear.weight)), None)
    if tile is None or linear.bias is not None:
        return linear.times(Rows(values, scales), like.dtype)
    return fp8_product(values, scales, linear.weight, linear.scales, tile, like.dtype)
