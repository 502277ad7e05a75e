"""Random GPT-2 models as Hugging Face folders, seeded and the same everywhere; numpy and safetensors only.

GPT-2's own initialisation (normal, 0.02 everywhere) with tied embeddings makes greedy decoding repeat its
last token: what the layers add is small beside the token's own embedding. Here the attention and MLP matrices
have a standard deviation of 1.6 / sqrt(width), the position embeddings 0.05 and the token embeddings 0.02.
With that, 64 greedy tokens after a random prompt hold at least 36 distinct ones (gpt2-tiny and gpt2, eight
prompts each), differ from prompt to prompt, and bf16 picks the token of fp32 in 94 to 96 of 100 steps.
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

VOCAB_SIZE = tokenizer.GPT2_VOCAB
CONTEXT = 1_024
END_OF_TEXT_ID = tokenizer.end_of_text_id(VOCAB_SIZE)
SEED = 0
TOKEN_STD = 0.02
POSITION_STD = 0.05
MATRIX_GAIN = 1.6


@dataclass(frozen=True)
class Shape:
    """A GPT-2's size: layers, width in elements, attention heads."""

    layers: int
    width: int
    heads: int


#: `random:NAME` models. The tiny one has 16.3M parameters, gpt2 has 124M.
SHAPES = {
    "gpt2-tiny": Shape(4, 256, 4),
    "gpt2": Shape(12, 768, 12),
    "gpt2-medium": Shape(24, 1024, 16),
    "gpt2-large": Shape(36, 1280, 20),
    "gpt2-xl": Shape(48, 1600, 25),
}


def write(folder: Path, shape: Shape) -> None:
    """Write config, weights and tokenizer of a random GPT-2 into an existing empty folder."""
    write_json(folder / "config.json", config(shape))
    write_json(
        folder / "generation_config.json", {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID}
    )
    save_file(dict(weights(shape)), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.write(folder, VOCAB_SIZE, CONTEXT)


def config(shape: Shape) -> dict[str, Any]:
    """config.json; `random_weights` says how the weights were drawn."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": shape.layers,
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_positions": CONTEXT,
        "n_ctx": CONTEXT,
        "vocab_size": VOCAB_SIZE,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": TOKEN_STD,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "random_weights": {
            "seed": SEED,
            "token_std": TOKEN_STD,
            "position_std": POSITION_STD,
            "matrix_std": _matrix_std(shape),
        },
    }


def weights(shape: Shape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by its Hugging Face name, float32. Matrices of the layers are `[in, out]`."""
    generator = np.random.Generator(np.random.Philox(SEED))

    def normal(std: float, *size: int) -> NDArray[np.float32]:
        drawn = generator.standard_normal(size, dtype=np.float32)
        drawn *= np.float32(std)
        return drawn

    def norm(name: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield f"{name}.weight", np.ones(width, dtype=np.float32)
        yield f"{name}.bias", np.zeros(width, dtype=np.float32)

    def linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield f"{name}.weight", normal(_matrix_std(shape), inputs, outputs)
        yield f"{name}.bias", np.zeros(outputs, dtype=np.float32)

    width = shape.width
    yield "transformer.wte.weight", normal(TOKEN_STD, VOCAB_SIZE, width)
    yield "transformer.wpe.weight", normal(POSITION_STD, CONTEXT, width)
    for layer in range(shape.layers):
        prefix = f"transformer.h.{layer}"
        yield from norm(f"{prefix}.ln_1")
        yield from linear(f"{prefix}.attn.c_attn", width, 3 * width)
        yield from linear(f"{prefix}.attn.c_proj", width, width)
        yield from norm(f"{prefix}.ln_2")
        yield from linear(f"{prefix}.mlp.c_fc", width, 4 * width)
        yield from linear(f"{prefix}.mlp.c_proj", 4 * width, width)
    yield from norm("transformer.ln_f")


def _matrix_std(shape: Shape) -> float:
    return float(MATRIX_GAIN / np.sqrt(shape.width))
