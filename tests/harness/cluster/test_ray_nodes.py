"""Nodes of one machine for the time of a command (`scripts/ray_nodes.py`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from harness.errors import UsageError
from tests.harness.cluster.conftest import ROOT

COMMAND = """
import json, os, ray, subprocess, sys
ray.init(os.environ["RAY_ADDRESS"], logging_level=40, log_to_driver=False)
nodes = [node["Resources"].get("CPU") for node in ray.nodes()]
left = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(json.dumps({"nodes": nodes, "left": left.pid}))
sys.exit(7)
"""


def test_a_connection_that_is_interrupted_as_it_ends_is_closed_whole(integration, monkeypatch):
    """Importing Ray opens a socket."""
    ray = pytest.importorskip("ray")
    from harness.cluster.ray_nodes import connected

    shutdown = Mock(side_effect=[KeyboardInterrupt, None])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", Mock())
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(KeyboardInterrupt), connected("auto"):
        pass
    assert shutdown.call_count == 2


def test_an_engine_gets_as_many_cores_as_were_asked_for() -> None:
    pytest.importorskip("ray")
    from scripts.ray_nodes import cores_of_nodes

    cores = [(at, at + 16) for at in range(16)]
    assert [len(node) for node in cores_of_nodes(cores, 2, None)] == [4, 4, 4, 4]
    nodes = cores_of_nodes(cores, 2, 3)
    assert [len(node) for node in nodes] == [3, 5, 3, 5]
    assert [core for node in nodes for core in node] == cores
    with pytest.raises(UsageError, match="no core that sends: a pair has 8"):
        cores_of_nodes(cores, 2, 8)


FOLLOWS = """
import os, sys
from scripts.ray_nodes import ended
sys.exit(ended([sys.executable, "-c", sys.argv[1]], os.environ))
"""
REPORTS = """
import sys, time
try:
    print("runs", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("report", flush=True)
    sys.exit(3)
"""


def test_an_interrupted_command_ends_by_itself(integration: None) -> None:
    """SIGINT to the process that follows it, as `timeout -s INT` sends it, reaches it too."""
    pytest.importorskip("ray")
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWS, REPORTS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as follows:
        assert follows.stdout is not None and follows.stdout.readline() == "runs\n"
        follows.send_signal(signal.SIGINT)
        assert follows.communicate(timeout=30)[0] == "report\n"
    assert follows.returncode == 3


@pytest.mark.cluster
def test_a_command_has_the_nodes_and_leaves_nothing(integration: None, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    script = [sys.executable, "-m", "scripts.ray_nodes", "--out", str(tmp_path), "--pairs", "1"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ran = subprocess.run(
        [*script, sys.executable, "-c", COMMAND],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=200,
    )
    assert ran.returncode == 7
    found = json.loads(ran.stdout)
    assert len(found["nodes"]) == 2 and all(found["nodes"])
    assert not psutil.pid_exists(found["left"])
    assert {path.name for path in (tmp_path / "ray").iterdir()} >= {"engine0.log", "load0.log", "engine0"}
    folder = str(tmp_path)
    assert not [p for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or [])]
