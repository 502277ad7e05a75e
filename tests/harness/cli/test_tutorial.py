"""The server that docs/tutorial.md shows, measured. Its package is tested in test_plugins.py."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .run_checks import check_end

SERVER = Path(__file__).parents[3] / "docs" / "examples" / "toy" / "rosebench_toy" / "server.py"


def test_a_running_server_is_measured(bench: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = subprocess.Popen([sys.executable, str(SERVER), "--port", port])
    try:
        done = bench(
            "online", "--base-url", f"http://127.0.0.1:{port}", "--wait-ready", "120", "--out", str(tmp_path),
            "--n", "12", "--scales", "0.02", "--max-model-len", "256", "--no-calibrate", "--warmup", "1",
            "--quiet", "--json", "--no-figures",
        )  # fmt: skip
    finally:
        server.kill()
        server.wait()
    [folder] = tmp_path.glob("online_*")
    check_end(done.code, folder)
    (repeat, pooled) = json.loads(done.out)["summaries"]
    assert (pooled["num_success"], pooled["num_error"], repeat["repeat"]) == (12, 0, 0)
    assert pooled["ttft_ms"]["p50"] > 60 and pooled["tpot_ms"]["p50"] > 5
    assert (folder / "report.html").is_file()
