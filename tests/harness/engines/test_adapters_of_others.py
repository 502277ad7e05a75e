"""Adapters of other packages: what they return, and what they raise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import EngineSettings, EngineVariant, Installation, RequestSettings
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.process.engine_server import Launch
from harness.engines.variants import Variant
from harness.errors import EngineError
from harness.schema.setting_types import EngineRef

HERE = Installation("own", "1", "own", Path(sys.executable), "here")
SETTINGS = EngineSettings(
    engine_variant=EngineVariant(EngineRef(name="roseinfer"), Variant(), "Own"),
    model=Path("/models/gpt2"), served_name="gpt2", device="cpu", dtype="bf16", max_model_len=1024,
)  # fmt: skip


class Own(LocalEngine):
    name = "own"
    display = "Own"
    distributions = ("own",)

    def __init__(self, command: Callable[[EngineSettings, int], Launch]) -> None:
        self._command = command

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        return self._command(settings, port)

    def help_command(self, installation: Installation) -> list[str]:
        return []

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise EngineError("own has no in-process API")

    def extra_body(self, request_settings: RequestSettings) -> dict[str, object]:
        raise KeyError("seed")


def test_paths_and_numbers_of_a_command_become_text():
    argv: Any = ("own", "--model", SETTINGS.model, "--port", 8000)
    env: Any = {"THREADS": 2}
    launch = Own(lambda settings, port: Launch(argv, "gpt2", env)).server(HERE, SETTINGS, 8000)
    assert launch.argv == ("own", "--model", "/models/gpt2", "--port", "8000")
    assert launch.env == {"THREADS": "2"}


def test_a_file_that_cannot_be_prepared_is_an_engine_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def prepare(settings: EngineSettings) -> None:
        raise KeyError("hidden_size")

    own = Own(lambda settings, port: Launch(("own",), "gpt2"))
    monkeypatch.setattr(own, "prepare", prepare)
    monkeypatch.setattr(own, "installed", lambda: HERE)
    with (
        pytest.raises(EngineError, match="`prepare` in the adapter of Own raised KeyError: 'hidden_size'"),
        own.open(SETTINGS, tmp_path / "log"),
    ):
        pass


def test_an_adapter_that_fails_is_an_engine_that_failed():
    def command(settings: EngineSettings, port: int) -> Launch:
        raise KeyError("port")

    own = Own(command)
    place = rf"\({__file__}, line {Own.command.__code__.co_firstlineno + 1}\)"
    with pytest.raises(EngineError, match=f"`command` in the adapter of Own raised KeyError: 'port' {place}"):
        own.server(HERE, SETTINGS, 8000)
    with pytest.raises(EngineError, match="`extra_body` in the adapter of Own raised KeyError: 'seed'"):
        own.encoder(RequestSettings(Path(), "gpt2"))
