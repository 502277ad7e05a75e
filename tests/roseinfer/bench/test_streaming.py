"""`bench-streaming` prints what it ran with, in the order that its readers know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roseinfer.cli import app

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
    base = ["bench-streaming", "--model", str(text_model.folder), "--device", "cpu", "--dtype", "fp32"]
    base += ["--no-warmup", "--num-requests", "5", "--max-new-tokens", "7", "--submit-interval-ms", "1"]
    done = CliRunner().invoke(app, [*base, *options, "--json", str(tmp_path / "out.json")])
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
