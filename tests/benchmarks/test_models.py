"""A model that there is not ends a benchmark of this project with the names of those that there are."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

LLAMAS = (
    "llama_batch",
    "llama_closed_loop",
    "llama_kernels",
    "llama_parts",
    "llama_soak",
    "llama_steps",
    "stream_plans",
)
OTHERS = ("cpu_kernels", "fp8_quality", "sameness", "serve_a_few")


@pytest.mark.parametrize(
    ("script", "known"),
    [(script, "random:qwen3-0.6b, random:qwen3-1.7b") for script in LLAMAS]
    + [(script, "random:gpt2-tiny, random:gpt2") for script in OTHERS],
)
def test_an_unknown_model_is_refused_with_the_known_ones(
    script: str, known: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    given = ["--model", "random:nope"] if script == "cpu_kernels" else ["random:nope"]
    monkeypatch.setattr(sys, "argv", [script, *given])
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{script}").main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "'random:nope'; there are " in said and known in said
