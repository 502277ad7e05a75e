"""Shapes of models from their folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from roseinfer.config import ConfigError
from roseinfer.models import config
from roseinfer.models.weights import Weights

LLAMA = {
    "model_type": "llama", "vocab_size": 128, "hidden_size": 32, "num_attention_heads": 4,
    "num_hidden_layers": 2, "intermediate_size": 64, "max_position_embeddings": 64,
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
def test_ends_of_text(
    tmp_path: Path, own: dict[str, object], generation: dict[str, object], ends: tuple[int, ...]
) -> None:
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
