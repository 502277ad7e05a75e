"""A GGUF file holds what the folder held: read again by gguf itself, and by what reads published files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from harness.engines.adapters.gguf_file import write_gguf
from harness.errors import EngineError
from rosemodels import folder, gguf_llama

VOCABULARY = 512


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _model(name: str, models: Path) -> Path:
    """Make a named model with a vocabulary of VOCABULARY words, which gguf reads one by one."""
    path = models / name.partition(":")[2]
    if path.exists():
        return path
    whole = folder(name, models / "whole")
    assert whole is not None
    config, tokenizer = (json.loads((whole / f"{file}.json").read_text()) for file in ("config", "tokenizer"))
    bpe, last = tokenizer["model"], VOCABULARY - 1
    bpe["merges"] = bpe["merges"][: last - 256]
    bpe["vocab"] = {word: token for word, token in bpe["vocab"].items() if token < last}
    tokenizer["added_tokens"][0]["id"] = last
    ends = {"vocab_size": VOCABULARY, "bos_token_id": last, "eos_token_id": last}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config | ends))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    tensors = load_file(whole / "model.safetensors")
    cut = {
        name: rows[:VOCABULARY] if len(rows) == config["vocab_size"] else rows
        for name, rows in tensors.items()
    }
    save_file(cut, path / "model.safetensors")
    return path


def test_a_llama_comes_back_as_it_was(models: Path, tmp_path: Path):
    """Queries and keys are in llama.cpp's order in between: the reader was made for its published files."""
    model, back = _model("random:llama-tiny", models), tmp_path / "back"
    back.mkdir()
    write_gguf(model, "fp32", tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    about = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
    assert about["general.architecture"] == "llama"
    assert about["llama.attention.head_count_kv"] == 2
    was, now = load_file(model / "model.safetensors"), dict(gguf_llama._tensors(reader, about))
    assert was.keys() == now.keys()
    for name, values in was.items():
        np.testing.assert_array_equal(values, now[name], err_msg=name)


@pytest.fixture(scope="module")
def gpt2(models: Path) -> Callable[[Any], gguf.GGUFReader]:
    """A GPT-2 written with weights of a type, and read again."""

    @cache
    def read(dtype: Any) -> gguf.GGUFReader:
        write_gguf(_model("random:gpt2-tiny", models), dtype, models / f"{dtype}.gguf")
        return gguf.GGUFReader(models / f"{dtype}.gguf")

    return read


@pytest.mark.parametrize(("dtype", "bits"), [("fp16", 11), ("bf16", 8)])
def test_a_gpt2_is_turned_and_rounded(models: Path, gpt2: Any, dtype: Any, bits: int):
    model, reader = _model("random:gpt2-tiny", models), gpt2(dtype)
    found = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    was = load_file(model / "model.safetensors")
    assert len(found) == len(was)
    turned = was["transformer.h.1.attn.c_attn.weight"].T
    np.testing.assert_allclose(found["blk.1.attn_qkv.weight"], turned, rtol=2.0**-bits, atol=1e-7)
    np.testing.assert_array_equal(found["position_embd.weight"], was["transformer.wpe.weight"])
    np.testing.assert_array_equal(found["blk.3.ffn_up.bias"], was["transformer.h.3.mlp.c_fc.bias"])


def test_ids_stand_for_the_same_text(models: Path, gpt2: Any):
    model = _model("random:gpt2-tiny", models)
    about = {name: field.contents() for name, field in gpt2("bf16").fields.items() if "tokenizer" in name}
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    words, kinds = about["tokenizer.ggml.tokens"], about["tokenizer.ggml.token_type"]
    assert words == [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    assert [i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL] == [VOCABULARY - 1]
    assert about["tokenizer.ggml.eos_token_id"] == VOCABULARY - 1


def test_defaults_of_transformers(models: Path, tmp_path: Path):
    """Configs of Llama 2 have no rope_theta."""
    model = shutil.copytree(_model("random:llama-tiny", models), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    for name in ("rope_theta", "rope_parameters", "rms_norm_eps"):
        config.pop(name, None)
    (model / "config.json").write_text(json.dumps(config))
    write_gguf(model, "bf16", tmp_path / "m.gguf")
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["llama.rope.freq_base"].contents() == 10_000
    assert fields["llama.attention.layer_norm_rms_epsilon"].contents() == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"model_type": "mamba"}, "the model type mamba"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling llama3"),
        ({"use_sliding_window": True}, "a sliding window"),
        ({"hidden_size": None}, "no hidden_size in its config.json"),
        ({"vocab_size": 9}, "a tokenizer with more tokens than the model"),
    ],
)
def test_what_cannot_be_written_is_named(models: Path, tmp_path: Path, change: dict[str, object], fault: str):
    model = _model("random:llama-tiny", models)
    shutil.copy(model / "tokenizer.json", tmp_path)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=fault):
        write_gguf(tmp_path, "bf16", tmp_path / "out" / "m.gguf")
    assert not [*tmp_path.glob("out/*")]


def test_half_a_file_is_no_file(models: Path, tmp_path: Path):
    """A tensor that has no place in the architecture is found when others were written."""
    model = _model("random:llama-tiny", models)
    for file in ("config.json", "tokenizer.json"):
        shutil.copy(model / file, tmp_path)
    tensors = load_file(model / "model.safetensors")
    save_file({**tensors, "zzz.adapter": np.zeros(3, dtype=np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=r"a tensor zzz\.adapter"):
        write_gguf(tmp_path, "bf16", tmp_path / "out" / "m.gguf")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", '{"chat_template": "{{ messages }}"}'),
        ("chat_template.jinja", "{{ messages }}"),
    ],
)
def test_it_has_the_chat_template_of_the_tokenizer(
    models: Path, tmp_path: Path, file: str, content: str
) -> None:
    """Else llama.cpp takes one of its own, and chats have other prompts than those of other engines."""
    shutil.copytree(_model("random:gpt2-tiny", models), model := tmp_path / "model")
    (model / file).write_text(content)
    write_gguf(model, "fp32", path := tmp_path / "m.gguf")
    template = gguf.GGUFReader(path).get_field("tokenizer.chat_template")
    assert template is not None and template.contents() == "{{ messages }}"


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_file_that_is_not_json_is_named(models: Path, tmp_path: Path, file: str) -> None:
    shutil.copytree(_model("random:gpt2-tiny", models), model := tmp_path / "model")
    (model / file).write_text('{"chat_template":')
    with pytest.raises(EngineError, match=f"/{file} is not JSON"):
        write_gguf(model, "fp32", tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()
