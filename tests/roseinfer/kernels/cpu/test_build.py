"""Without a compiler that works, an engine on a CPU does the same by PyTorch's operators."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.kernels.cpu import build, ops

pytestmark = pytest.mark.integration

SCRIPT = """
from roseinfer.config import EngineConfig
from roseinfer.llm import LLM
from roseinfer.request.params import SamplingParams
llm = LLM(EngineConfig("random:gpt2-tiny", device="cpu", dtype="bf16", kv_tokens=1024, warmup=False))
tokens = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
print(tokens, llm.engine.info.runner.attention)
"""


def test_a_broken_compiler_is_asked_once_and_named(tmp_path: Path) -> None:
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(f"#!/bin/sh\necho x >> {calls}\necho 'out of luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    env = os.environ | {"CXX": str(compiler), "ROSEINFER_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("]] torch\n")
    assert "out of luck" in done.stderr
    assert calls.read_text() == "x\n"


@pytest.mark.parametrize("name", ["CXX", "ROSEINFER_CACHE"])
def test_a_compiler_or_cache_that_cannot_be_is_named(name, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    settings = {"ROSEINFER_CACHE": str(tmp_path / "cache"), name: str(tmp_path / "file" / "below")}
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(build, "load_once", build.load_once.__wrapped__)  # whatever was loaded before
    with pytest.raises(build.BuildError, match=re.escape(settings[name])):
        build.load_library()


def test_a_profiler_shows_kernels_as_operators() -> None:
    x = torch.zeros(2, 64)
    ops.swiglu(x)
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        ops.swiglu(x)
        ops.swiglu(x)
    events = {event.key: event.count for event in taken.key_averages() if not event.is_user_annotation}
    assert events["roseinfer::swiglu_fp32"] == 2
