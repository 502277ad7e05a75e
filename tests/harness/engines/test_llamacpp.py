"""llama.cpp: where its program is, what it is started with, and the times that its streams end with."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from harness.engines import find, flags
from harness.engines.base import EngineSettings, Installation, Missing
from harness.engines.registry import LOCAL, contender
from harness.errors import EngineError
from harness.records.stream import read_stream
from harness.spec.settings import EngineRef

ENGINE = LOCAL["llamacpp"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `llama-server` in PATH, and nothing configured."""
    for module in (find, flags):
        monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'version: 6500 (abc1234)'\necho '  --no-cache-prompt'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def _settings(model: Path, **changes: object) -> EngineSettings:
    given = {"device": "cpu", "dtype": "fp32", "max_model_len": 512, **changes}
    return EngineSettings(contender(EngineRef(name="llamacpp")), model, "m", **given)


def test_it_is_found_in_path(program: Path):
    found = ENGINE.find()
    assert isinstance(found, Installation)
    assert (found.version, found.python, found.how) == ("6500", program, "PATH")
    program.unlink()
    assert isinstance(ENGINE.find(), Missing)


def test_every_slot_has_a_whole_context(program: Path, tmp_path: Path):
    (tmp_path / "m.gguf").touch()
    argv = ENGINE.server(ENGINE.installed(), _settings(tmp_path, max_concurrency=10), 8000).argv
    given = dict(pairwise(argv))
    assert (given["--parallel"], given["--ctx-size"], given["--n-gpu-layers"]) == ("10", "5120", "0")
    assert given["--model"] == str(tmp_path / "m.gguf")
    assert argv[-1] == "--no-cache-prompt"
    cached = ENGINE.server(ENGINE.installed(), _settings(tmp_path, prefix_cache=True), 8000).argv
    assert "--no-cache-prompt" not in cached


def test_it_needs_one_gguf_file(program: Path, tmp_path: Path):
    with pytest.raises(EngineError, match=r"needs one GGUF file in .*, there are 0"):
        ENGINE.server(ENGINE.installed(), _settings(tmp_path), 8000)


def test_its_timings_tell_prefill():
    last = {
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "timings": {"prompt_ms": 12.5},
    }
    body = [
        b'data: {"choices": [{"text": " a", "finish_reason": null}]}\n\n',
        b'data: {"choices": [{"text": " b", "finish_reason": "length"}]}\n\n',
        b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n",
    ]
    stream = read_stream([(float(i), data) for i, data in enumerate(body)], complete=True)
    assert (stream.prefill_ms, stream.completion_tokens, stream.done) == (12.5, 2, True)
