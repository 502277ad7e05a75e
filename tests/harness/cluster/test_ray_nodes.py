"""Nodes of one machine for the time of a command (`scripts/ray_nodes.py`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from tests.harness.cluster.conftest import ROOT

COMMAND = """
import json, os, ray, subprocess, sys
ray.init(os.environ["RAY_ADDRESS"], logging_level=40, log_to_driver=False)
nodes = [node["Resources"].get("CPU") for node in ray.nodes()]
left = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(json.dumps({"nodes": nodes, "left": left.pid}))
sys.exit(7)
"""


def test_a_connection_that_is_interrupted_as_it_ends_is_closed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from harness.cluster.ray_nodes import connected

    shutdown = Mock(side_effect=[KeyboardInterrupt, None])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", Mock())
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(KeyboardInterrupt), connected("auto"):
        pass
    assert shutdown.call_count == 2


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
