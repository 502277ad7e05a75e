"""The Llama family (Touvron et al., 2023; Qwen3's norm of queries and keys) over a flat batch of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.attention.base import Attention
from roseinfer.models.config import LlamaConfig
from roseinfer.models.linear import Linear
from roseinfer.models.mlp import Experts, Mlp, Projections, Router, expert_weights
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
    mlp: Mlp | Experts


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
        width, ffn, dim = config.width, config.ffn_width, config.head_dim
        q_width, kv_width = config.heads * dim, config.kv_heads * dim

        def tensor(name: str, *shape: int) -> Tensor:
            return weights.get(name, shape).to(device=device, dtype=dtype)

        def merged(names: dict[str, int], inputs: int, *, bias: bool) -> Linear:
            """One linear layer of the concatenated weights `names`, given with their numbers of outputs."""
            weight = torch.cat([tensor(f"{name}.weight", size, inputs) for name, size in names.items()])
            if not bias:
                return linear(weight, None)
            biases = [tensor(f"{name}.bias", size) for name, size in names.items()]
            return linear(weight, torch.cat(biases))

        def mlp(at: str, number: int) -> Mlp | Experts:
            if config.mixture is None or number not in config.mixture.layers:
                gate_up = {f"{at}.gate_proj": ffn, f"{at}.up_proj": ffn}
                return Mlp(
                    merged(gate_up, width, bias=config.mlp_bias),
                    merged({f"{at}.down_proj": width}, ffn, bias=config.mlp_bias),
                    ops,
                )
            router = (head or linear)(tensor(f"{at}.gate.weight", config.mixture.experts, width), None)
            parts = expert_weights(weights, f"{at}.experts", config.mixture, width)
            return self._experts(
                Router(router, config.mixture),
                ((gate_up.to(device, dtype), down.to(device, dtype)) for gate_up, down in parts),
            )

        def layer(number: int) -> Layer:
            at = f"model.layers.{number}"
            attn = f"{at}.self_attn"
            qkv = {f"{attn}.q_proj": q_width, f"{attn}.k_proj": kv_width, f"{attn}.v_proj": kv_width}
            qk_norm = None
            if config.qk_norm:
                q, k = (tensor(f"{attn}.{part}_norm.weight", dim) for part in "qk")
                qk_norm = torch.cat((q.expand(config.heads, dim), k.expand(config.kv_heads, dim)))
            return Layer(
                norm_1=tensor(f"{at}.input_layernorm.weight", width),
                qkv=merged(qkv, width, bias=config.qkv_bias),
                qk_norm=qk_norm,
                out=merged({f"{attn}.o_proj": width}, q_width, bias=config.out_bias),
                norm_2=tensor(f"{at}.post_attention_layernorm.weight", width),
                mlp=mlp(f"{at}.mlp", number),
            )

        self._tokens = tensor(config.table, config.vocab_size, width)
        self._layers = [layer(number) for number in range(config.layers)]
        self._norm = tensor("model.norm.weight", width)
        tied = config.tied_head
        last = ranks.own_rows(self._tokens) if tied else tensor(HEAD, config.vocab_size, width)
        self._head = (head or linear)(last, None)
        self._turns = config.rope.table(config.max_positions, dim).to(device)  # cos and sin of RoPE

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
