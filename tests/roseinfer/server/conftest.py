"""A real `roseinfer serve` over real sockets, and a small client."""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from tests.roseinfer.server.clients import wait_for
from tests.roseinfer.server.fake_engine import INFO

ROOT = Path(__file__).parents[3]
#: The template of the server `chatting`, which has a context of CONTEXT tokens.
TEMPLATE = """{%- for message in messages %}
{{- bos_token + message.role + ': ' + message.content + '\\n' }}
{%- if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ (speaker or 'assistant') + ': ' }}{% endif %}"""
CONTEXT = 96


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def chunks(self) -> list[Any]:
        """The chunks of a stream, or the one body."""
        return self.events if self.headers["content-type"].startswith("text/event-stream") else [self.json]

    @property
    def choices(self) -> list[Any]:
        """The choices of all chunks."""
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    def text(self, index: int = 0) -> str:
        """The text of one choice."""
        return "".join(choice["text"] for choice in self.choices if choice["index"] == index)

    def tokens(self, index: int = 0) -> list[int]:
        """The tokens of one choice."""
        choices = [choice for choice in self.choices if choice["index"] == index]
        return [token for choice in choices for token in choice.get("token_ids", ())]

    @property
    def events(self) -> list[Any]:
        """A stream's chunks; it must end with [DONE]."""
        assert self.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in self.body.split(b"\n\n") if line]
        assert all(line.startswith(b"data: ") for line in lines)
        assert lines[-1] == b"data: [DONE]"
        return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-1]]


ENGINES = ("roseinfer.engine.process", "tests.roseinfer.server.fake_engine")


@dataclass
class Serving:
    """A server's process, the processes below it, and its log. `headers`: those of every request."""

    process: subprocess.Popen[str]
    port: int = 0
    log: list[str] = field(default_factory=list)
    headers: dict[str, Any] = field(default_factory=dict)

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
        self.engines = [child for child in self.below if {*child.cmdline()} & {*ENGINES}]
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
            connection.request(method, path, data, json_type | self.headers | (headers or {}))
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

    def becomes_idle(self, headers: dict[str, Any] | None = None) -> bool:
        """Return whether the engine has no request and every block is free, after a while."""
        return wait_for(
            lambda: (
                not self.load(headers)["inflight"]
                and self.request("/integrity", headers=headers).status == 200
            )
        )

    def ended(self, seconds: float = 60) -> bool:
        """Return whether the server and all processes below it are gone in time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._drain.join()
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


def start(
    model: str, *options: str, environment: dict[str, str] | None = None, module: str = "roseinfer.cli"
) -> subprocess.Popen[str]:
    """A KV cache for 8 requests of the longest kind is filled at once; that for all of 256 takes longer than
    the rest of the start. SIGINT has its default action, also where tests run in a shell's background."""
    command = ["env", "--default-signal=INT", sys.executable, "-m", module, "serve", "--model", model]
    command += ["--port", "0", "--device", "cpu", "--dtype", "fp32", "--threads", "1", "--no-warmup"]
    command += ["--kv-tokens", "8192", *options]
    environment = os.environ | (environment or {})
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


@pytest.fixture(scope="session")
def profile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to which `serving` writes profiles."""
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture
def profiles(profile_root: Path) -> Path:
    """A folder for the profiles of one test."""
    return Path(tempfile.mkdtemp(dir=profile_root))


@pytest.fixture(scope="session")
def serving(text_model: Any, integration: None, profile_root: Path) -> Iterator[Serving]:
    """One server with one front end, whose memory is watched, for all tests that leave it alive, and no error
    in its log. Tests do not depend on each other's prompts: it has no prefix cache."""
    options = (
        "--served-model-name", "tiny", "--frontend-processes", "1", "--profile-dir", str(profile_root),
        "--no-prefix-cache", "--allowed-host", "engine.example",
    )  # fmt: skip
    server = Serving(start(str(text_model.folder), *options))
    yield server
    server.close()
    assert not server.faults


@pytest.fixture(scope="session")
def keyed(text_model: Any, integration: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server with two front ends, keys from a file and the environment, a chat template and a short
    context, for all tests that leave it alive."""
    base = tmp_path_factory.mktemp("keyed")
    (base / "keys").write_text("first-key\nsecond-key\n")
    folder = shutil.copytree(text_model.folder, base / "chat")
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<|endoftext|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    keys = ("--api-key-file", str(base / "keys"))
    options = (*keys, "--frontend-processes", "2", "--max-model-len", str(CONTEXT))
    server = Serving(start(str(folder), *options, environment={"ROSEINFER_API_KEY": "third-key"}))
    yield server
    server.close()


@pytest.fixture
def chatting(keyed: Serving) -> Serving:
    """The same server for a client with a key."""
    server = copy.copy(keyed)
    server.headers = {"authorization": "Bearer third-key"}
    return server


@pytest.fixture
def serve(text_model: Any, integration: None) -> Iterator[Serve]:
    """Start a server of one's own; it is gone after the test."""
    with contextlib.ExitStack() as stack:

        def run(*options: str, folder: Path | None = None, **settings: Any) -> Serving:
            server = Serving(start(str(folder or text_model.folder), *options, **settings))
            stack.callback(server.close)
            return server

        yield run


@pytest.fixture
def fake(text_model: Any, tmp_path: Path) -> dict[str, Any]:
    """Settings of `serve` and `launch` for an engine without a model: see `fake_engine`."""
    info = tmp_path / "info.json"
    info.write_bytes(msgspec.json.encode(text_model.llm.engine.info))
    return {"module": ENGINES[1], "environment": {INFO: str(info)}}


@pytest.fixture
def launch(text_model: Any, integration: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a server's process and do not wait for it."""
    processes: list[subprocess.Popen[str]] = []

    def run(*options: str, **settings: Any) -> subprocess.Popen[str]:
        processes.append(start(str(text_model.folder), *options, **settings))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()
