"""Shapes of models: read from a Hugging Face config.json, or named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roseinfer.config import ConfigError
from roseinfer.folder import RANDOM, model_folder


@dataclass(frozen=True)
class ModelConfig:
    """A decoder's shape. Lengths in tokens, widths in elements."""

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


def _gpt2(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads}


#: `random:NAME` models: these shapes with seeded random weights.
RANDOM_SHAPES = {
    "gpt2-tiny": _gpt2(4, 256, 4),
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
}


def parse(raw: dict[str, Any]) -> ModelConfig:
    """A Hugging Face config. Raises ConfigError for a family that is not implemented."""
    family = raw.get("model_type")
    if family != "gpt2":
        raise ConfigError(f"model_type {family!r} is not supported; roseinfer runs: gpt2")
    if raw.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ConfigError(f"activation_function {raw['activation_function']!r} is not GPT-2's gelu_new")
    if raw.get("scale_attn_by_inverse_layer_idx"):
        raise ConfigError("scale_attn_by_inverse_layer_idx is not supported")
    width, heads = raw.get("n_embd", 768), raw.get("n_head", 12)
    if width % heads:
        raise ConfigError(f"n_embd {width} is not a multiple of n_head {heads}")
    eos = raw.get("eos_token_id", 50256)
    return ModelConfig(
        family="gpt2",
        vocab_size=raw.get("vocab_size", 50257),
        max_positions=raw.get("n_positions", 1024),
        layers=raw.get("n_layer", 12),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        ffn_width=raw.get("n_inner") or 4 * width,
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    )


def read(model: str) -> tuple[ModelConfig, Path | None]:
    """The shape of `model`, and its folder of weights (None for `random:NAME`)."""
    folder = model_folder(model)
    if folder is not None:
        file = folder / "config.json"
        try:
            return parse(json.loads(file.read_text())), folder
        except (ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
            raise ConfigError(f"{file} is not a model's config: {error}") from error
    shape = RANDOM_SHAPES.get(model.removeprefix(RANDOM))
    if shape is None:
        names = ", ".join(RANDOM + name for name in RANDOM_SHAPES)
        raise ConfigError(f"no random model {model!r}; there are {names}")
    return parse(shape), None
