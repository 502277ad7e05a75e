"""A model that there is not ends a benchmark of this project with the names of those that there are."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from benchmarks.llama.__main__ import MEASUREMENTS

LLAMAS = [("llama.__main__", [what, "random:nope"]) for what in MEASUREMENTS]
OTHERS = [("cpu_kernels", ["--model", "random:nope"]), ("serve_a_few", ["random:nope"])]


@pytest.mark.parametrize(
    ("script", "arguments", "models"),
    [(*llama, ("random:qwen3-0.6b", "random:qwen3-1.7b")) for llama in LLAMAS]
    + [(*other, ("random:gpt2-tiny", "random:gpt2")) for other in OTHERS],
)
def test_an_unknown_model_is_refused_with_those_there_are(script, arguments, models, monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{script}").main()
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("random:nope", *models))
