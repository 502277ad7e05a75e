"""Model shapes, read from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from roseinfer.config import ConfigError
from roseinfer.kvcache.pool import KVShape
from roseinfer.kvcache.states import StateShape
from roseinfer.models.rope import Rope, number


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape. Lengths in tokens, widths in elements. `tied_head`: the LM head's weight is the
    embedding table."""

    family: str
    vocab_size: int
    max_positions: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    norm_eps: float
    eos_token_ids: tuple[int, ...]
    tied_head: bool

    @property
    def table(self) -> str:
        """The embedding table's name in checkpoints."""
        return "transformer.wte.weight" if self.family == "gpt2" else "model.embed_tokens.weight"

    @property
    def tied_table(self) -> str | None:
        """`table`, where it is the LM head's weight too."""
        return self.table if self.tied_head else None

    @property
    def ffn_widths(self) -> tuple[int, ...]:
        """Widths of MLPs and experts."""
        return (self.ffn_width,)

    @property
    def state_shape(self) -> StateShape | None:
        """A request's state beside its keys and values; None where it has none."""
        return None

    def kv_shape(self, dtype: torch.dtype) -> KVShape:
        """A token's entry in a KV cache of `dtype`."""
        return KVShape(self.layers, self.kv_heads, self.head_dim, dtype)


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the weight matrices of all layers, which every step of many rows reads."""
    attention = 2 * (config.heads + config.kv_heads) * config.head_dim
    ffn = (3 if isinstance(config, LlamaConfig) else 2) * config.ffn_width
    per_width = config.layers * (attention + ffn)
    if isinstance(config, LlamaConfig) and config.mixture is not None:
        mixture = config.mixture
        per_width += len(mixture.layers) * (mixture.experts * (3 * mixture.ffn_width + 1) - ffn)
    return per_width * config.width * dtype.itemsize


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts instead of the MLP of the layers `layers`.

    Args:
        experts: in each of these layers; `top_k` of them compute a token.
        ffn_width: of an expert.
        normalized: the weights of a token's experts add up to 1.
        shared_width: of the expert that computes every token; 0: there is none.
    """

    experts: int
    top_k: int
    ffn_width: int
    normalized: bool
    layers: frozenset[int]
    shared_width: int = 0


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """The differences between models of the Llama family."""

    rope: Rope
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    mixture: Mixture | None = None

    @property
    def ffn_widths(self) -> tuple[int, ...]:
        return (self.ffn_width,) if self.mixture is None else (self.ffn_width, self.mixture.ffn_width)


@dataclass(frozen=True)
class HybridConfig(LlamaConfig):
    """A Qwen3.5: in the layers `linear`, which hold `state`, a gated delta rule with `key_heads` heads of
    queries and keys instead of attention; rotary embeddings of a part of each head."""

    linear: frozenset[int] = frozenset()
    key_heads: int = 0
    state: StateShape | None = None

    @property
    def state_shape(self) -> StateShape | None:
        return self.state

    def kv_shape(self, dtype: torch.dtype) -> KVShape:
        return KVShape(self.layers - len(self.linear), self.kv_heads, self.head_dim, dtype, self.state)


def gpt2(raw: dict[str, Any]) -> ModelConfig:
    """GPT-2's config, with its defaults."""
    if raw.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ConfigError(f"activation_function {raw['activation_function']!r} is not GPT-2's gelu_new")
    if raw.get("scale_attn_by_inverse_layer_idx"):
        raise ConfigError("scale_attn_by_inverse_layer_idx is not supported")
    if not raw.get("scale_attn_weights", True):
        raise ConfigError(f"scale_attn_weights {raw['scale_attn_weights']!r} is not supported")
    width, heads = _size(raw, "n_embd", 768), _size(raw, "n_head", 12)
    if width % heads:
        raise ConfigError(f"n_embd {width} is not a multiple of n_head {heads}")
    return ModelConfig(
        family="gpt2",
        vocab_size=_size(raw, "vocab_size", 50257),
        max_positions=_size(raw, "n_positions", 1024),
        layers=_size(raw, "n_layer", 12),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        ffn_width=_optional_size(raw, "n_inner", 4 * width),
        norm_eps=number("layer_norm_epsilon", raw.get("layer_norm_epsilon", 1e-5)),
        eos_token_ids=_ids(raw.get("eos_token_id", 50256)),
        tied_head=bool(raw.get("tie_word_embeddings", True)),
    )


def llama(raw: dict[str, Any]) -> LlamaConfig:
    """A config of Llama, Qwen2, Qwen3 or Qwen3-MoE, which differ in biases, in norms of queries and keys, and
    in mixtures of experts."""
    family = raw["model_type"]
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):  # synonyms
        raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported; roseinfer has: silu")
    if _slides(raw):
        raise ConfigError("sliding windows are not supported")
    width, heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
    kv_heads = _optional_size(raw, "num_key_value_heads", heads)
    head_dim = _optional_size(raw, "head_dim", _HEAD_DIMS.get(family, width // heads))
    if heads % kv_heads or head_dim % 2:
        raise ConfigError(f"{heads} heads, {kv_heads} KV heads and head size {head_dim} do not divide evenly")
    bias = bool(raw.get("attention_bias", False))
    rope = Rope.parse(raw)
    if rope.share != 1 and family not in _HYBRIDS:
        raise ConfigError("partial_rotary_factor is not supported")
    return LlamaConfig(
        family=family,
        vocab_size=_size(raw, "vocab_size"),
        max_positions=rope.reach(_size(raw, "max_position_embeddings")),
        layers=_size(raw, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=_size(
            raw, "moe_intermediate_size" if family == "qwen3_5_moe_text" else "intermediate_size"
        ),
        norm_eps=number("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        eos_token_ids=_ids(raw.get("eos_token_id")),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        rope=rope,
        qkv_bias=bias or family == "qwen2",
        out_bias=bias and family != "qwen2",
        mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
        qk_norm=family.startswith("qwen3"),
        mixture=_mixture(raw) if "_moe" in family else None,
    )


def hybrid(raw: dict[str, Any]) -> HybridConfig:
    """The config of a Qwen3.5's text model, with transformers' defaults."""
    if raw.get("attention_bias"):
        raise ConfigError("attention_bias is not supported for Qwen3.5")
    base = llama({"partial_rotary_factor": 0.25, "norm_topk_prob": True} | raw)
    interval = _size(raw, "full_attention_interval", 4)
    kinds = raw.get("layer_types") or [
        "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
        for layer in range(base.layers)
    ]
    if len(kinds) != base.layers or {"full_attention"} != {*kinds} - {"linear_attention"}:
        raise ConfigError(
            f"layer_types must name {base.layers} layers, of full or linear attention, with at least one of "
            f"the former: {kinds!r:.200}"
        )
    key_heads, heads = _size(raw, "linear_num_key_heads", 16), _size(raw, "linear_num_value_heads", 32)
    if heads % key_heads:
        raise ConfigError(
            f"linear_num_value_heads {heads} is not a multiple of linear_num_key_heads {key_heads}"
        )
    key_dim, value_dim = (_size(raw, f"linear_{part}_head_dim", 128) for part in ("key", "value"))
    linear = frozenset(layer for layer, kind in enumerate(kinds) if kind == "linear_attention")
    channels = 2 * key_heads * key_dim + heads * value_dim
    if (taps := _size(raw, "linear_conv_kernel_dim", 4)) < 2:
        raise ConfigError("linear_conv_kernel_dim must be at least 2")
    share = base.rope.share
    if share > 1 or int(base.head_dim * share) % 2:
        raise ConfigError(
            f"partial_rotary_factor {share} rotates no even number of a head's {base.head_dim} elements"
        )
    state = StateShape(len(linear), heads, key_dim, value_dim, channels, taps)
    fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    return HybridConfig(**fields, linear=linear, key_heads=key_heads, state=state)


def _mixture(raw: dict[str, Any]) -> Mixture:
    """The mixture of a Qwen3-MoE, with transformers' defaults, in the layers that have one there."""
    name = "num_experts" if "num_experts" in raw else "num_local_experts"
    experts, top_k = _size(raw, name), _size(raw, "num_experts_per_tok", 8)
    if top_k > experts:
        raise ConfigError(f"num_experts_per_tok {top_k} is above {name} {experts}")
    step, dense = _size(raw, "decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    layers = range(_size(raw, "num_hidden_layers"))
    return Mixture(
        experts=experts,
        top_k=top_k,
        ffn_width=_size(raw, "moe_intermediate_size"),
        normalized=bool(raw.get("norm_topk_prob", False)),
        layers=frozenset(layer for layer in layers if layer not in dense and (layer + 1) % step == 0),
        shared_width=_size(raw, "shared_expert_intermediate_size", 512)
        if raw["model_type"] in _HYBRIDS
        else 0,
    )


def _slides(raw: dict[str, Any]) -> bool:
    """Return whether a layer has a sliding window, as in transformers: the first `max_window_layers` have
    none."""
    if layer_types := raw.get("layer_types"):
        return "sliding_attention" in layer_types
    slides = raw.get("use_sliding_window") and raw.get("sliding_window", 4096) is not None
    return bool(slides) and raw.get("max_window_layers", 28) < _size(raw, "num_hidden_layers")


_HYBRIDS = ("qwen3_5_text", "qwen3_5_moe_text")
#: Where a config does not say it, and it is not the width of all heads by their number.
_HEAD_DIMS = {"qwen3": 128, **dict.fromkeys(_HYBRIDS, 256)}
_FAMILIES: dict[str, Callable[[dict[str, Any]], ModelConfig]] = {
    "gpt2": gpt2,
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3_moe"), llama),
    **dict.fromkeys(_HYBRIDS, hybrid),
}


def _text(raw: dict[str, Any]) -> dict[str, Any]:
    """The text model's config of one that also has images, whose own values come first."""
    text = raw.get("text_config")
    if not isinstance(text, dict) or raw.get("model_type") not in ("qwen3_5", "qwen3_5_moe"):
        return raw
    outer = {name: value for name, value in raw.items() if value is not None and name != "text_config"}
    return text | outer | {"model_type": f"{raw['model_type']}_text"}


def parse(raw: dict[str, Any]) -> ModelConfig:
    """A Hugging Face config. Raises ConfigError for a family, or a member of one, that is not implemented."""
    raw = _text(raw)
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise ConfigError(f"model_type {family!r} is not supported; roseinfer runs: {', '.join(_FAMILIES)}")
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method")
        raise ConfigError(f"the weights are quantized ({method}); give the model in bf16, fp16 or fp32")
    try:
        return _FAMILIES[family](raw)
    except KeyError as error:
        raise ConfigError(f"the config does not give {error.args[0]}") from None


def read(folder: Path) -> ModelConfig:
    """The shape of the model in `folder`. Raises ConfigError."""
    file = folder / "config.json"
    try:
        raw = _text(json.loads(file.read_text()))
        generation = folder / "generation_config.json"
        if generation.is_file():  # chat models name their end of turn here
            ends = json.loads(generation.read_text()).get("eos_token_id")
            if every := {*_ids(raw.get("eos_token_id")), *_ids(ends)}:
                raw["eos_token_id"] = sorted(every)
        return parse(raw)
    except (OSError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(f"{file} is not a model's config: {error}") from error


def _size(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    """The size `name` of a config. Raises KeyError where it is missing and has no default, and ConfigError
    unless it is a whole number above 0."""
    value = raw[name] if default is None else raw.get(name, default)
    if type(value) is not int or value < 1:
        raise ConfigError(f"the config says {name} {value!r}, which is not a whole number above 0")
    return value


def _optional_size(raw: dict[str, Any], name: str, default: int) -> int:
    """Return what `_size` does for a value that may be missing or null."""
    return default if raw.get(name) is None else _size(raw, name)


def _ids(value: Any) -> tuple[int, ...]:
    """Token ids in an `eos_token_id`; a negative id stands for none. Raises ConfigError for another type."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token) is not int for token in ids):
        raise ConfigError(f"the config says eos_token_id {value!r}, which is no token id or list of them")
    return tuple(token for token in ids if token >= 0)
