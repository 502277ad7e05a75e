"""A real vLLM profiled under load, its figures held against the table that its own profiler writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.engines.base import Missing
from harness.engines.registry import LOCAL
from harness.profiling.analysis import analyse
from harness.profiling.plan import ProfileOptions
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.profiling.stage import profile_run
from harness.profiling.subject import begin_run, open_subject
from harness.schema.online_settings import OnlineSettings
from tests.harness.profiling.conftest import totals

#: A row of `key_averages().table()` on a CPU: name, self time, number of calls.
ROW = re.compile(r"\s*(?P<name>.+?)\s{2,}[\d.]+%\s+(?P<own>[\d.]+)(?P<unit>us|ms|s)\s.*\s(?P<calls>\d+)\s*$")
MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@pytest.mark.peer("vllm")
def test_figures_are_those_of_the_profiler(tmp_path: Path) -> None:
    if not {"BENCH_PEERS", "BENCH_ENGINES"} & os.environ.keys():
        pytest.skip("neither BENCH_PEERS nor BENCH_ENGINES names real engines")
    if isinstance(found := LOCAL["vllm"].find(), Missing):
        pytest.skip(f"{found.reason}; {found.hint}")
    settings = OnlineSettings.model_validate(
        {
            "engines": ["vllm"], "model": "random:gpt2-tiny", "device": "cpu", "concurrency": 3,
            "input_len": 32, "output_len": 20, "warmup": 3, "calibrate": False, "out": tmp_path,
        }
    )  # fmt: skip
    folder = begin_run(settings, ["bench"])
    [run] = profile_run(
        open_subject(folder, None, lambda event: None), ProfileOptions(steps=24), lambda event: None
    ).runs
    assert run.error is None
    [figures] = analyse(folder).figures
    assert "execute_context" in figures.steps_by
    assert figures.steps["decode"].batch == pytest.approx(3, abs=0.5)
    output = folder / run.output_dir
    read = totals(read_torch_trace(output / "trace.json.gz"))
    [table] = output.glob("rank0*.txt")
    rows = [row for line in table.read_text().splitlines() if (row := ROW.match(line))]
    assert len(rows) > 20
    for row in rows:
        count, own = read[row["name"]]
        assert count == int(row["calls"])
        assert own == pytest.approx(float(row["own"]) * MICROSECONDS[row["unit"]], rel=0.01, abs=1), row[
            "name"
        ]
