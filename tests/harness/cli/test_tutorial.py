"""What docs/tutorial.md shows works: its server, measured; its adapter, started."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.engines.base import Contender, EngineSettings, Installation
from harness.engines.variants import Variant
from harness.schema.settings import EngineRef

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


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
    with running([sys.executable, str(EXAMPLES / "toy_server.py"), "--port", str(port)], port) as url:
        arguments = ["--base-url", url, "--max-model-len", "256", "--n", "12", "--scales", "0.02"]
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli.app", "online", *arguments,
             "--no-calibrate", "--warmup", "1", "--quiet", "--json", "--out", str(tmp_path)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (repeat, pooled) = json.loads(done.stdout)["summaries"]
    assert (pooled["num_success"], pooled["num_error"], repeat["repeat"]) == (12, 0, 0)
    assert pooled["ttft_ms"]["p50"] > 20 and pooled["tpot_ms"]["p50"] > 5
    assert next(tmp_path.glob("online_*/report.html")).is_file()


def test_the_adapter_says_what_to_start() -> None:
    spec = importlib.util.spec_from_file_location("toy", EXAMPLES / "toy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    engine, port = module.Toy(), free_port()
    found = Installation("openai", "1", "starlette", Path(sys.executable), "here")
    who = Contender(EngineRef(name="openai"), Variant(), "Toy")
    settings = EngineSettings(
        contender=who, model=Path("m"), served_name="m", device="cpu", dtype="bf16", max_model_len=64
    )
    launch = engine.command(found, settings, port)
    with running(list(launch.argv), port) as url, urllib.request.urlopen(url + launch.ready_path) as answer:
        assert json.load(answer)["data"][0]["id"] == launch.served_name
    with pytest.raises(Exception, match="no in-process API"):
        engine.offline(found, settings)
