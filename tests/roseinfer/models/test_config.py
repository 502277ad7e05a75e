"""Shapes of models from their folders, configs that are refused, and a Llama's C++ operators."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from roseinfer.config import ConfigError
from roseinfer.models import config
from roseinfer.models.config import LlamaConfig, Mixture, parse, weight_bytes
from roseinfer.models.cpu import CpuOps
from roseinfer.models.ops import Ops
from roseinfer.models.rope import Rope
from roseinfer.models.weights import Weights

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 5003, "max_position_embeddings": 512, "num_hidden_layers": 2,
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "generation", "ends"),
    [
        ({}, {}, (50256,)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 9}, {"eos_token_id": [7]}, (7, 9)),
        ({"eos_token_id": -1}, {}, ()),
        ({"eos_token_id": [9, -1]}, {"eos_token_id": -1}, (9,)),
    ],
)
def test_ends_of_text(tmp_path, own, generation, ends):
    """Tokens of both files; GPT-2's where neither names one."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"} | own))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert config.read(tmp_path).eos_token_ids == ends


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("given", ["2", [[1]], 2.0, True])
def test_ends_of_text_that_are_no_ids(tmp_path: Path, file: str, given: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / file).write_text(json.dumps(LLAMA | {"eos_token_id": given}))
    with pytest.raises(ConfigError, match=f"the config says eos_token_id {re.escape(repr(given))}, which"):
        config.read(tmp_path)


SCALED = {"rope_type": "linear", "factor": "2"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (LLAMA | {"max_position_embeddings": None}, "max_position_embeddings None"),
        (LLAMA | {"rope_theta": None}, "rope_theta None"), (LLAMA | {"rope_theta": True}, "rope_theta True"),
        (LLAMA | {"rope_scaling": SCALED}, "factor '2'"), (LLAMA | {"rms_norm_eps": ""}, "rms_norm_eps ''"),
        (LLAMA | {"vocab_size": 0}, "vocab_size 0"), (LLAMA | {"hidden_size": 32.0}, "hidden_size 32.0"),
        ({"model_type": "gpt2", "n_positions": None}, "n_positions None"),
        ({"model_type": "gpt2", "n_embd": "768"}, "n_embd '768'"),
        ({"model_type": "gpt2", "n_inner": "x"}, "n_inner 'x'"),
        (LLAMA | {"num_key_value_heads": 2.0}, "num_key_value_heads 2.0"),
        (LLAMA | {"head_dim": 8.0}, "head_dim 8.0"), (LLAMA | {"head_dim": -8}, "head_dim -8"),
    ],
)  # fmt: skip
def test_values_that_are_no_sizes(given: dict[str, object], name: str) -> None:
    config.parse(LLAMA | {"num_key_value_heads": None, "head_dim": None})
    with pytest.raises(ConfigError, match=f"the config says {name}, which is not a"):
        config.parse(given)


@pytest.mark.parametrize("file", [5, None, ["a"]])
def test_an_index_of_something_else(tmp_path: Path, file: object) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": file}}))
    with pytest.raises(ConfigError, match=r"is not an index of safetensors files: .* is no file's name"):
        Weights(tmp_path)


def test_one_file_comes_before_an_index(tmp_path: Path) -> None:
    """Like transformers: the index is of parts that were there before."""
    for number, name in enumerate(("old", "model", "other")):
        save_file({"a": torch.tensor([float(number)])}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "old.safetensors"}}))
    assert Weights(tmp_path).get("a", (1,)).item() == 1
    (tmp_path / "model.safetensors").unlink()
    assert Weights(tmp_path).get("a", (1,)).item() == 0


#: Relative to the largest value; both sides round bf16 results to 8 bits, at different places.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}


def close(out: torch.Tensor, expected: torch.Tensor) -> bool:
    assert out.shape == expected.shape and out.dtype == expected.dtype
    return bool((out.double() - expected.double()).abs().max() <= TOLERANCE[out.dtype] * expected.abs().max())


@settings(max_examples=30)
@given(
    rows=st.integers(1, 40), vectors=st.integers(1, 60), dtype=st.sampled_from(list(TOLERANCE)),
    scale=st.sampled_from([1e-3, 1.0, 30.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_norm_and_swiglu(rows: int, vectors: int, dtype: torch.dtype, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, 32 * vectors, generator=generator) * scale).to(dtype)
    gain = torch.randn(32 * vectors, generator=generator).to(dtype)
    ops, reference = CpuOps(), Ops()
    assert close(ops.rms_norm(x, gain, 1e-5), reference.rms_norm(x, gain, 1e-5))
    assert close(ops.swiglu(x), reference.swiglu(x))


@settings(max_examples=30)
@given(
    rows=st.integers(1, 40), heads=st.integers(1, 12), dim=st.sampled_from([32, 64, 96, 128]),
    dtype=st.sampled_from(list(TOLERANCE)), normed=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_rotate(rows: int, heads: int, dim: int, dtype: torch.dtype, normed: bool, seed: int) -> None:
    """On a part of a wider tensor; the other part does not change."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(rows, heads + 3, dim, generator=generator).to(dtype)
    gain = torch.randn(heads, dim, generator=generator).to(dtype) if normed else None
    turns = Rope().table(512, dim)[torch.randint(0, 512, (rows,), generator=generator)]
    expected = Ops().rotate(qkv[:, :heads], gain, 1e-6, turns)
    values = qkv[:, heads:].clone()
    assert close(CpuOps().rotate(qkv[:, :heads], gain, 1e-6, turns), expected)
    assert torch.equal(qkv[:, heads:], values)


def test_scores_depend_on_distance_alone() -> None:
    """Rotary positions are for this: q at i and k at j meet as q at i + n and k at j + n do."""
    q, k = torch.randn(2, 1, 1, 64, generator=torch.Generator().manual_seed(0)).double()
    table = Rope().table(300, 64)
    scores = [
        (Ops().rotate(q, None, 0, table[[i]]) * Ops().rotate(k, None, 0, table[[i - 9]])).sum()
        for i in (9, 100, 299)
    ]
    assert torch.allclose(torch.stack(scores), scores[0], rtol=1e-4)


@pytest.mark.parametrize("parameters", [{}, {"rope_theta": 5e5}, {"rope_type": "linear", "factor": 2.0}])
@pytest.mark.parametrize(
    "scaling", [None, {"type": "linear", "factor": 4.0, "attention_factor": 2.0}, {"rope_theta": 3e4}]
)
def test_frequencies_are_those_of_transformers(parameters, scaling):
    """Also with a config that has both dicts."""
    raw = LLAMA | {"rope_parameters": {"rope_type": "default"} | parameters, "rope_scaling": scaling}
    peer = LlamaRotaryEmbedding(transformers.LlamaConfig.from_dict(json.loads(json.dumps(raw))))
    rope = Rope.parse(raw)
    assert torch.allclose(rope.frequencies(16), peer.inv_freq) and rope.attention_factor == 1


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "scaling",
    [
        YARN, YARN | {"factor": 1.0}, YARN | {"truncate": False}, YARN | {"attention_factor": 1.5},
        YARN | {"beta_fast": 4, "beta_slow": 2.0}, YARN | {"mscale": 0.7, "mscale_all_dim": 1.0},
        YARN | {"mscale": 0.7}, YARN | {"mscale": 0, "mscale_all_dim": 1.0}, YARN | {"factor": None},
        YARN | {"original_max_position_embeddings": 4096}, {"type": "yarn", "factor": 2.0},
        YARN | {"partial_rotary_factor": 0.5},
    ],
)  # fmt: skip
def test_yarn_is_that_of_transformers(scaling: dict[str, Any]) -> None:
    """Frequencies, and what multiplies the part of a head that is rotated."""
    raw, positions = LLAMA | {"rope_scaling": scaling}, torch.arange(600)
    peer = LlamaRotaryEmbedding(transformers.LlamaConfig.from_dict(json.loads(json.dumps(raw))))
    rope = Rope.parse(raw)
    assert torch.allclose(rope.frequencies(16), peer.inv_freq)
    cos, sin = (side[0, :, : len(peer.inv_freq)] for side in peer(torch.zeros(1), positions[None]))
    table, rotated = rope.table(600, 16), len(peer.inv_freq)
    assert torch.allclose(table[:, :, :rotated], torch.stack((cos, sin), dim=1), atol=2e-4)
    assert torch.equal(table[:, 0, rotated:], torch.ones(600, 8 - rotated))
    assert not table[:, 1, rotated:].any()


@pytest.mark.parametrize("positions", [100, 512, 513, 2048])
def test_dynamic_is_that_of_transformers_for_requests_as_long_as_the_context(positions: int) -> None:
    raw = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
    peer = LlamaRotaryEmbedding(transformers.LlamaConfig.from_dict(json.loads(json.dumps(raw))))
    peer(torch.zeros(1), torch.arange(positions)[None])
    assert torch.allclose(Rope.parse(raw).frequencies(16, positions), peer.inv_freq)


@pytest.mark.parametrize(
    ("scaling", "positions"),
    [
        (YARN, 512), (YARN | {"factor": 32}, 4096), (YARN | {"factor": 1.0}, 512),
        ({"type": "yarn", "factor": 2.5}, 1280), ({"type": "dynamic", "factor": 2.0}, 1024),
        ({"type": "linear", "factor": 2.0}, 512),
    ],
)  # fmt: skip
def test_positions_of_scaled_models(scaling: dict[str, Any], positions: int) -> None:
    assert parse(LLAMA | {"rope_scaling": scaling}).max_positions == positions


def test_which_widths_the_kernels_take() -> None:
    def supports(dtype: torch.dtype = torch.float32, **raw: int) -> bool:
        return CpuOps.supports(parse(LLAMA | raw), torch.device("cpu"), dtype)

    assert supports(head_dim=32)
    assert not supports(head_dim=16)
    assert not supports(head_dim=32, intermediate_size=100)
    assert not supports(head_dim=32, dtype=torch.float16)


HYBRID = {"model_type": "qwen3_5_text", "full_attention_interval": 2}
MOE = {"model_type": "qwen3_moe", "num_experts": 16, "moe_intermediate_size": 8, "num_hidden_layers": 5}


def test_layers_with_experts() -> None:
    """The layers that transformers chooses; its newer configs call the experts local."""
    peer = transformers.Qwen3MoeConfig(num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3])
    config = parse(LLAMA | MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert isinstance(config, LlamaConfig) and config.mixture == Mixture(16, 8, 8, False, frozenset({1}))
    newer = parse(LLAMA | peer.to_dict())
    assert isinstance(newer, LlamaConfig) and newer.mixture is not None
    assert newer.mixture.layers == config.mixture.layers
    dense, expert = 3 * config.ffn_width, 3 * 8
    apart = weight_bytes(config, torch.bfloat16) - weight_bytes(replace(config, mixture=None), torch.bfloat16)
    assert apart == 2 * config.width * (16 * expert + 16 - dense)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"model_type": "mamba"}, "gpt2, llama, qwen2, qwen3"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, "longrope"),
        ({"rope_scaling": {"type": "longrope"}, "rope_parameters": {"rope_type": "default"}}, "longrope"),
        ({"rope_scaling": {"type": "dynamic"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "max_window_layers": 1}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"num_key_value_heads": 3}, "4 heads, 3 KV heads"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized .fp8."),
        ({"model_type": "gpt2", "scale_attn_weights": False}, "scale_attn_weights"),
        (MOE | {"num_experts_per_tok": 17}, "num_experts_per_tok 17"),
        (MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        (HYBRID | {"full_attention_interval": 3}, "layer_types"),
        (HYBRID | {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        (HYBRID | {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        (HYBRID | {"head_dim": 12}, "partial_rotary_factor"),  # 3 elements
    ],
)
def test_what_is_not_supported_is_said(raw: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(LLAMA | raw)


@pytest.mark.parametrize(
    "more",
    [
        {"max_window_layers": 2}, {"layer_types": ["full_attention"] * 2}, {},
        {"max_window_layers": 0, "sliding_window": None},
    ],
)  # fmt: skip
def test_windows_that_no_layer_has(more: dict[str, object]) -> None:
    """transformers gives all layers full attention, too."""
    raw = LLAMA | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4} | more
    assert set(transformers.Qwen2Config.from_dict(raw).layer_types) == {"full_attention"}
    assert parse(raw).layers == 2


def test_a_config_without_a_width() -> None:
    with pytest.raises(ConfigError, match="hidden_size"):
        parse({name: value for name, value in LLAMA.items() if name != "hidden_size"})


def test_families_differ_in_biases_and_norms() -> None:
    def of(**raw: object) -> LlamaConfig:
        config = parse(LLAMA | raw)
        assert isinstance(config, LlamaConfig)
        return config

    assert not of().qkv_bias and of(attention_bias=True).out_bias
    assert of(model_type="qwen2").qkv_bias and not of(model_type="qwen2").out_bias
    assert of(model_type="qwen3").qk_norm and of(model_type="qwen3").head_dim == 128
    assert of(mlp_bias=True).mlp_bias and not of(model_type="qwen3", mlp_bias=True).mlp_bias
    assert of(hidden_act="swish") == of()
    assert of(rope_theta=5e5).rope.theta == of(rope_parameters={"rope_theta": 5e5}).rope.theta == 5e5
