"""Random models: the sizes of real ones, the same bytes every time, answers that vary."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import rosemodels
from rosemodels import gpt2, llama, random_tensors


@pytest.fixture(scope="module", params=["gpt2-tiny", "llama-tiny", "qwen3.5-tiny"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = rosemodels.folder(f"random:{request.param}", tmp_path_factory.mktemp("models"))
    return made


def test_gpt2_sizes() -> None:
    def parameters(shape: gpt2.Shape) -> int:
        layer = 12 * shape.width**2 + 13 * shape.width
        return (50_257 + 1_024 + 2) * shape.width + shape.layers * layer

    made = sum(tensor.size for _, tensor in gpt2.weights(gpt2.SHAPES["gpt2-tiny"]))
    assert made == parameters(gpt2.SHAPES["gpt2-tiny"]) == 16_287_488
    assert parameters(gpt2.SHAPES["gpt2"]) == 124_439_808
    assert parameters(gpt2.SHAPES["gpt2-xl"]) == 1_557_611_200
    assert all(shape.width % shape.heads == 0 for shape in gpt2.SHAPES.values())


def test_llama_sizes() -> None:
    """The published numbers of parameters, the tied head counted once."""

    def parameters(shape: llama.Shape) -> int:
        rows = ((3 if shape.delta else 2) * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        attention = rows * shape.width + (2 * shape.head_dim if shape.qk_norm else 0)
        mlp = 3 * shape.ffn_width * max(1, shape.experts) + shape.experts
        ends = (1 if shape.tied else 2) * shape.vocab_size * shape.width
        attentions = shape.layers
        if delta := shape.delta:
            mlp += 3 * shape.ffn_width + 1 if shape.experts else 0
            attentions = shape.layers // 4
            keys, values = delta.key_heads * delta.dim, delta.heads * delta.dim
            rows = 2 * keys + 3 * values + 2 * delta.heads
            others = rows * shape.width + 4 * (2 * keys + values) + 2 * delta.heads + delta.dim
            ends += (shape.layers - attentions) * others
        return ends + attentions * attention + shape.layers * (mlp + 2) * shape.width + shape.width

    for shape in llama.SHAPES.values():
        assert sum(tensor.size for tensor in llama.tensors(shape)) == parameters(shape)
    published = {
        "smollm2-135m": 134_515_008,
        "qwen3-0.6b": 596_049_920,
        "qwen3-1.7b": 1_720_574_976,
        "qwen3-8b": 8_190_735_360,
        "qwen3-32b": 32_762_123_264,
        "qwen3-30b-a3b": 30_532_122_624,
        "qwen3.5-9b": 8_953_803_264,
        "qwen3.5-35b-a3b": 34_660_610_688,
        "llama-3.2-1b": 1_235_814_400,
        "llama-3.1-8b": 8_030_261_248,
    }
    assert {name: parameters(llama.SHAPES[name]) for name in published} == published


def test_every_config_is_read_as_it_is_meant() -> None:
    for name, shape in llama.SHAPES.items():
        if shape.experts:
            moe = AutoConfig.for_model(**llama.config(shape))
            assert (moe.num_experts, moe.moe_intermediate_size) == (shape.experts, shape.ffn_width)
        raw = AutoConfig.for_model(**llama.config(shape))
        assert (raw.hidden_size, raw.head_dim, raw.rope_parameters["rope_theta"]) == (
            shape.width, shape.head_dim, shape.rope_theta,
        )  # fmt: skip
        assert raw.rope_parameters["rope_type"] == ("llama3" if name.startswith("llama-3") else "default")
        assert raw.tie_word_embeddings == shape.tied and str(raw.dtype).removeprefix("torch.") == shape.dtype


def test_several_files_of_halves(tmp_path: Path) -> None:
    """Like transformers opens them: the nearest halves of what is drawn, each where the index says."""
    shape = llama.Shape(50_300, 64, 2, 64, 4, 2, 16, 96, 1e4, tied=False, dtype="bfloat16")
    (tmp_path / "config.json").write_text(json.dumps(llama.config(shape)))
    tensors, size = list(llama.tensors(shape)), 1 << 14
    random_tensors.write_tensors(tmp_path, tensors, shape.dtype, largest=4_000_000, piece=size)
    assert [file.name for file in sorted(tmp_path.glob("*.safetensors"))] == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    state = model.state_dict()
    for number, tensor in enumerate(tensors):
        pieces = [random_tensors.draw(tensor, number, i, size) for i in range(-(-tensor.size // size))]
        expected = torch.from_numpy(np.concatenate(pieces)).view(tensor.shape).bfloat16()
        assert torch.equal(state[tensor.name], expected)


def drawn(shape: llama.Shape) -> dict[str, np.ndarray]:
    """In one thread."""
    made = {}
    for number, tensor in enumerate(llama.tensors(shape)):
        pieces = -(-tensor.size // random_tensors.PIECE)
        flat = np.concatenate([random_tensors.draw(tensor, number, piece) for piece in range(pieces)])
        made[tensor.name] = flat.reshape(tensor.shape)
    return made


def test_the_same_every_time(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    name = folder.name.removeprefix("random-")[:-2]
    again = dict(gpt2.weights(gpt2.SHAPES[name])) if name in gpt2.SHAPES else drawn(llama.SHAPES[name])
    assert stored.keys() == again.keys()
    assert all(np.array_equal(stored[name], again[name]) for name in stored)
    std = json.loads((folder / "config.json").read_text())["random_weights"]["matrix_std"]
    matrix = next(tensor for name, tensor in stored.items() if ".3.mlp" in name and tensor.ndim == 2)
    assert matrix.std() == pytest.approx(std, rel=0.01)


def test_a_write_may_be_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the last one before a disk is full."""
    tensors = [random_tensors.RandomTensor("a", (30, 7), 1.0), random_tensors.RandomTensor("b", (5,), None)]
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: 1 + len(data) // 2], at))
    random_tensors.write_tensors(tmp_path, tensors, "float32")
    stored = load_file(tmp_path / "model.safetensors")
    assert np.array_equal(stored["a"].ravel(), random_tensors.draw(tensors[0], 0, 0))
    assert np.array_equal(stored["b"], np.ones(5))


def test_transformers_loads_it_and_its_greedy_answers_vary(folder: Path) -> None:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    prompts = torch.randint(0, 50_256, (4, 32), generator=torch.Generator().manual_seed(0))
    answers = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        min_new_tokens=32,
        max_new_tokens=32,
        do_sample=False,
    )[:, 32:]
    assert all(len(set(answer)) >= 20 for answer in answers.tolist())
    assert len({tuple(answer) for answer in answers.tolist()}) == 4


def test_the_tokenizer_is_gpt2s(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("Hello world, it's 2024!").input_ids == [15496, 995, 11, 340, 338, 48609, 0]
    assert tokenizer("a<|endoftext|>b").input_ids == [64, 50256, 65]
    assert (len(tokenizer), tokenizer.eos_token_id) == (50_257, 50_256)
    text = "naïve  \n\t日本語 🙂"
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@pytest.mark.parametrize("vocab_size", [300, 50_300])
def test_a_vocabulary_cut_or_filled(vocab_size: int, tmp_path: Path) -> None:
    rosemodels.tokenizer.write(tmp_path, vocab_size, 1024)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "The theory of everything, naïve 日本語 🙂 2024"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text and max(ids) < vocab_size
    assert len(tokenizer) == vocab_size and tokenizer.eos_token_id == min(vocab_size, 50_257) - 1
    assert all(tokenizer.decode([id]) for id in range(vocab_size - 20, vocab_size))
