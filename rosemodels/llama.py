"""Random models of the Llama family as Hugging Face folders, seeded and the same everywhere.

The standard deviations are those of the random GPT-2: token embeddings 0.02, matrices 1.6 / sqrt(width).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rosemodels import tokenizer
from rosemodels.files import write_json
from rosemodels.random_tensors import Dtype, RandomTensor, write_tensors

TOKEN_STD = 0.02
MATRIX_GAIN = 1.6
#: Inputs that each output of a Qwen3.5's convolution sees.
TAPS = 4


@dataclass(frozen=True)
class Delta:
    """The gated delta layers of a Qwen3.5, three of four: heads of queries and keys, and of values, of size
    `dim`."""

    key_heads: int
    heads: int
    dim: int

    def settings(self, layers: int, rope_theta: float) -> dict[str, Any]:
        """Return what they add to config.json."""
        return {
            "layer_types": [
                "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)
            ],
            "full_attention_interval": 4,
            "mamba_ssm_dtype": "float32",
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.heads,
            "linear_key_head_dim": self.dim,
            "linear_value_head_dim": self.dim,
            "linear_conv_kernel_dim": TAPS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": rope_theta,
                "partial_rotary_factor": 0.25,
            },
        }

    def tensors(self, at: str, width: int, std: float) -> Iterator[RandomTensor]:
        """The tensors of the layer `at`, whose matrices have standard deviation `std`."""
        values = self.heads * self.dim
        channels = 2 * self.key_heads * self.dim + values
        for name, outputs in {"qkv": channels, "z": values, "b": self.heads, "a": self.heads}.items():
            yield RandomTensor(f"{at}.in_proj_{name}.weight", (outputs, width), std)
        yield RandomTensor(f"{at}.conv1d.weight", (channels, 1, TAPS), TAPS**-0.5)
        yield RandomTensor(f"{at}.A_log", (self.heads,), 1.0)
        yield RandomTensor(f"{at}.dt_bias", (self.heads,), 1.0)
        yield RandomTensor(f"{at}.norm.weight", (self.dim,), None)
        yield RandomTensor(f"{at}.out_proj.weight", (width, values), std)


@dataclass(frozen=True)
class Shape:
    """A Llama's size: widths in elements, lengths in tokens. `tied`: the head is that of the embeddings.

    With `qk_norm` it is a Qwen3: queries and keys are normalised head by head. With `experts` each MLP is a
    mixture of so many, of which `top_k` compute a token, and `ffn_width` is an expert's. With `delta` it is a
    Qwen3.5, whose mixtures have one more expert, which computes every token. Without `stored` the folder has
    no weights: engines draw their own.
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
    tied: bool = True
    eps: float = 1e-6
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    dtype: Dtype = "float32"
    experts: int = 0
    top_k: int = 8
    stored: bool = True
    delta: Delta | None = None


def _qwen3(layers: int, width: int, heads: int, ffn_width: int, *, tied: bool = False) -> Shape:
    return Shape(
        151_936, 40_960, layers, width, heads, 8, 128, ffn_width, 1_000_000.0, qk_norm=True, tied=tied,
        dtype="bfloat16",
    )  # fmt: skip


def _llama3(layers: int, width: int, head_dim: int, ffn_width: int, *, factor: float, tied: bool) -> Shape:
    """Llama 3.1 or 3.2."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    }
    return Shape(
        128_256, 131_072, layers, width, 32, 8, head_dim, ffn_width, 500_000.0, tied=tied, eps=1e-5,
        rope_scaling=scaling, dtype="bfloat16",
    )  # fmt: skip


#: `random:NAME` models, in the sizes of the real ones; llama-tiny has 16.3M parameters.
SHAPES = {
    "llama-tiny": Shape(50_257, 2_048, 4, 256, 4, 2, 64, 768, 10_000.0),
    "smollm2-135m": Shape(49_152, 8_192, 30, 576, 9, 3, 64, 1_536, 100_000.0),
    "qwen3-0.6b": _qwen3(28, 1_024, 16, 3_072, tied=True),
    "qwen3-1.7b": _qwen3(28, 2_048, 16, 6_144, tied=True),
    "qwen3-8b": _qwen3(36, 4_096, 32, 12_288),
    "qwen3-32b": _qwen3(64, 5_120, 64, 25_600),
    "qwen3-moe-tiny": Shape(
        50_257, 2_048, 4, 256, 4, 2, 64, 128, 10_000.0, qk_norm=True, experts=16, top_k=4
    ),
    "qwen3-30b-a3b": Shape(
        151_936, 40_960, 48, 2_048, 32, 4, 128, 768, 1_000_000.0, qk_norm=True, tied=False, dtype="bfloat16",
        experts=128, stored=False,
    ),
    "qwen3.5-tiny": Shape(
        50_257, 2_048, 4, 256, 4, 2, 64, 768, 10_000.0, qk_norm=True, delta=Delta(2, 4, 64)
    ),
    "qwen3.5-9b": Shape(
        248_320, 262_144, 32, 4_096, 16, 4, 256, 12_288, 1e7, qk_norm=True, tied=False, dtype="bfloat16",
        delta=Delta(16, 32, 128),
    ),
    "qwen3.5-35b-a3b": Shape(
        248_320, 262_144, 40, 2_048, 16, 2, 256, 512, 1e7, qk_norm=True, tied=False, dtype="bfloat16",
        experts=256, delta=Delta(16, 32, 128), stored=False,
    ),
    "llama-3.2-1b": _llama3(16, 2_048, 64, 8_192, factor=32.0, tied=True),
    "llama-3.1-8b": _llama3(32, 4_096, 128, 14_336, factor=8.0, tied=False),
}  # fmt: skip


def write(folder: Path, shape: Shape) -> None:
    """Write config, weights and tokenizer of a random Llama into an existing empty folder."""
    end = tokenizer.end_of_text_id(shape.vocab_size)
    write_json(folder / "config.json", config(shape))
    write_json(folder / "generation_config.json", {"bos_token_id": end, "eos_token_id": end})
    if shape.stored:
        write_tensors(folder, list(tensors(shape)), shape.dtype)
    tokenizer.write(folder, shape.vocab_size, shape.context)


def config(shape: Shape) -> dict[str, Any]:
    """config.json; `random_weights` says how the weights were drawn."""
    end = tokenizer.end_of_text_id(shape.vocab_size)
    architecture, family = ("Qwen3", "qwen3") if shape.qk_norm else ("Llama", "llama")
    if shape.delta:
        architecture, family = "Qwen3_5", "qwen3_5"
    mixture: dict[str, Any] = {}
    if shape.experts:
        architecture, family = f"{architecture}Moe", f"{family}_moe"
        mixture = {
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.ffn_width,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    raw = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": family,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_width,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "attention_bias": False,
        "initializer_range": TOKEN_STD,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": shape.tied,
        "dtype": shape.dtype,
        "random_weights": {"token_std": TOKEN_STD, "matrix_std": _matrix_std(shape)},
    }
    if shape.delta:
        raw |= shape.delta.settings(shape.layers, shape.rope_theta) | {"model_type": f"{family}_text"}
        mixture |= {"shared_expert_intermediate_size": shape.ffn_width} if mixture else {}
    return raw | mixture | ({"rope_scaling": shape.rope_scaling} if shape.rope_scaling else {})


def tensors(shape: Shape) -> Iterator[RandomTensor]:
    """Every tensor by its Hugging Face name. Matrices are `[out, in]`."""

    def matrix(name: str, outputs: int, inputs: int) -> RandomTensor:
        return RandomTensor(f"{name}.weight", (outputs, inputs), _matrix_std(shape))

    def norm(name: str, size: int) -> RandomTensor:
        """A gain of 1, of which a Qwen3.5 stores the difference to 1."""
        return RandomTensor(f"{name}.weight", (size,), 0.0 if shape.delta else None)

    width, dim, queries = shape.width, shape.head_dim, shape.heads * (2 if shape.delta else 1)
    yield RandomTensor("model.embed_tokens.weight", (shape.vocab_size, width), TOKEN_STD)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield norm(f"{prefix}.input_layernorm", width)
        if shape.delta and layer % 4 != 3:
            yield from shape.delta.tensors(f"{prefix}.linear_attn", width, _matrix_std(shape))
        else:
            yield matrix(f"{prefix}.self_attn.q_proj", queries * dim, width)
            yield matrix(f"{prefix}.self_attn.k_proj", shape.kv_heads * dim, width)
            yield matrix(f"{prefix}.self_attn.v_proj", shape.kv_heads * dim, width)
            if shape.qk_norm:
                yield norm(f"{prefix}.self_attn.q_norm", dim)
                yield norm(f"{prefix}.self_attn.k_norm", dim)
            yield matrix(f"{prefix}.self_attn.o_proj", width, shape.heads * dim)
        yield norm(f"{prefix}.post_attention_layernorm", width)
        if shape.experts:
            yield matrix(f"{prefix}.mlp.gate", shape.experts, width)
        mlps = [f"mlp.experts.{e}" for e in range(shape.experts)] or ["mlp"]
        if shape.experts and shape.delta:
            yield matrix(f"{prefix}.mlp.shared_expert_gate", 1, width)
            mlps.append("mlp.shared_expert")
        for mlp in mlps:
            yield matrix(f"{prefix}.{mlp}.gate_proj", shape.ffn_width, width)
            yield matrix(f"{prefix}.{mlp}.up_proj", shape.ffn_width, width)
            yield matrix(f"{prefix}.{mlp}.down_proj", width, shape.ffn_width)
    yield norm("model.norm", width)
    if not shape.tied:
        yield matrix("lm_head", shape.vocab_size, width)


def _matrix_std(shape: Shape) -> float:
    return float(MATRIX_GAIN / shape.width**0.5)
