"""Runs on the nodes of a cluster, and the same without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from harness.runs.online import run_online
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults

QUICK: dict[str, Any] = {
    "model": "random:gpt2-tiny",
    "device": "cpu",
    "engines": "roseinfer",
    "request_rate": "20",
    "n": 24,
    "input_len": 16,
    "output_len": 4,
    "warmup": 2,
    "clients": 4,
    "calibrate": False,
    "check_answers": False,
}


def measured(**given: Any) -> tuple[Path, OnlineResults]:
    return run_online(OnlineSettings.model_validate(QUICK | given), ["bench"], lambda event: None)


def requests_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "requests.parquet").sort_values("request", ignore_index=True)


@pytest.mark.slow
def test_one_schedule_is_sent_by_several_nodes_as_by_one(cluster: Any, tmp_path: Path) -> None:
    folder, results = measured(cluster="auto", out=tmp_path / "cluster")
    alone, _ = measured(out=tmp_path / "alone")
    assert {path.name for path in folder.iterdir()} == {path.name for path in alone.iterdir()}
    ours, theirs = requests_of(folder), requests_of(alone)
    same = ["request", "input_tokens", "output_tokens", "t_sched", "error", "client", "load", "label"]
    pd.testing.assert_frame_equal(ours[same], theirs[same])
    assert ours["error"].isna().all() and len(ours) == QUICK["n"]
    hosts = [host for host in results.meta.hosts if host.role == "load"]
    assert [host.role for host in results.meta.hosts] == ["engine", "load", "load"]
    assert {*ours["host"]} == {host.name for host in hosts} and theirs["host"].isna().all()
    [senders] = results.senders.values()
    for sender in senders:
        own = ours[ours["host"] == sender.name]
        assert len(own) == sender.requests == QUICK["n"] / 2
        assert {*own["client"]} <= {*sender.clients}
        assert sender.clock.bound_ms >= sender.clock.round_trip_ms / 4 > 0
        assert abs(sender.clock.offset_s) <= 1e-3 * sender.clock.bound_ms  # one kernel, one clock
        assert sender.machine is not None
    journal = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert [entry["node"] for entry in journal] == [results.meta.hosts[0].name]
    address = results.meta.hosts[0].address
    assert f"listening on http://{address}:" in (folder / "logs" / "roseinfer.server.log").read_text()
    assert not running("harness.loadgen.client_main") and not running("harness.engines.process.guard")


def running(module: str) -> list[psutil.Process]:
    """Processes of a module that this cluster's nodes have started and that are still there."""
    nodes = [process for process in psutil.process_iter() if process.name().startswith("ray::_Actor")]
    return [p for node in nodes for p in node.children(recursive=True) if module in p.cmdline()]


@pytest.mark.slow
def test_nodes_load_a_server_that_runs_already(
    cluster: Any, tmp_path: Path, start_mock: Callable[..., Any]
) -> None:
    mock = start_mock("--ttft-ms", "20", "--itl-ms", "2")
    given = {"engines": ["openai"], "base_url": mock.url, "model": "auto", "max_model_len": 1024, "warmup": 0}
    folder, results = measured(**given, cluster="auto", out=tmp_path, tokenizer="none")
    requests = requests_of(folder)
    assert len({*requests["host"]}) == 3 and requests["error"].isna().all()
    sent = {int(request) for request in requests["request"]}
    assert sent == {*range(QUICK["n"])} and len(requests) == QUICK["n"]
    assert all(host.role == "load" for host in results.meta.hosts)
