"""Adapters of other packages: what they return, and what they raise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import EngineSettings, EngineVariant, Installation, Launch, RequestSettings
from harness.engines.local import LocalEngine
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


def test_paths_and_numbers_of_a_command_become_text():
    argv: Any = ("own", "--model", SETTINGS.model, "--port", 8000)
    env: Any = {"THREADS": 2}
    launch = Own(lambda settings, port: Launch(argv, "gpt2", env)).server(HERE, SETTINGS, 8000)
    assert launch.argv == ("own", "--model", "/models/gpt2", "--port", "8000")
    assert launch.env == {"THREADS": "2"}


def test_an_adapter_that_fails_is_an_engine_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> Any:
        raise KeyError("port")

    place = rf"\({__file__}, line {Own.command.__code__.co_firstlineno + 1}\)"
    with pytest.raises(EngineError, match=f"`command` in the adapter of Own raised KeyError: 'port' {place}"):
        Own(fail).server(HERE, SETTINGS, 8000)
    own = Own(lambda settings, port: Launch(("own",), "gpt2"))
    for method in ("extra_body", "prepare"):
        monkeypatch.setattr(own, method, fail)
    monkeypatch.setattr(own, "installed", lambda: HERE)
    with pytest.raises(EngineError, match="`extra_body` in the adapter of Own raised KeyError: 'port'"):
        own.encoder(RequestSettings(Path(), "gpt2"))
    with (
        pytest.raises(EngineError, match="`prepare` in the adapter of Own raised KeyError: 'port'"),
        own.open(SETTINGS, tmp_path / "log"),
    ):
        pass
