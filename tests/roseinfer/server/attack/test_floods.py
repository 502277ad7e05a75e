"""A thousand connections that send whatever the server takes, and do not read."""

from __future__ import annotations

import os
from collections.abc import Callable
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


def start_reader(server: Any) -> None:
    """The process that reads large bodies is started by the first of them."""
    assert server.complete([1], max_tokens=1, user="a" * MIB).status == 200


@pytest.mark.parametrize("way", WAYS)
def test_many(serve: Any, tried: Callable[[int], None], way: str) -> None:
    """1,000 connections at once that send and do not read: memory has a bound, others are answered."""
    server = serve("--frontend-processes", "1", "--max-buffered-mib", "128", "--kv-tokens", "4096")
    start_reader(server)
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
    start_reader(server)
    peaks = {}
    for name, way in WAYS.items():
        peaks[name] = max(flood(server.port, parent, way, 1, 2.0).peak)
    tried(len(WAYS))
    assert not {name: peak for name, peak in peaks.items() if peak > ALONE}
