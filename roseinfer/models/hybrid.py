"""Qwen3.5 over a flat batch of tokens: most layers have a gated delta rule, the others gated attention."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.models.config import HybridConfig
from roseinfer.models.delta import DeltaStep, GatedDelta
from roseinfer.models.linear import Linear
from roseinfer.models.llama import Layer, Llama, Reader
from roseinfer.models.mlp import AnyMlp, Experts, SharedExpert


@dataclass(frozen=True)
class DeltaLayer(Layer):
    """A layer with a gated delta rule instead of attention, whose inputs `qkv` makes."""

    delta: GatedDelta


class Hybrid(Llama):
    """A Llama with `DeltaLayer`s. The QKV projection of other layers has the gates of attention's results
    after the values, and rotates heads in the order of `Rope.order`."""

    config: HybridConfig
    #: What computes the gated delta rule.
    rule: ClassVar[type[GatedDelta]] = GatedDelta

    def _gain(self, read: Reader, name: str, size: int) -> Tensor:
        """Checkpoints have the difference to 1."""
        return (1 + read.tensor(name, size, dtype=torch.float32)).to(read.dtype)

    def _layer(self, read: Reader, number: int) -> Layer:
        if number not in self.config.linear:
            return super()._layer(read, number)
        config, at = self.config, f"model.layers.{number}"
        state, delta = config.state, f"{at}.linear_attn"
        assert state is not None
        width, values = config.width, state.heads * state.value_dim
        sizes = {"qkv": state.channels, "z": values, "b": state.heads, "a": state.heads}
        rates = (read.tensor(f"{delta}.{n}", state.heads, dtype=torch.float32) for n in ("A_log", "dt_bias"))
        decay, bias = rates
        kernel = read.tensor(f"{delta}.conv1d.weight", state.channels, 1, state.taps, dtype=torch.float32)
        return DeltaLayer(
            norm_1=self._gain(read, f"{at}.input_layernorm.weight", width),
            qkv=read.merged({f"{delta}.in_proj_{name}": size for name, size in sizes.items()}, width),
            qk_norm=None,
            delta=self.rule(
                kernel.squeeze(1).t().contiguous(),
                -decay.exp(),
                bias,
                read.tensor(f"{delta}.norm.weight", state.value_dim, dtype=torch.float32),
                config.key_heads,
                state.key_dim,
                config.norm_eps,
            ),
            out=read.merged({f"{delta}.out_proj": width}, values),
            norm_2=self._gain(read, f"{at}.post_attention_layernorm.weight", width),
            mlp=self._mlp(read, f"{at}.mlp", number),
        )

    def _qkv(self, read: Reader, at: str) -> Linear:
        config, dim, width = self.config, self.config.head_dim, self.config.width
        order = config.rope.order(dim)
        q, gate = (
            read.tensor(f"{at}.q_proj.weight", 2 * config.heads * dim, width)
            .view(-1, 2, dim, width)
            .unbind(1)
        )
        k, v = (read.tensor(f"{at}.{part}_proj.weight", config.kv_heads * dim, width) for part in "kv")
        k = k.view(-1, dim, width)[:, order]
        return read.linear(torch.cat([part.reshape(-1, width) for part in (q[:, order], k, v, gate)]), None)

    def _head_gains(self, read: Reader, at: str) -> Tensor:
        return super()._head_gains(read, at)[:, self.config.rope.order(self.config.head_dim)]

    def _mlp(self, read: Reader, at: str, number: int) -> AnyMlp:
        mlp, mixture = super()._mlp(read, at, number), self.config.mixture
        if mixture is None or not isinstance(mlp, Experts):
            return mlp
        gate = read.merged({f"{at}.shared_expert_gate": 1}, self.config.width)
        return SharedExpert(mlp, self._swiglu(read, f"{at}.shared_expert", mixture.shared_width), gate)

    @property
    def rows_alone(self) -> bool:
        return False  # a state differs in the last bits between a prompt and a generated token

    @property
    def mixtures(self) -> list[Experts]:
        return [layer.mlp.experts for layer in self._layers if isinstance(layer.mlp, SharedExpert)]

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        config, ops = self.config, self._ops
        step = self._step(attention, tokens.device)
        turns = self._turns[positions]
        x = self.ranks.embed(tokens, self._tokens)
        deltas, attentions = count(), count()
        for layer in self._layers:
            normed = ops.rms_norm(x, layer.norm_1, config.norm_eps)
            if isinstance(layer, DeltaLayer):
                mixed = layer.delta(layer.qkv(normed), step, next(deltas))
            else:
                mixed = self._attend(layer, normed, turns, attention, next(attentions))
            x = layer.out.add(mixed, x)
            x = layer.mlp.add(ops.rms_norm(x, layer.norm_2, config.norm_eps), x)
        return x

    def _step(self, attention: Attention, device: torch.device) -> DeltaStep[Any]:
        assert self.config.state is not None
        return self.rule.step(attention.state_rows, self.config.state.taps, device)

    def _attend(self, layer: Layer, x: Tensor, turns: Tensor, attention: Attention, index: int) -> Tensor:
        """Gated attention of `x` `[T, width]`, in layer `index` of the KV cache."""
        config, rotated = self.config, self.config.heads + self.config.kv_heads
        qkv = layer.qkv(x).view(len(x), -1, config.head_dim)
        qk = self._ops.rotate(qkv[:, :rotated], layer.qk_norm, config.norm_eps, turns)
        v, gates = qkv[:, rotated:].tensor_split((config.kv_heads,), 1)
        out = attention.attend(index, qk[:, : config.heads], qk[:, config.heads :], v)
        return out * gates.flatten(1).sigmoid()
