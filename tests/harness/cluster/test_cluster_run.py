"""Runs on the nodes of a cluster, and the same without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from harness.cluster.this_machine import machines_of
from harness.engines.placement import physical_cores
from harness.errors import UsageError
from harness.records.parquet import read_records
from harness.report.render import summary
from harness.runs.events import Event, TooFewClients
from harness.runs.reader import load_run
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from tests.harness.cluster.conftest import SHORT_RUN, STORE_BYTES
from tests.harness.measured import calibration_of, run_online

QUICK = SHORT_RUN | {"n": 24, "clients": 4}


def measured(**given: Any) -> tuple[Path, OnlineResults]:
    return run_online(OnlineSettings.model_validate(QUICK | given))


def requests_of(folder: Path) -> pd.DataFrame:
    return read_records(folder).requests.sort_values("request", ignore_index=True)


def journal_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


@pytest.mark.cluster
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
    assert [entry["node"] for entry in journal_of(folder)] == [results.meta.hosts[0].name]
    address = results.meta.hosts[0].address
    assert f"listening on http://{address}:" in (folder / "logs" / "roseinfer.server.log").read_text()
    assert not running("harness.loadgen.client_main") and not running("harness.engines.process.guard")


def running(module: str) -> list[psutil.Process]:
    """Processes of a module that this cluster's nodes have started and that are still there."""
    ours = psutil.Process().children(recursive=True)
    nodes = [process for process in ours if process.name().startswith("ray::_Actor")]
    return [p for node in nodes for p in node.children(recursive=True) if module in p.cmdline()]


@pytest.mark.slow
def test_nodes_load_a_server_that_runs_already(cluster, tmp_path, start_mock):
    mock = start_mock("--ttft-ms", "20", "--itl-ms", "2")
    given = {"engines": ["openai"], "base_url": mock.url, "model": "auto", "max_model_len": 1024, "warmup": 0}
    shared = tmp_path / "shared"
    shared.mkdir()
    url = f"file://{shared}"
    folder, results = measured(**given, cluster="auto", out=tmp_path / "runs", tokenizer="none", share=url)
    requests = requests_of(folder)
    assert not any(shared.iterdir())
    assert len({*requests["host"]}) == 3 and requests["error"].isna().all()
    sent = {int(request) for request in requests["request"]}
    assert sent == {*range(QUICK["n"])} and len(requests) == QUICK["n"]
    assert all(host.role == "load" for host in results.meta.hosts)


@pytest.fixture
def client_server(cluster: Any, tmp_path: Path) -> Iterator[str]:
    """The address at which machines that are no nodes reach the cluster."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ray.util.client.server", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--mode", "proxy", "--address", cluster.address], stdout=log, stderr=log
        )
    yield f"ray://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("error", "hint"), [(ConnectionError("nobody"), "ray start"), (ImportError("lacks"), "pip install")]
)
def test_why_there_is_no_cluster(error: Exception, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", fail)
    settings = OnlineSettings.model_validate(QUICK | {"cluster": "ray://192.0.2.1:10001"})
    with pytest.raises(UsageError, match=f"192.0.2.1:10001: {error}") as caught, machines_of(settings):
        pass
    assert hint in caught.value.hint


@pytest.mark.integration
def test_a_time_limit_interrupts_a_run_on_a_cluster_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets a handler of its own for SIGTERM."""
    ray = pytest.importorskip("ray")
    nodes = pytest.importorskip("harness.cluster.ray_nodes")
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", lambda *_, **__: signal.signal(signal.SIGTERM, lambda *_: None))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with nodes.connected("auto"):
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.cluster
def test_a_machine_that_is_no_node_gives_the_commands(client_server: str, tmp_path: Path) -> None:
    folder, results = measured(cluster=client_server, load_nodes=1, out=tmp_path / "runs")
    assert requests_of(folder)["error"].isna().all()
    assert [host.role for host in results.meta.hosts] == ["engine", "load"]


@pytest.mark.cluster
def test_repeats_are_measured_side_by_side(cluster: Any, tmp_path: Path) -> None:
    fourth = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    try:
        folder, results = measured(cluster="auto", repeats=4, side_by_side=2, aa=True, out=tmp_path)
    finally:
        cluster.remove_node(fourth)
    requests = requests_of(folder)
    assert len(requests) == 8 * QUICK["n"] and requests["error"].isna().all()
    assert not requests.duplicated(["cell", "request"]).any()
    engines = [host.name for host in results.meta.hosts if host.role == "engine"]
    at = requests.drop_duplicates("cell").assign(node=lambda rows: rows["cell"].map(results.nodes))
    assert {*at["node"]} == {*engines} and len(engines) == 2
    assert (at.groupby(["label", "node"]).size() == 2).all()  # every engine alike on every node
    assert (at.groupby("repeat")["node"].nunique() == 1).all()
    assert sorted(entry["cell"] for entry in journal_of(folder)) == [*range(8)]
    assert "Nodes of engines, p50 over the mean of all nodes" in summary(load_run(folder, trust=True))


@pytest.mark.cluster
def test_a_closed_loop_is_sent_again_by_more_clients_of_all_nodes(cluster, tmp_path, start_mock, monkeypatch):
    found = calibration_of({1: (1e9, 0.01), 5: (1e9, 1e9)})
    monkeypatch.setattr("harness.cluster.ray_cluster.RayMachines.calibration", lambda *_: found)
    monkeypatch.setattr("harness.cluster.ray_cluster.RayMachines.clients", lambda *_: (3, 5))
    given = {"engines": ["openai"], "base_url": start_mock().url, "model": "auto", "max_model_len": 1024}
    given |= {"request_rate": None, "concurrency": [6], "clients": "auto", "repeats": 2}
    events: list[Event] = []
    settings = OnlineSettings.model_validate(QUICK | given | {"cluster": "auto", "out": tmp_path})
    folder, _ = run_online(settings, ["bench"], events.append)
    again = [event for event in events if isinstance(event, TooFewClients)]
    assert [(event.cell.index, event.clients, event.more) for event in again] == [(0, 3, 5)]
    requests = requests_of(folder)
    assert requests["error"].isna().all() and len({*requests["host"]}) == 3
    assert (requests.groupby("cell")["client"].nunique() == 5).all() and len(requests) == 2 * QUICK["n"]
    assert [len(entry["clients"]) for entry in journal_of(folder)] == [5, 5]


@pytest.mark.cluster
def test_a_resource_that_no_node_can_have(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing on CPU 1, bundle 1 and CPU 1: .*reserved"):
        measured(cluster="auto", engine_needs="bundle:1", out=tmp_path)


@pytest.mark.cluster
def test_engines_share_the_gpus_of_a_node_only_when_asked_to(cluster, tmp_path, monkeypatch):
    given = QUICK | {"cluster": "auto", "engine_needs": "GPU:1", "side_by_side": 2, "repeats": 2}
    given |= {"load_nodes": 1, "clients": 1, "out": tmp_path}
    monkeypatch.setattr("harness.cluster.ray_nodes.PLACE_S", 5.0)
    fourth = cluster.add_node(
        num_cpus=1, num_gpus=2, object_store_memory=STORE_BYTES, include_dashboard=False
    )
    try:
        with pytest.raises(UsageError, match="no 4 free nodes with CPU 1, GPU 1"):
            run_online(OnlineSettings.model_validate(given))
        sharing = OnlineSettings.model_validate(given | {"engines_per_node": 2})
        with machines_of(sharing) as machines:
            testbeds: list[Any] = [*machines.testbeds]
            engines = [testbed.nodes[0] for testbed in testbeds]
            gpus = [engine.call("ask", os.getenv, "CUDA_VISIBLE_DEVICES") for engine in engines]
            cpus = [{*engine.call("ask", os.sched_getaffinity, 0)} for engine in engines]
            assert sorted(gpus) == ["0", "1"] and len({engine.facts.machine for engine in engines}) == 1
            assert len(physical_cores()) < 2 or not cpus[0] & cpus[1]
            assert len({node.name for testbed in testbeds for node in testbed.nodes}) == 4
        folder, results = run_online(sharing)
    finally:
        cluster.remove_node(fourth)
    requests = requests_of(folder)
    assert len(requests) == 2 * QUICK["n"] and requests["error"].isna().all()
    assert len({*results.nodes.values()}) == 2
