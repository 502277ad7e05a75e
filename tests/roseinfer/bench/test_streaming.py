"""`bench-streaming` prints what it ran with, in the order that its readers know, and ends where it fails."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roseinfer.cli import app
from roseinfer.config import ConfigError
from roseinfer.request.params import RequestError
from roseinfer.tokenizer.tokenizer import Tokenizer

NAMES = [
    "Model", "Device", "Pretok", "Tokenize workers", "Stream interval", "Paged attention", "CUDA Graph",
    "NVTX", "Requests", "Prompt tokens (total)", "Completion tokens (total)", "Submit wall",
    "Submit interval/schedule", "Submit lag", "add_request latency", "Tokenize", "Queue wait (post-tok)",
    "Prefill->first token", "TTFT", "TPOT", "ITL", "Latency", "Throughput (completion,total)",
]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        ["--warmup-runs", "1", "--repeat-runs", "2", "--tokenize-workers", "2", "--unique-prompts"],
        ["--warmup-runs", "0", "--pretok", "--stream-interval", "3", "--submit-schedule", "relative"],
    ],
)
def test_lines_and_json(text_model: Any, tmp_path: Path, options: list[str]) -> None:
    command = [*_command(text_model), "--submit-interval-ms", "1", *options]
    done = CliRunner().invoke(app, [*command, "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out.json").read_text())
    cold = "0" in options
    assert list(written) == (["Cold start", "Warm"] if cold else ["Warm"])
    shown = [line for line in done.stdout.splitlines() if not line.startswith("[")]
    assert [line.partition(":")[0] for line in shown] == NAMES * len(written)
    assert all(list(values) == NAMES for values in written.values())
    warm = written["Warm"]
    runs = 1 if cold else 2
    assert warm["Requests"] == 5 * runs and warm["Completion tokens (total)"] == 35 * runs
    assert warm["TTFT"]["p50"] >= warm["Prefill->first token"]["p50"] > 0
    assert warm["Latency"]["p50"] > warm["TTFT"]["p50"]
    completion, total = shown[-1].split()[-2].split(",")
    assert float(total) > float(completion) > 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_error_of_the_submitting_thread_ends_it(
    text_model: Any, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, calls = Tokenizer.encode, itertools.count()

    def fail_third(self: Tokenizer, text: str) -> Any:
        if next(calls) == 2:
            raise ArithmeticError
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", fail_third)
    done = CliRunner().invoke(app, [*_command(text_model), "--tokenize-workers", workers])
    assert isinstance(done.exception, ArithmeticError)


def test_an_error_of_the_engine_ends_the_submitting_thread(text_model: Any) -> None:
    command = [*_command(text_model), "--max-new-tokens", "100000", "--submit-interval-ms", "3600000"]
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, RequestError) and "context length" in str(done.exception)


@pytest.mark.parametrize("option", ["--pretok", "--unique-prompts"])
def test_a_prompt_that_is_not_utf8_is_refused(text_model: Any, option: str) -> None:
    prompt = os.fsdecode(b"caf\xe9")
    done = CliRunner().invoke(app, [*_command(text_model), option, "--prompt", prompt])
    assert isinstance(done.exception, ConfigError) and "not UTF-8" in str(done.exception)


def _command(text_model: Any) -> list[str]:
    command = ["bench-streaming", "--model", str(text_model.folder), "--device", "cpu", "--dtype", "fp32"]
    command += ["--kv-tokens", "4096", "--no-warmup"]
    return [*command, "--num-requests", "5", "--max-new-tokens", "7"]
