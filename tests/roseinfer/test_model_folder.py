"""Models of the hub, which is replaced by a function."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from roseinfer.config import ConfigError
from roseinfer.model_folder import model_folder


def test_what_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All that is read here, and no weights in other formats."""
    fetched: list[str] = []

    def snapshot_download(model: str, *, allow_patterns: list[str]) -> str:
        names = [
            "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
            "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.jinja",
            "pytorch_model.bin", "tf_model.h5", "model.gguf",
        ]  # fmt: skip
        fetched.extend(name for pattern in allow_patterns for name in fnmatch.filter(names, pattern))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert model_folder("some/model") == tmp_path
    assert len(fetched) == 9 and "chat_template.jinja" in fetched


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError("no network\nmore"), "no network"), (TimeoutError(), "TimeoutError")]
)
def test_why_it_is_not_fetched(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    """In one line, also where the client's error has no message."""

    def snapshot_download(model: str, **settings: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match=rf"'some/model', and the hub did not give it: {reason}$"):
        model_folder("some/model")
