"""Models as folders, and the one of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.models.model_folder import ModelFolder, choose_model, resolve
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import UNKNOWN_CONTEXT, OfflineSettings


def test_what_is_known_of_a_named_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    tiny = resolve("random:gpt2-tiny")
    assert (tiny.name, tiny.served_name) == ("random:gpt2-tiny", "random-gpt2-tiny")
    assert (tiny.vocab_size, tiny.max_model_len, tiny.tokenizer) == (50_257, 1_024, True)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="could not make") as caught:
        resolve("random:gpt2-tiny")
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
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        (folder / "config.json").write_text(json.dumps(config | {name: 64}))
        assert resolve(str(folder)).experts == 64


@pytest.mark.parametrize(
    ("config", "says"),
    [("{}", "has no "), ("{", "cannot be read"), ("[]", "cannot be read"), ('{"n_positions": 8}', "vocab")],
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
def test_a_name_that_is_nearly_that_of_a_named_model(name, meant, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError) as caught:
        resolve(name)
    assert caught.value.hint.startswith(f"{meant}check the id")


def test_other_names_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no model 'random:gpt5'") as caught:
        resolve("random:gpt5")
    assert "random:gpt2-tiny" in caught.value.hint
    with pytest.raises(UsageError, match=r"has no config\.json"):
        resolve(str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=r"local folder, and cannot be downloaded") as caught:
        resolve("somebody/some-model")
    assert "check the id and the network" in caught.value.hint


RUNNING = {"base_url": "http://127.0.0.1:1"}


def test_the_context_is_the_models_the_servers_or_what_was_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"n_positions": 128, "vocab_size": 99}))

    def context(reported: int | None = None, **settings: int) -> tuple[int, int]:
        chosen = choose_model(
            OnlineSettings(model=str(tmp_path), **settings), "cpu", ["roseinfer", "openai"], reported
        )
        assert chosen.folder is not None and chosen.folder.path == tmp_path
        return chosen.vocab_size, chosen.max_model_len

    assert context() == (99, 128)
    assert context(reported=100) == (99, 100)
    assert context(reported=200) == (99, 128)
    assert context(reported=100, max_model_len=64) == (99, 64)
    with pytest.raises(UsageError, match="--max-model-len 129 is above the model's 128"):
        context(max_model_len=129)


def test_a_running_server_alone_needs_no_model() -> None:
    def context(reported: int | None = None, **settings: int) -> tuple[int, int]:
        chosen = choose_model(OnlineSettings(**RUNNING, **settings), "cpu", ["openai"], reported)
        assert chosen.folder is None and chosen.tokenizer is None and chosen.text_tokenizer() is None
        return chosen.vocab_size, chosen.max_model_len

    assert context(max_model_len=64, vocab_size=7) == (7, 64)
    assert context(reported=512, vocab_size=7) == (7, 512)
    assert context(vocab_size=7) == (7, UNKNOWN_CONTEXT)


def test_the_tokenizer_of_a_running_server_says_its_vocabulary() -> None:
    settings = OnlineSettings(**RUNNING, tokenizer="random:gpt2-tiny")
    chosen = choose_model(settings, "cpu", ["openai"], 512)
    assert chosen.folder is None and chosen.tokenizer is not None
    tokenizer = chosen.text_tokenizer()
    assert tokenizer is not None and chosen.vocab_size == tokenizer.get_vocab_size()


def test_a_model_that_is_not_there_may_be_the_running_servers() -> None:
    settings = OnlineSettings(model="./not/there", **RUNNING)
    with pytest.raises(UsageError) as raised:
        choose_model(settings, "cpu", ["openai"], 512)
    assert "--served-model" in raised.value.hint
    with pytest.raises(UsageError) as raised:
        choose_model(OfflineSettings(model="./not/there"), "cpu", ["roseinfer"])
    assert "--served-model" not in raised.value.hint
