"""The Llama family (Touvron et al., 2023; Qwen3's norm of queries and keys) over a flat batch of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.models.config import LlamaConfig
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import AnyMlp, Experts, Mlp, Projections, Router, expert_weights
from roseinfer.models.model import Model
from roseinfer.models.ops import Ops
from roseinfer.models.ranks import ALONE, Ranks
from roseinfer.models.weights import HEAD, Weights


@dataclass(frozen=True)
class Layer:
    """One transformer block, pre-norm. `norm_1` and `norm_2` are gains of RMS norms, `[width]`.

    `qkv` is the projections of queries, keys and values, concatenated.
    `qk_norm`: gains of the norms of queries and keys, `[heads + kv heads, head_dim]`, or None.
    """

    norm_1: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    norm_2: Tensor
    mlp: AnyMlp


@dataclass(frozen=True)
class Reader:
    """Reads the tensors of a model, and makes linear layers of them."""

    weights: Weights
    device: torch.device
    dtype: torch.dtype
    linear: type[Linear]

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor `name` in `dtype`, or in the model's."""
        return self.weights.get(name, shape).to(device=self.device, dtype=dtype or self.dtype)

    def merged(self, names: dict[str, int], inputs: int, *, bias: bool = False) -> Linear:
        """One linear layer of the concatenated weights `names`, given with their numbers of outputs."""
        weight = torch.cat([self.tensor(f"{name}.weight", size, inputs) for name, size in names.items()])
        if not bias:
            return self.linear(weight, None)
        biases = [self.tensor(f"{name}.bias", size) for name, size in names.items()]
        return self.linear(weight, torch.cat(biases))


class Llama(Model):
    """RMS norm, rotary position embeddings, grouped-query attention, SwiGLU or a mixture of experts."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        *,
        linear: type[Linear],
        ops: Ops,
        head: type[Linear] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`head`: the kind of the LM head, where it is not `linear`. `config` and `weights` are those of this
        rank's shard."""
        self.config: LlamaConfig = config
        self.linear = linear
        self.ranks, self._ops = ranks, ops
        read = Reader(weights, device, dtype, linear)
        self._router = head or linear
        width = config.width
        self._tokens = read.tensor(config.table, config.vocab_size, width)
        self._layers = [self._layer(read, number) for number in range(config.layers)]
        self._norm = self._gain(read, "model.norm.weight", width)
        tied = config.tied_head
        last = ranks.own_rows(self._tokens) if tied else read.tensor(HEAD, config.vocab_size, width)
        self._head = (head or linear)(last, None)
        self._turns = config.rope.table(config.max_positions, config.head_dim).to(device)  # of RoPE

    def _layer(self, read: Reader, number: int) -> Layer:
        config, at = self.config, f"model.layers.{number}"
        attn, width = f"{at}.self_attn", config.width
        return Layer(
            norm_1=self._gain(read, f"{at}.input_layernorm.weight", width),
            qkv=self._qkv(read, attn),
            qk_norm=self._head_gains(read, attn) if config.qk_norm else None,
            out=read.merged({f"{attn}.o_proj": width}, config.heads * config.head_dim, bias=config.out_bias),
            norm_2=self._gain(read, f"{at}.post_attention_layernorm.weight", width),
            mlp=self._mlp(read, f"{at}.mlp", number),
        )

    def _gain(self, read: Reader, name: str, size: int) -> Tensor:
        """The gain of an RMS norm."""
        return read.tensor(name, size)

    def _qkv(self, read: Reader, at: str) -> Linear:
        config = self.config
        sizes = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
        names = {f"{at}.{part}_proj": heads * config.head_dim for part, heads in sizes.items()}
        return read.merged(names, config.width, bias=config.qkv_bias)

    def _head_gains(self, read: Reader, at: str) -> Tensor:
        """Gains of the norms of queries and keys, `[heads + kv heads, head_dim]`."""
        config, dim = self.config, self.config.head_dim
        q, k = (self._gain(read, f"{at}.{part}_norm.weight", dim) for part in "qk")
        return torch.cat((q.expand(config.heads, dim), k.expand(config.kv_heads, dim)))

    def _mlp(self, read: Reader, at: str, number: int) -> AnyMlp:
        config, mixture = self.config, self.config.mixture
        if mixture is None or number not in mixture.layers:
            return self._swiglu(read, at, config.ffn_width)
        router = self._router(read.tensor(f"{at}.gate.weight", mixture.experts, config.width), None)
        parts = expert_weights(read.weights, f"{at}.experts", mixture, config.width)
        return self._experts(
            Router(router, mixture),
            (
                (gate_up.to(read.device, read.dtype), down.to(read.device, read.dtype))
                for gate_up, down in parts
            ),
        )

    def _swiglu(self, read: Reader, at: str, ffn: int) -> Mlp:
        width, bias = self.config.width, self.config.mlp_bias
        gate_up = read.merged({f"{at}.gate_proj": ffn, f"{at}.up_proj": ffn}, width, bias=bias)
        return Mlp(gate_up, read.merged({f"{at}.down_proj": width}, ffn, bias=bias), self._ops)

    def _experts(self, router: Router, parts: Iterable[Projections]) -> Experts:
        """The mixture of a layer, of the projections of each expert."""
        linear, ops = self.linear, self._ops
        return Experts(
            router, (Mlp(linear(gate_up, None), linear(down, None), ops) for gate_up, down in parts)
        )

    @property
    def mixtures(self) -> list[Experts]:
        return [layer.mlp for layer in self._layers if isinstance(layer.mlp, Experts)]

    @property
    def rows_alone(self) -> bool:
        return self.linear.rows_alone and self._ops.rows_alone

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        config, ops, ranks = self.config, self._ops, self.ranks
        eps, rotated = config.norm_eps, config.heads + config.kv_heads
        turns = self._turns[positions]
        x = ranks.embed(tokens, self._tokens)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(ops.rms_norm(x, layer.norm_1, eps)).view(len(x), -1, config.head_dim)
            qk = ops.rotate(qkv[:, :rotated], layer.qk_norm, eps, turns)
            q, k, v = qk[:, : config.heads], qk[:, config.heads :], qkv[:, rotated:]
            x = ranks.add(layer.out, attention.attend(index, q, k, v), x)
            x = ranks.add(layer.mlp, ops.rms_norm(x, layer.norm_2, eps), x)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return self.ranks.whole(self._head(self._ops.rms_norm(hidden, self._norm, self.config.norm_eps)))
