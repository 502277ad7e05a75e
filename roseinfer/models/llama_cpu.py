"""A Llama on a CPU whose decode steps are kernel calls that are prepared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.kernels.cpu import ops
from roseinfer.kernels.cpu.build import Call
from roseinfer.kernels.cpu.linear import linear_call
from roseinfer.kernels.cpu.paged import DecodeCall, Pointers
from roseinfer.models.cpu import CpuLinear
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Layer, Llama
from roseinfer.models.mlp import Mlp

#: Steps of more rows run operator by operator: what that costs does not grow with the rows.
MOST_ROWS = 64


@dataclass(frozen=True)
class Step:
    """A decode step of so many rows. `run` leaves the hidden states in `x`.

    Args:
        x, turns: its inputs, the embeddings `[T, width]` and what `Ops.rotate` takes.
        layers: of each layer, the calls before its attention, and the attention.
        last: the calls after the last attention.
    """

    x: Tensor
    turns: Tensor
    layers: list[tuple[list[Call], DecodeCall]]
    last: list[Call]

    def run(self, arrays: Pointers) -> Tensor:
        for calls, attend in self.layers:
            for call in calls:
                call()
            attend(arrays)
        for call in self.last:
            call()
        return self.x


class CpuLlama(Llama):
    """A Llama whose linear layers are CpuLinear, and whose operators are CpuOps. Between the kernels of a
    decode step nothing is allocated, and no operator of PyTorch runs."""

    _steps: dict[int, Step]
    _attention: Attention | None = None

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        rows = len(tokens)
        if not isinstance(attention, CpuPagedAttention) or not attention.only_decodes or rows > MOST_ROWS:
            return super().forward(tokens, positions, attention)
        if attention is not self._attention:
            self._attention, self._steps = attention, {}
        if rows not in self._steps:
            self._steps[rows] = self.prepare(rows, attention)
        step = self._steps[rows]
        torch.index_select(self._tokens, 0, tokens, out=step.x)
        torch.index_select(self._turns, 0, positions, out=step.turns)
        return step.run(attention.pointers)

    @cached_property
    def _buffers(self) -> tuple[Tensor, ...]:
        """Tensors between the kernels of a step of MOST_ROWS rows: x, normed, qkv, attended, gates with what
        they gate, their products, turns."""
        config = self.config
        shapes = [
            (config.width,), (config.width,), (config.heads + 2 * config.kv_heads, config.head_dim),
            (config.heads, config.head_dim), (2 * config.ffn_width,), (config.ffn_width,),
        ]  # fmt: skip
        turns = self._turns.new_empty(MOST_ROWS, *self._turns.shape[1:])
        return (*(self._tokens.new_empty(MOST_ROWS, *shape) for shape in shapes), turns)

    def prepare(self, rows: int, attention: CpuPagedAttention) -> Step:
        config, rotated = self.config, self.config.heads + self.config.kv_heads
        x, normed, qkv, attended, gate_up, product, turns = (buffer[:rows] for buffer in self._buffers)
        q, k, v = qkv[:, : config.heads], qkv[:, config.heads : rotated], qkv[:, rotated:]

        def linear(layer: Linear, x: Tensor, out: Tensor, residual: Tensor | None = None) -> Call:
            assert isinstance(layer, CpuLinear)
            return linear_call(x, layer.packed, out, residual)

        def before(layer: Layer) -> list[Call]:
            return [
                ops.rms_norm_call(x, layer.norm_1, config.norm_eps, normed),
                linear(layer.qkv, normed, qkv),
                ops.rotate_call(qkv[:, :rotated], layer.qk_norm, config.norm_eps, turns),
            ]

        def after(layer: Layer) -> list[Call]:
            mlp = layer.mlp
            assert isinstance(mlp, Mlp)
            return [
                linear(layer.out, attended, x, x),
                ops.rms_norm_call(x, layer.norm_2, config.norm_eps, normed),
                linear(mlp.gate_up, normed, gate_up),
                ops.swiglu_call(gate_up, product),
                linear(mlp.down, product, x, x),
            ]

        layers, calls = [], list[Call]()
        for index, layer in enumerate(self._layers):
            layers.append(([*calls, *before(layer)], attention.decode_call(index, q, k, v, attended)))
            calls = after(layer)
        return Step(x, turns, layers, calls)
