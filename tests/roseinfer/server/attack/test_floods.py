"""A thousand connections that send whatever the server takes, and do not read."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.flood import MIB, WAYS, body, flood
from tests.roseinfer.server.attack.conftest import SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CONNECTIONS = 1000
#: MiB: what a process may take above what it had, with `--max-buffered-mib 128`, and a connection's own
#: 200 KiB; what one connection may take, and the engine above its most for as many well-behaved answers.
BOUND = 128 + CONNECTIONS * 200 / 1024
ALONE = 64
#: What the engine computes at once has a bound of its own: its tensors grow with the requests of a step.
ENGINE = ("--kv-tokens", "4096", "--max-active-requests", "64")


async def ask(port: int) -> None:
    """A client that waits for its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(body(b'{"prompt": [1], "max_tokens": 16, "ignore_eos": true}'))
    writer.write_eof()
    assert b'"finish_reason":"length"' in await reader.read()
    writer.close()


def serve_all(server: Any) -> None:
    """Have taken what serving takes by itself: the first large body starts the process that reads them, the
    engine has a full batch."""
    assert server.complete([1], max_tokens=1, user="a" * MIB).status == 200

    async def all_at_once() -> None:
        await asyncio.gather(*(ask(server.port) for _ in range(CONNECTIONS)))

    asyncio.run(all_at_once())


def highest(process: psutil.Process) -> float:
    """MiB that a process has had at most."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 1024


@pytest.mark.parametrize("way", WAYS)
def test_many(serve: Any, tried: Callable[[int], None], way: str) -> None:
    """1,000 connections at once that send and do not read: memory has a bound, others are answered."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "128", *ENGINE)
    serve_all(server)
    seconds = max(3.0, float(os.environ[SECONDS]) / 5)
    served = highest(server.engine)
    seen = flood(server.port, psutil.Process(server.process.pid), WAYS[way], CONNECTIONS, seconds)
    tried(CONNECTIONS)
    front_end, _, *readers = seen.peak
    assert max(front_end, *readers) < BOUND
    assert highest(server.engine) < served + ALONE
    assert seen.waited
    assert server.becomes_idle()
    assert not [line for line in server.log if "Traceback" in line]


def test_alone(serve: Any, tried: Callable[[int], None]) -> None:
    """One connection that sends and does not read: no process takes over 64 MiB."""
    server = serve("--frontend-processes", "1", *ENGINE)
    parent = psutil.Process(server.process.pid)
    serve_all(server)
    peaks = {}
    for name, way in WAYS.items():
        peaks[name] = max(flood(server.port, parent, way, 1, 2.0).peak)
    tried(len(WAYS))
    assert not {name: peak for name, peak in peaks.items() if peak > ALONE}
