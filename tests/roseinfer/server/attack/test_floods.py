"""A thousand connections that send whatever the server takes, and do not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from benchmarks.flood import MIB, WAYS, flood
from tests.roseinfer.server.attack.conftest import SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CONNECTIONS = 1000
#: MiB: what a process may take above what it had, with `--max-buffered-mib 128`, and a connection's own
#: 200 KiB; what may stay in its allocator afterwards; what one connection may take.
BOUND = 128 + CONNECTIONS * 200 / 1024
ALONE = 64


def serve_all(server: Any) -> None:
    """Have taken what serving takes by itself: the first large body starts the process that reads them, the
    engine's tensors grow with the sequences of a step."""
    assert server.complete([1], max_tokens=1, user="a" * MIB).status == 200
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(server.complete, [1], n=128, max_tokens=12, ignore_eos=True) for _ in range(2)]
    assert all(reply.result().status == 200 for reply in asked)


@pytest.mark.parametrize("way", WAYS)
def test_many(serve: Any, tried: Callable[[int], None], way: str) -> None:
    """1,000 connections at once that send and do not read: memory has a bound, others are answered."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "128", "--kv-tokens", "4096")
    serve_all(server)
    seconds = max(3.0, float(os.environ[SECONDS]) / 5)
    seen = flood(server.port, psutil.Process(server.process.pid), WAYS[way], CONNECTIONS, seconds)
    tried(CONNECTIONS)
    assert max(seen.peak) < BOUND
    assert seen.waited
    assert server.becomes_idle()
    assert not [line for line in server.log if "Traceback" in line]


def test_alone(serve: Any, tried: Callable[[int], None]) -> None:
    """One connection that sends and does not read: no process takes over 64 MiB."""
    server = serve("--frontend-processes", "1", "--kv-tokens", "4096")
    parent = psutil.Process(server.process.pid)
    serve_all(server)
    peaks = {}
    for name, way in WAYS.items():
        peaks[name] = max(flood(server.port, parent, way, 1, 2.0).peak)
    tried(len(WAYS))
    assert not {name: peak for name, peak in peaks.items() if peak > ALONE}
