"""The Llama family on a GPU with products in 8-bit floats: nine kernels a layer."""

from __future__ import annotations

from torch import Tensor

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.fp8 import norm_rows_, round_rows, swiglu_rows
from roseinfer.models.fp8 import Fp8Linear, Rows
from roseinfer.models.linear import Linear
from roseinfer.models.llama_cuda import CudaLlama


class Fp8CudaLlama(CudaLlama):
    """What is between the products leaves rows that are rounded already."""

    def _layers_of(self, x: Tensor, positions: Tensor | None, attention: CudaPagedAttention) -> Tensor:
        eps, layers = self.config.norm_eps, self._layers
        normed = norm_rows_(x, None, layers[0].norm_1, eps)
        for index, layer in enumerate(layers):
            qkv = _product(normed, layer.qkv, x)
            attended = attention.attend_product(index, qkv, positions, self._heads, self._rotations[index])
            normed = norm_rows_(x, _product(round_rows(attended), layer.out, x), layer.norm_2, eps)
            down = _product(swiglu_rows(_product(normed, layer.gate_up, x)), layer.down, x)
            if index + 1 < len(layers):
                normed = norm_rows_(x, down, layers[index + 1].norm_1, eps)
        return x.add_(down)


def _product(rows: tuple[Tensor, Tensor], linear: Linear, like: Tensor) -> Tensor:
    assert isinstance(linear, Fp8Linear)
    return linear.times(Rows(*rows), like.dtype)
