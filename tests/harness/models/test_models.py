"""Named models, local folders and hub ids become one kind of folder; what is none of them is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.models import ModelFolder, resolve


def test_what_is_known_of_a_named_model(tmp_path: Path) -> None:
    tiny = resolve("random:gpt2-tiny", tmp_path)
    assert (tiny.name, tiny.served_name) == ("random:gpt2-tiny", "random-gpt2-tiny")
    assert (tiny.vocab_size, tiny.max_model_len, tiny.tokenizer) == (50_257, 1_024, True)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="could not make") as caught:
        resolve("random:gpt2-tiny", tmp_path / "file")
    assert "who may write" in caught.value.hint


def test_a_local_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    config = {"vocab_size": 49_152, "max_position_embeddings": 2_048}
    (folder / "config.json").write_text(json.dumps(config))
    found = resolve(str(folder))
    assert found == ModelFolder(folder, str(folder), "llama", 49_152, 2_048, tokenizer=False)
    (folder / "tokenizer.json").write_text("{}")
    assert resolve(str(folder)).tokenizer


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{}", "has no "),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"n_positions": 8}', "vocab"),
    ],
)
def test_a_folder_that_is_no_model_is_explained(tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=says):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("smolm2-135m", "did you mean smollm2-135m? "),
        ("HuggingFaceTB/SmolLM2-135M", "did you mean smollm2-135m? "),
        ("gtp2", "did you mean random:gpt2? "),
        ("gpt-neo", ""),
    ],
)
def test_a_name_that_is_nearly_that_of_a_named_model(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as caught:
        resolve(name)
    assert caught.value.hint.startswith(f"{meant}check the id")


def test_other_names_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no model 'random:gpt5'") as caught:
        resolve("random:gpt5", tmp_path)
    assert "random:gpt2-tiny" in caught.value.hint
    with pytest.raises(UsageError, match=r"has no config\.json"):
        resolve(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"local folder, and cannot be downloaded") as caught:
        resolve("somebody/some-model")
    assert "check the id and the network" in caught.value.hint
