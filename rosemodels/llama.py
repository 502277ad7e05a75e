"""Random models of the Llama family as Hugging Face folders, seeded and the same everywhere.

The standard deviations are those of the random GPT-2: token embeddings 0.02, matrices 1.6 / sqrt(width).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rosemodels import tokenizer
from rosemodels.files import write_json

SEED = 0
TOKEN_STD = 0.02
MATRIX_GAIN = 1.6


@dataclass(frozen=True)
class Shape:
    """A Llama's size: widths in elements, lengths in tokens. The head is tied to the embeddings.

    With `qk_norm` it is a Qwen3: queries and keys are normalised head by head.
    """

    vocab_size: int
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    rope_theta: float
    qk_norm: bool = False


#: `random:NAME` models, in the sizes of the real ones; llama-tiny has 16.3M parameters.
SHAPES = {
    "llama-tiny": Shape(50_257, 2_048, 4, 256, 4, 2, 64, 768, 10_000.0),
    "smollm2-135m": Shape(49_152, 8_192, 30, 576, 9, 3, 64, 1_536, 100_000.0),
    "qwen3-0.6b": Shape(151_936, 40_960, 28, 1_024, 16, 8, 128, 3_072, 1_000_000.0, qk_norm=True),
}


def write(folder: Path, shape: Shape) -> None:
    """Write config, weights and tokenizer of a random Llama into an existing empty folder."""
    end = tokenizer.end_of_text_id(shape.vocab_size)
    write_json(folder / "config.json", config(shape))
    write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end})
    save_file(dict(weights(shape)), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.write(folder, shape.vocab_size, shape.context)


def config(shape: Shape) -> dict[str, Any]:
    """config.json; `random_weights` says how the weights were drawn."""
    end = tokenizer.end_of_text_id(shape.vocab_size)
    return {
        "architectures": ["Qwen3ForCausalLM" if shape.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_width,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "initializer_range": TOKEN_STD,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "random_weights": {"seed": SEED, "token_std": TOKEN_STD, "matrix_std": _matrix_std(shape)},
    }


def weights(shape: Shape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by its Hugging Face name, float32. Matrices are `[out, in]`."""
    generator = np.random.Generator(np.random.Philox(SEED))

    def normal(std: float, *size: int) -> NDArray[np.float32]:
        drawn = generator.standard_normal(size, dtype=np.float32)
        drawn *= np.float32(std)
        return drawn

    def matrix(name: str, outputs: int, inputs: int) -> tuple[str, NDArray[np.float32]]:
        return f"{name}.weight", normal(_matrix_std(shape), outputs, inputs)

    def norm(name: str, size: int) -> tuple[str, NDArray[np.float32]]:
        return f"{name}.weight", np.ones(size, dtype=np.float32)

    width, dim = shape.width, shape.head_dim
    yield "model.embed_tokens.weight", normal(TOKEN_STD, shape.vocab_size, width)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield norm(f"{prefix}.input_layernorm", width)
        yield matrix(f"{prefix}.self_attn.q_proj", shape.heads * dim, width)
        yield matrix(f"{prefix}.self_attn.k_proj", shape.kv_heads * dim, width)
        yield matrix(f"{prefix}.self_attn.v_proj", shape.kv_heads * dim, width)
        if shape.qk_norm:
            yield norm(f"{prefix}.self_attn.q_norm", dim)
            yield norm(f"{prefix}.self_attn.k_norm", dim)
        yield matrix(f"{prefix}.self_attn.o_proj", width, shape.heads * dim)
        yield norm(f"{prefix}.post_attention_layernorm", width)
        yield matrix(f"{prefix}.mlp.gate_proj", shape.ffn_width, width)
        yield matrix(f"{prefix}.mlp.up_proj", shape.ffn_width, width)
        yield matrix(f"{prefix}.mlp.down_proj", width, shape.ffn_width)
    yield norm("model.norm", width)


def _matrix_std(shape: Shape) -> float:
    return float(MATRIX_GAIN / np.sqrt(shape.width))
