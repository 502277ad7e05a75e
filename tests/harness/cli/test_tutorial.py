"""What docs/tutorial.md shows works: its server, measured. Its package is tested in test_plugins.py."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.bench_process import bench_command

from .run_checks import check_end

pytestmark = pytest.mark.integration

SERVER = Path(__file__).parents[3] / "docs" / "examples" / "toy" / "rosebench_toy" / "server.py"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@contextlib.contextmanager
def running(argv: list[str], port: int) -> Iterator[str]:
    """A server that answers within two minutes, and is gone afterwards."""
    server = subprocess.Popen(argv)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        yield url
    finally:
        server.kill()
        server.wait()


def test_a_running_server_is_measured(tmp_path: Path) -> None:
    port = free_port()
    with running([sys.executable, str(SERVER), "--port", str(port)], port) as url:
        arguments = ["--base-url", url, "--max-model-len", "256", "--n", "12", "--scales", "0.02"]
        done = subprocess.run(
            bench_command(
                "online", *arguments, "--no-calibrate", "--warmup", "1", "--quiet", "--json",
                "--out", str(tmp_path), "--no-figures",
            ),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    check_end(done.returncode, next(tmp_path.glob("online_*")))
    (repeat, pooled) = json.loads(done.stdout)["summaries"]
    assert (pooled["num_success"], pooled["num_error"], repeat["repeat"]) == (12, 0, 0)
    assert pooled["ttft_ms"]["p50"] > 60 and pooled["tpot_ms"]["p50"] > 5
    assert next(tmp_path.glob("online_*/report.html")).is_file()
