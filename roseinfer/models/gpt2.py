"""GPT-2 (Radford et al., 2019) over a flat batch of tokens from any number of requests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from roseinfer.attention.base import Attention
from roseinfer.models.config import ModelConfig
from roseinfer.models.linear import Linear
from roseinfer.models.model import Model
from roseinfer.models.ranks import ALONE, Ranks
from roseinfer.models.weights import HEAD, Weights


@dataclass(frozen=True)
class Norm:
    """Layer normalisation with gain and bias."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class Layer:
    """One transformer block, pre-norm."""

    norm_1: Norm
    qkv: Linear
    out: Linear
    norm_2: Norm
    up: Linear
    down: Linear


class GPT2(Model):
    """Layer norm, learned positions, GELU, tied or untied LM head."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        *,
        linear: type[Linear],
        ranks: Ranks = ALONE,
    ) -> None:
        """`config` and `weights` are those of this rank's shard."""
        self.config = config
        self.linear = linear
        self.ranks = ranks
        width, ffn = config.width, config.ffn_width
        heads = config.heads * config.head_dim

        def tensor(name: str, *shape: int) -> Tensor:
            return weights.get(name, shape).to(device=device, dtype=dtype)

        def norm(name: str) -> Norm:
            return Norm(tensor(f"{name}.weight", width), tensor(f"{name}.bias", width), config.norm_eps)

        def layer(name: str, inputs: int, outputs: int) -> Linear:
            # GPT-2 checkpoints store [in, out].
            weight = tensor(f"{name}.weight", inputs, outputs).t()
            return linear(weight, tensor(f"{name}.bias", outputs))

        self._tokens = tensor(config.table, config.vocab_size, width)
        self._positions = tensor("transformer.wpe.weight", config.max_positions, width)
        self._layers = [
            Layer(
                norm_1=norm(f"transformer.h.{i}.ln_1"),
                qkv=layer(f"transformer.h.{i}.attn.c_attn", width, 3 * heads),
                out=layer(f"transformer.h.{i}.attn.c_proj", heads, width),
                norm_2=norm(f"transformer.h.{i}.ln_2"),
                up=layer(f"transformer.h.{i}.mlp.c_fc", width, ffn),
                down=layer(f"transformer.h.{i}.mlp.c_proj", ffn, width),
            )
            for i in range(config.layers)
        ]
        self._norm = norm("transformer.ln_f")
        head = self._tokens if config.tied_head else tensor(HEAD, config.vocab_size, width)
        self._head = linear(head, None)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        ranks = self.ranks
        x = ranks.embed(tokens, self._tokens) + F.embedding(positions, self._positions)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(layer.norm_1(x)).view(len(x), 3, -1, self.config.head_dim).unbind(1)
            x = ranks.add(layer.out, attention.attend(index, q, k, v), x)
            x = ranks.add(layer.down, layer.up.gelu(layer.norm_2(x)), x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ranks.whole(self._head(self._norm(hidden)))
