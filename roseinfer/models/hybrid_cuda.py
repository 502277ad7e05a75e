"""Qwen3.5 on a GPU with fused kernels: of a gated delta layer three for generated tokens, four for
prompts."""

from __future__ import annotations

from functools import cached_property
from itertools import count
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from roseinfer.attention.cuda_paged import CudaPagedAttention
from roseinfer.kernels.triton.delta import delta_decode
from roseinfer.kernels.triton.delta_prompts import CHUNK, delta_prompts
from roseinfer.kvcache.states import StateRows
from roseinfer.models.config import HybridConfig
from roseinfer.models.delta import TINY, DeltaStep, GatedDelta
from roseinfer.models.hybrid import DeltaLayer, Hybrid
from roseinfer.models.llama import Layer
from roseinfer.models.llama_cuda import CudaLlama, Mix
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

    def _mixing(self, positions: Tensor | None, attention: CudaPagedAttention) -> Mix:
        step, heads = self._step(attention, self._norm.device), self._heads
        attended = (heads.queries + 2 * heads.keys) * heads.dim

        def mix(index: int, layer: Layer, product: Tensor) -> Tensor:
            if isinstance(layer, DeltaLayer):
                return layer.delta(product, step, self._places[index])
            qkv, gates = product.tensor_split((attended,), 1)
            place, rotation = self._places[index], self._rotations[index]
            out = attention.attend_product(place, qkv, positions, heads, rotation)
            return out * gates.sigmoid()

        return mix

    @cached_property
    def _places(self) -> list[int]:
        """Each layer's number among those of its kind."""
        numbers = {True: count(), False: count()}
        return [next(numbers[isinstance(layer, DeltaLayer)]) for layer in self._layers]
