"""`bench-streaming` prints what it ran with, in the order that its readers know, and ends where it fails."""

from __future__ import annotations

import itertools
import json
import os
import queue
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from roseinfer.bench import streaming
from roseinfer.cli import app
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.request.params import Finished, FinishReason, RequestError, SamplingParams
from roseinfer.scheduler.scheduler import StepResult
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


class Late:
    """An engine whose one step is best launched once a second request has come, which does when this is
    asked."""

    def __init__(self, arrived: queue.SimpleQueue[Any], prompt: Any) -> None:
        self._arrived, self._prompt = arrived, prompt
        self.has_work, self.seen = False, list[int]()

    @property
    def launch_at(self) -> float:
        if len(self.seen) != 1:
            return 0.0
        self._arrived.put((1, self._prompt))
        return time.monotonic() + 600

    def add(self, index: int, prompt: Any, params: SamplingParams) -> None:
        self.seen.append(index)
        self.has_work = True

    def step(self) -> StepResult | None:
        if not self.has_work:
            return None
        self.has_work = False
        self._arrived.put(None)
        ends = tuple(Finished(index, FinishReason.LENGTH, 0, 0, 0) for index in self.seen)
        return StepResult(np.array(self.seen), np.array(self.seen), ends)


def test_what_comes_before_the_launch_is_in_it(text_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    prompt = np.ones(3, np.int32)
    arrived.put((0, prompt))
    engine = Late(arrived, prompt)
    monkeypatch.setattr(streaming, "Engine", lambda config: engine)
    load = streaming.StreamingLoad("a", False, True, 0, 2, 1, 1, 0.0, "absolute", False)
    bench = streaming.StreamingBench(EngineConfig(str(text_model.folder)), load)
    timelines = [streaming.Timeline(0.0, 0.0) for _ in range(2)]
    bench.serve(arrived, timelines)
    assert engine.seen == [0, 1] and [len(timeline.shown) for timeline in timelines] == [1, 1]


@pytest.mark.parametrize("option", ["--pretok", "--unique-prompts"])
def test_a_prompt_that_is_not_utf8_is_refused(text_model: Any, option: str) -> None:
    prompt = os.fsdecode(b"caf\xe9")
    done = CliRunner().invoke(app, [*_command(text_model), option, "--prompt", prompt])
    assert isinstance(done.exception, ConfigError) and "not UTF-8" in str(done.exception)


def _command(text_model: Any) -> list[str]:
    command = ["bench-streaming", "--model", str(text_model.folder), "--device", "cpu", "--dtype", "fp32"]
    command += ["--kv-tokens", "4096", "--no-warmup"]
    return [*command, "--num-requests", "5", "--max-new-tokens", "7"]
