"""How a run was made, in numbers that a person reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.report.text.provenance import client, hardware, trace_facts
from harness.runs.reader import load_run
from harness.schema.run_info import RunInfo

REPORTS = Path(__file__).parents[3] / "reports"


@pytest.fixture(scope="module")
def meta() -> RunInfo:
    return load_run(REPORTS / "h100-gpt2", trust=True).meta


def test_memory_is_in_gib_also_that_of_a_gpu(meta: RunInfo) -> None:
    shown = dict(hardware(meta.environment))
    assert (shown["memory total"], shown["gpus.0.memory total"]) == ("251.8 GiB", "79.6 GiB")
    assert shown["gpus.0.memory clock mhz"] == "2619"
    assert dict(hardware({"memory_total": "unknown"})) == {"memory total": "unknown"}


def test_counts_of_a_trace_have_commas(meta: RunInfo) -> None:
    assert meta.trace is not None
    shown = dict(trace_facts(meta.trace))
    assert (shown["input tokens"], shown["requests"], shown["dropped"]) == ("410,491", "637", "0")


def test_timing_errors_say_of_how_many_processes_and_have_no_negative_zero(meta: RunInfo) -> None:
    rows = client(meta.environment)
    names = [name for name, _ in rows]
    assert len(set(names)) == len(names)
    assert "timing error p50 / p99, 8 in flight by 1 client process" in names
    assert not any("-0.00" in text for _, text in rows)
