"""A GGUF file holds what the folder held: read again by gguf itself, and by what reads published files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module", autouse=True)
def plain_arrays() -> Iterator[None]:
    """gguf's maps of files are plain arrays: it takes slices for each word of a vocabulary, and those of a
    `np.memmap` take several times as long."""
    mapped = np.memmap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "memmap", lambda *given, **named: np.asarray(mapped(*given, **named)))
        yield


def _model(name: str, models: Path) -> Path:
    made = folder(name, models)
    assert made is not None
    return made


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
    assert [i for i, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL] == [50256]
    assert about["tokenizer.ggml.eos_token_id"] == 50256


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "the model type mamba"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope scaling llama3"),
        ({"use_sliding_window": True}, "a sliding window"),
    ],
)
def test_what_cannot_be_written_is_named(models: Path, tmp_path: Path, change: dict[str, object], said: str):
    model = _model("random:llama-tiny", models)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=said):
        write_gguf(tmp_path, "bf16", tmp_path / "out" / "m.gguf")
    assert not (tmp_path / "out").exists()


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
    ("change", "said"),
    [
        ({"hidden_size": None}, "no hidden_size in its config.json"),
        ({"vocab_size": 9}, "a tokenizer with more tokens than the model"),
    ],
)
def test_a_config_that_does_not_suffice(models: Path, tmp_path: Path, change: dict[str, object], said: str):
    model = shutil.copytree(_model("random:llama-tiny", models), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=said):
        write_gguf(model, "bf16", tmp_path / "m.gguf")


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
