"""Qwen3.5 on a GPU with fused kernels: of a gated delta layer three for generated tokens, four for
prompts."""

from __future__ import annotations

from itertools import count
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.delta import delta_decode
from roseinfer.kernels.triton.delta_prompts import CHUNK, delta_prompts
from roseinfer.kernels.triton.rms_norm import rms_norm
from roseinfer.kvcache.states import StateRows
from roseinfer.models.config import HybridConfig
from roseinfer.models.delta import TINY, DeltaStep, GatedDelta
from roseinfer.models.hybrid import DeltaLayer, Hybrid
from roseinfer.models.llama import Layer
from roseinfer.models.llama_cuda import CudaLlama, normed_product
from roseinfer.models.mlp import Mlp
from roseinfer.tensors import to_device


class Prompts(NamedTuple):
    """The `B` prompts of a step, with `T` tokens in `N` chunks. Integers are int32.

    Args:
        tokens: `[2, T]`: each token's prompt, and its place in it.
        prompts: `[4, B]`: running row, first token, number of tokens, and whether the row has a state.
        chunks: `[2, N]`: first token and number of tokens.
    """

    tokens: Tensor
    prompts: Tensor
    chunks: Tensor

    @classmethod
    def of(cls, step: StateRows, taps: int, device: torch.device) -> Prompts:
        rows, start, count, continued = np.array(
            [(s.request, s.start, s.count, s.context > 0) for s in step.segments], dtype=np.int32
        ).T
        prompt = np.repeat(np.arange(len(count)), count)
        place = np.arange(count.sum()) - start[prompt]
        first = np.flatnonzero(place % CHUNK == 0)
        length = np.minimum(CHUNK, count[prompt[first]] - place[first])
        arrays = (prompt, place), (rows, start, count, continued), (first, length)
        return cls(*(to_device(np.array(part, dtype=np.int32), device) for part in arrays))


class CudaGatedDelta(GatedDelta):
    """The same layer, with Triton kernels."""

    @staticmethod
    def cut(rows: StateRows, taps: int, device: torch.device) -> Prompts:
        return Prompts.of(rows, taps, device)

    def __call__(self, x: Tensor, step: DeltaStep[Prompts], layer: int) -> Tensor:
        weights = self.kernel, self.decay, self.bias, self.gain, self.key_heads, self.key_dim, self.eps, TINY
        start = 0 if step.prompts is None else step.prompts.tokens.shape[1]
        parts = []
        if step.prompts is not None:
            parts.append(delta_prompts(x[:start], *weights, *step.prompts, *step.states.layer(layer)))
        if step.decodes is not None:
            parts.append(delta_decode(x[start:], *weights, step.decodes, *step.states.layer(layer)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


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
