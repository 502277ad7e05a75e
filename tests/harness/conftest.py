"""Mock servers in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


@dataclass
class RunningMockServer:
    """A mock server that answers at `url`."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """Kill it; its port answers no more."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def serve_golden() -> Iterator[Callable[..., RunningMockServer]]:
    """Starts mock servers with the options of `python -m harness.mock_server`."""
    running: list[RunningMockServer] = []

    def start(*options: str) -> RunningMockServer:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.mock_server", "--ttft-ms", "4", "--itl-ms", "1", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        word, port = process.stdout.readline().split()
        assert word == "port"
        running.append(RunningMockServer(int(port), process))
        return running[-1]

    yield start
    for golden in running:
        golden.end()
        assert golden.process.stdout is not None
        golden.process.stdout.close()
