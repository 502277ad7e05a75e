"""A mock server in a process of its own, and loads for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.loadgen.load_plan import LoadPlan, Target, WireRequest
from harness.mock_server.behaviour import Deed

INPUT_TOKENS, OUTPUT_TOKENS = 7, 12


@dataclass
class MockServer:
    port: int
    log: Path

    def deeds(self) -> dict[int, Deed]:
        """What the server did, by the index of the client's request."""
        done = [msgspec.json.decode(line, type=Deed) for line in self.log.read_bytes().splitlines()]
        return {int(deed.user or -1): deed for deed in done}

    def plan(
        self,
        behaviours: Sequence[dict[str, Any]],
        *,
        every_s: float = 0.004,
        concurrency: int | None = None,
        timeout_s: float = 60.0,
    ) -> LoadPlan:
        """One request for each behaviour, `every_s` seconds apart where the loop is open."""
        return LoadPlan(
            Target("127.0.0.1", self.port, "/v1/completions"),
            [
                WireRequest(
                    index,
                    None if concurrency else index * every_s,
                    msgspec.json.encode(
                        {
                            "prompt": [1] * INPUT_TOKENS,
                            "max_tokens": OUTPUT_TOKENS,
                            "user": str(index),
                            "behaviour": behaviour,
                        }
                    ),
                )
                for index, behaviour in enumerate(behaviours)
            ],
            concurrency=concurrency,
            timeout_s=timeout_s,
        )


@pytest.fixture
def start_golden(tmp_path: Path) -> Iterator[Callable[..., MockServer]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str) -> MockServer:
        log = tmp_path / f"deeds-{len(processes)}.jsonl"
        log.touch()
        command = [
            sys.executable,
            "-m",
            "harness.mock_server",
            "--log",
            str(log),
            "--ttft-ms",
            "4",
            "--itl-ms",
            "1",
        ]
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        word, port = process.stdout.readline().split()
        assert word == "port"
        return MockServer(int(port), log)

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def golden(start_golden: Callable[..., MockServer]) -> MockServer:
    return start_golden()
