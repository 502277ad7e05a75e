"""A real `roseinfer serve` over real sockets, and a small client."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """A stream's chunks; it must end with [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in self.body.split(b"\n\n") if line]
        assert all(line.startswith(b"data: ") for line in lines)
        assert lines[-1] == b"data: [DONE]"
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


@dataclass
class Serving:
    """A server's process, the processes below it, and its log."""

    process: subprocess.Popen[str]
    port: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if listening := re.search(r"listening on http://127.0.0.1:(\d+)", line):
                self.port = int(listening[1])
                break
        else:
            raise AssertionError("".join(self.log))
        self.below = psutil.Process(self.process.pid).children()
        self.engines = [child for child in self.below if "roseinfer.engine.process" in child.cmdline()]
        self.engine = self.engines[0]
        self.front_ends = [child for child in self.below if child not in self.engines]
        self._drain = threading.Thread(target=lambda: self.log.extend(self.process.stderr or ()))
        self._drain.start()

    def request(
        self, path: str, body: Any = None, method: str | None = None, headers: dict[str, Any] | None = None
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            method = method or ("GET" if body is None else "POST")
            json_type = {} if method == "GET" else {"content-type": "application/json"}
            connection.request(method, path, data, json_type | (headers or {}))
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())

    def complete(self, prompt: Any, **settings: Any) -> Reply:
        """Greedy unless `settings` say otherwise."""
        headers = settings.pop("headers", None)
        return self.request(
            "/v1/completions", {"prompt": prompt, "temperature": 0} | settings, headers=headers
        )

    @property
    def faults(self) -> list[str]:
        """The errors in the log, but not that of a profiler which was built for CUDA and finds no GPU."""
        errors = (line for line in self.log if "Traceback" in line or "ERROR" in line)
        return [line for line in errors if "gpuGetDeviceCount failed" not in line]

    def load(self, headers: dict[str, Any] | None = None) -> dict[str, Any]:
        load: dict[str, Any] = self.request("/server_info", headers=headers).json["load"]
        return load

    def becomes_idle(self, seconds: float = 60, headers: dict[str, Any] | None = None) -> bool:
        """Whether the engine has no request and every block is free, after a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            idle = not self.load(headers)["inflight"]
            if idle and self.request("/integrity", headers=headers).status == 200:
                return True
            time.sleep(0.01)
        return False

    def ended(self, seconds: float = 60) -> bool:
        """Whether the server and all processes below it are gone in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return not psutil.wait_procs(self.below, seconds)[1]

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if not self.ended():
            self.process.kill()
            for child in self.below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self._drain.join()


Serve = Callable[..., Serving]


def start(model: str, *options: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A KV cache for 8 requests of the longest kind is filled at once; that for all of 256 takes longer than
    the rest of the start. SIGINT has its default action, also where tests run in a shell's background."""
    command = ["env", "--default-signal=INT"]
    command += [sys.executable, "-m", "roseinfer.cli", "serve", "--model", model, "--port", "0"]
    command += ["--device", "cpu", "--dtype", "fp32", "--threads", "1", "--no-warmup"]
    command += ["--kv-tokens", "8192", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {}))


@pytest.fixture(scope="session")
def profile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `serving` writes profiles."""
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture
def profiles(profile_root: Path) -> Path:
    """A folder for the profiles of one test."""
    return Path(tempfile.mkdtemp(dir=profile_root))


@pytest.fixture(scope="session")
def serving(text_model: Any, integration: None, profile_root: Path) -> Iterator[Serving]:
    """One server with two front ends for all tests that leave it alive, and no error in its log. What it
    computes does not depend on the tests before: it has no prefix cache."""
    options = (
        *("--served-model-name", "tiny", "--frontend-processes", "2", "--profile-dir", str(profile_root)),
        "--no-prefix-cache",
    )
    server = Serving(start(str(text_model.folder), *options))
    yield server
    server.close()
    assert not server.faults


@pytest.fixture(scope="session")
def single(text_model: Any, integration: None) -> Iterator[Serving]:
    """One server with one front end, whose memory is watched, for all tests that leave it alive."""
    options = ("--frontend-processes", "1", "--allowed-host", "engine.example")
    server = Serving(start(str(text_model.folder), *options))
    yield server
    server.close()


@pytest.fixture(scope="session")
def keyed(text_model: Any, integration: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server with two front ends, and with keys from a file and the environment."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("first-key\nsecond-key\n")
    server = Serving(
        start(
            str(text_model.folder), "--api-key-file", str(file), "--frontend-processes", "2",
            environment={"ROSEINFER_API_KEY": "third-key"},
        )
    )  # fmt: skip
    yield server
    server.close()


@pytest.fixture
def serve(text_model: Any, integration: None) -> Iterator[Serve]:
    """Start a server of one's own; it is gone after the test."""
    with contextlib.ExitStack() as stack:

        def run(
            *options: str, folder: Path | None = None, environment: dict[str, str] | None = None
        ) -> Serving:
            server = Serving(start(str(folder or text_model.folder), *options, environment=environment))
            stack.callback(server.close)
            return server

        yield run


@pytest.fixture
def launch(text_model: Any, integration: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a server's process and do not wait for it."""
    processes: list[subprocess.Popen[str]] = []

    def run(*options: str) -> subprocess.Popen[str]:
        processes.append(start(str(text_model.folder), *options))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()
