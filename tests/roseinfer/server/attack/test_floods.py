"""A thousand connections that send whatever the server takes, and do not read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.roseinfer.server.attack.conftest import SECONDS
from tests.roseinfer.server.attack.flood import LONG, MIB, WAYS, flood, post

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CONNECTIONS = 1000
#: MiB: what a process may take above what it had, with `--max-buffered-mib 128`, and a connection's own
#: 200 KiB; what one connection may take, and the engine above its most for as many well-behaved answers.
BOUND = 128 + CONNECTIONS * 200 / 1024
ALONE = 64
#: What the engine computes at once has a bound of its own: its tensors grow with the requests of a step.
ENGINE = ("--kv-tokens", "4096", "--max-active-requests", "64")


async def read_for(port: int, seconds: float) -> None:
    """Let as many clients as in a flood send the request that floods are made of, and read the answers."""

    async def read() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(post(LONG))
            while await reader.read(65536):
                pass
        finally:
            writer.close()

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(read() for _ in range(CONNECTIONS))), seconds)


def serve_all(server: Any, seconds: float) -> None:
    """Have taken what serving takes by itself: the first large body starts the process that reads them, the
    engine computes for as many clients as it does in the flood, and for as long."""
    assert server.complete([1], max_tokens=1, user="a" * MIB).status == 200
    asyncio.run(read_for(server.port, seconds))
    assert server.becomes_idle()


def highest(process: psutil.Process) -> float:
    """Return the most MiB that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) / 1024


@pytest.mark.parametrize("way", WAYS)
def test_many(serve: Any, tried: Callable[[int], None], way: str) -> None:
    """1,000 connections at once that send and do not read: memory has a bound, others are answered."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "128", *ENGINE)
    seconds = max(3.0, float(os.environ[SECONDS]) / 5)
    serve_all(server, seconds)
    served = highest(server.engine)
    front_end, _, *readers = flood(
        server.port, psutil.Process(server.process.pid), WAYS[way], CONNECTIONS, seconds
    )
    tried(CONNECTIONS)
    assert max(front_end, *readers) < BOUND
    assert highest(server.engine) < served + ALONE
    assert server.becomes_idle()
    assert not [line for line in server.log if "Traceback" in line]


def test_alone(serve: Any, tried: Callable[[int], None]) -> None:
    """One connection that sends and does not read: no process takes over 64 MiB."""
    server = serve("--frontend-processes", "1", *ENGINE)
    parent = psutil.Process(server.process.pid)
    serve_all(server, 3.0)
    peaks = {}
    for name, way in WAYS.items():
        peaks[name] = max(flood(server.port, parent, way, 1, 2.0))
    tried(len(WAYS))
    assert not {name: peak for name, peak in peaks.items() if peak > ALONE}
