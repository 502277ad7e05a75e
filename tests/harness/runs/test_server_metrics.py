"""What a server says of itself through a cell, held against its own log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.runs.reader import Run, load_run
from tests.harness.measured import run_online

from .conftest import Make, Watcher, report_of

pytestmark = pytest.mark.integration

LOAD = {"concurrency": [6], "n": 24, "input_len": 4, "output_len": 20}


def test_readings_are_on_the_clock_of_the_chunks(start_mock: Any, settings_for: Make) -> None:
    """Three of six requests are answered at once, in 0.12 s each."""
    server = start_mock("--metrics", "--slots", "3", "--ttft-ms", "25", "--itl-ms", "5")
    folder, _ = run_online(settings_for(server.url, metrics_interval=0.05, **LOAD), ["bench"], Watcher())
    run = load_run(folder)
    assert isinstance(run, Run) and not (folder / "raw").exists()
    served, requests = server.served_requests[-24:], run.requests.sort_values("t_sent")
    t0 = np.median([answer.t_received for answer in served] - requests["t_sent"].to_numpy())
    starts = np.array([answer.t_started for answer in served]) - t0
    ends = np.array([answer.t_end for answer in served]) - t0
    compared, changes = 0, np.concatenate([starts, ends])
    for at, took_ms, reported in run.server[["t", "took_ms", "running"]].to_numpy(np.float64):
        near = took_ms / 2e3 + 0.01
        if not (abs(changes - at) <= near).any():  # nothing began or ended around it
            assert reported == ((starts <= at) & (ends > at)).sum()
            compared += 1
    assert compared >= 3 and run.server["running"].max() == 3 and run.server["waiting"].max() == 3
    text = report_of(folder)
    assert "What the servers say of themselves" in text


def test_a_server_is_not_asked_where_that_is_off(start_mock: Any, settings_for: Make) -> None:
    server = start_mock("--metrics")
    folder, _ = run_online(
        settings_for(server.url, server_metrics=False, **LOAD | {"n": 2}), ["bench"], Watcher()
    )
    assert not (folder / "server.parquet").exists()
    assert "say of themselves" not in report_of(folder)
