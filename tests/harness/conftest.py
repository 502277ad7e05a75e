"""Mock servers in processes of their own."""

from __future__ import annotations

import http.client
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from harness.calibration.mock_process import MockServerProcess
from harness.calibration.mock_process import mock_server as mock_process
from harness.engines import local
from harness.engines.find import Place, probe
from harness.metrics import validity
from harness.mock_server.script import ServedRequest
from harness.records import tokens
from harness.runs import online, resolved
from harness.telemetry import machine
from harness.telemetry.revision import describe, git_revision, source_hash
from tests.harness.bench_process import quicken

#: A mock server answers soon.
QUICK = ("--ttft-ms", "4", "--itl-ms", "1")
Probe = Callable[[Place, Sequence[str]], dict[str, str]]


class MockServer:
    """A mock server that answers at `url`."""

    def __init__(self, running: MockServerProcess) -> None:
        self.port, self.process, self._running = running.port, running.process, running
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def served_requests(self) -> list[ServedRequest]:
        """Records of its requests, in the order in which their answers ended."""
        return self._running.all_served_requests()

    def ask(self, body: Any, path: str = "/v1/completions") -> tuple[int, bytes]:
        """The status and the body of the answer to a POST."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    def end(self) -> None:
        """Kill it; its port answers no more."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session", autouse=True)
def quick_runs() -> Iterator[None]:
    """Those in this process; its interpreter, which roseinfer runs in, is asked for its versions once, and
    the files of the project, which are the same in every run, are read once."""
    quicken()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "probe", remembering(probe))
        patch.setattr(resolved, "git_revision", cache(git_revision))
        patch.setattr(machine, "revision", SimpleNamespace(describe=cache(describe)))
        hashed = cache(source_hash)
        for module in (resolved, online):
            patch.setattr(module, "source_hash", hashed)
        yield


def remembering(probe: Probe) -> Probe:
    """Ask this interpreter once, unless it is given an environment; ask others each time."""
    here = Path(sys.executable)
    versions = cache(lambda distributions: probe(Place(here, ""), distributions))

    def ask(where: Place, distributions: Sequence[str]) -> dict[str, str]:
        if where.env or where.python != here:
            return probe(where, distributions)
        return dict(versions(tuple(distributions)))

    return ask


@pytest.fixture
def chunks_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk has the time at which it came, also where a server that was not running for a while wrote
    several together, which are one in a record."""
    monkeypatch.setattr(tokens, "join_near", lambda events, t_sent: list(events))


@pytest.fixture
def any_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell is invalid because the client, on a busy machine, sent late: for runs of this process that are
    about something else."""
    monkeypatch.setattr(validity, "LAG_LIMIT_MS", math.inf)


@pytest.fixture
def start_mock(tmp_path: Path, integration: None) -> Iterator[Callable[..., MockServer]]:
    """Starts mock servers with the options of `python -m harness.mock_server`, and a script's behaviours."""
    with ExitStack() as servers:

        def start(*options: str, script: Sequence[dict[str, Any]] = ()) -> MockServer:
            if script:
                file = tmp_path / f"script-{uuid4().hex}.json"
                file.write_text(json.dumps(script))
                options = ("--script", str(file), *options)
            return MockServer(servers.enter_context(mock_process(*QUICK, *options)))

        yield start


@pytest.fixture(scope="session")
def running_mock() -> Iterator[MockServer]:
    with mock_process(*QUICK) as running:
        yield MockServer(running)


@pytest.fixture
def shared_mock(integration: None, running_mock: MockServer) -> MockServer:
    """A server for tests whose requests say how they are answered, and which do not read its log."""
    return running_mock


@pytest.fixture(scope="session")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a file with the key and the certificate of a host, once for each name."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("certificates")

    @cache
    def make(name: str) -> Path:
        path, key = folder / f"{name}.pem", folder / f"{name}.key"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        kind = "IP" if name[0].isdigit() else "DNS"
        command += [
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-days",
            "2",
            "-addext",
            f"subjectAltName={kind}:{name}",
        ]
        subprocess.run([*command, "-keyout", key, "-out", path], check=True, capture_output=True)
        path.write_text(path.read_text() + key.read_text())
        return path

    return make


@pytest.fixture
def mock_server(start_mock: Callable[..., MockServer]) -> MockServer:
    return start_mock()
