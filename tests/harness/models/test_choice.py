"""Which model a run has, and what is known of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.models.model_folder import choose_model
from harness.schema.online_settings import OnlineSettings
from harness.schema.settings import OfflineSettings

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
    with pytest.raises(UsageError, match="does not report its context") as raised:
        context()
    assert raised.value.hint == "give --max-model-len"


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
