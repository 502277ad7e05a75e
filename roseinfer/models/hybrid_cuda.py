"""Qwen3.5 on a GPU with fused kernels: two for a gated delta layer's tokens of decoding requests."""

from __future__ import annotations

from itertools import count
from typing import ClassVar

from torch import Tensor

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.delta import delta_decode
from roseinfer.kernels.triton.rms_norm import rms_norm
from roseinfer.models.config import HybridConfig
from roseinfer.models.delta import TINY, DeltaStep, GatedDelta
from roseinfer.models.hybrid import DeltaLayer, Hybrid
from roseinfer.models.llama import Layer
from roseinfer.models.llama_cuda import CudaLlama, normed_product
from roseinfer.models.mlp import Mlp


class CudaGatedDelta(GatedDelta):
    """The same layer, with Triton kernels for steps without prompts."""

    def __call__(self, x: Tensor, step: DeltaStep, layer: int) -> Tensor:
        if step.chunks is not None or step.decodes is None:
            return super().__call__(x, step, layer)
        return delta_decode(
            x, self.kernel, self.decay, self.bias, self.gain, self.key_heads, self.key_dim, self.eps, TINY,
            step.decodes, *step.states.layer(layer),
        )  # fmt: skip


class CudaHybrid(CudaLlama, Hybrid):
    """The same weights and, within rounding, the same results as Hybrid."""

    config: HybridConfig
    mixes: ClassVar[bool] = False
    by_context: ClassVar[bool] = False
    rule: ClassVar[type[GatedDelta]] = CudaGatedDelta

    def _layers_of(self, x: Tensor, positions: Tensor | None, attention: CudaPagedAttention) -> Tensor:
        step, eps = self._step(attention, x.device), self.config.norm_eps
        deltas, attentions = count(), count()
        for layer in self._layers:
            product = normed_product(x, layer.norm_1, eps, layer.qkv)
            if isinstance(layer, DeltaLayer):
                mixed = layer.delta(product, step, next(deltas))
            else:
                mixed = self._gated_attention(layer, product, positions, attention, next(attentions))
            x = self._added_product(mixed, layer.out, x)
            if isinstance(layer.mlp, Mlp):
                gated = normed_product(x, layer.norm_2, eps, layer.mlp.gate_up, gated=True)
                x = self._added_product(gated, layer.mlp.down, x)
            else:
                x = layer.mlp.add(rms_norm(x, layer.norm_2, eps), x)
        return x

    def _gated_attention(
        self,
        layer: Layer,
        product: Tensor,
        positions: Tensor | None,
        attention: CudaPagedAttention,
        index: int,
    ) -> Tensor:
        heads = self._heads
        qkv, gates = product.tensor_split(((heads.queries + 2 * heads.keys) * heads.dim,), 1)
        out = attention.attend_product(index, qkv.contiguous(), positions, heads, self._rotation(layer))
        return out * gates.sigmoid()
