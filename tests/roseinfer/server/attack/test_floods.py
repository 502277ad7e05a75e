"""A thousand connections that send whatever the server takes, and do not read."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvloop

from tests.roseinfer.server.attack.conftest import SECONDS, environment_number

MIB = 1 << 20
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LONG = b'{"prompt": [1], "max_tokens": 900, "ignore_eos": true, "stream": true, "return_token_ids": true}'
#: Seconds between two requests for /health.
INTERVAL = 0.01


def post(data: bytes) -> bytes:
    """Return a completion with this body."""
    return POST + b"content-length: %d\r\n\r\n" % len(data) + data


@dataclass(frozen=True)
class Way:
    """A way to flood: send `first`, then `piece` again and again up to `most` bytes, then stay and not read,
    or leave and come again if `leaves`."""

    first: bytes
    piece: bytes = b""
    most: int = 1 << 40
    leaves: bool = False


_GETS = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1000
_LISTS = b'{"prompt": [' + b"[]," * (31 * MIB // 3) + b"[]]}"
WAYS = {
    "nothing": Way(b""),
    "half a head": Way(b"GET / HTTP/1.1\r\n" + b"x: " + b"a" * 60_000),
    "heads without an end": Way(b"GET / HTTP/1.1\r\n", b"x: " + b"a" * 997 + b"\r\n"),
    "nonsense": Way(b"", bytes(range(256)) * 256),
    "half a body": Way(POST + b"content-length: %d\r\n\r\n" % (31 * MIB), b" " * 65536, 20 * MIB),
    "bodies of clients that leave": Way(
        POST + b"content-length: %d\r\n\r\n" % (31 * MIB), b" " * 65536, 8 * MIB, True
    ),
    "refused bodies": Way(
        POST.replace(b"completions", b"nothing") + b"content-length: %d\r\n\r\n" % (31 * MIB), b" " * 65536
    ),
    "chunks of one byte": Way(POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 10_000),
    "trailers": Way(POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
    "pipelined requests": Way(b"", _GETS),
    "pipelined 404": Way(b"", b"GET /" + b"a" * 1000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    "pipelined bodies": Way(post(LONG), post(b"{" + b" " * 100_000)),
    "streams": Way(post(LONG)),
    "large lists": Way(post(_LISTS)),
    "large text": Way(post(b'{"prompt": "' + "😀".encode() + b"a" * (31 * MIB) + b'"}')),
}


async def _one(port: int, way: Way) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with contextlib.suppress(OSError), socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, way.first)
            sent = 0
            while way.piece and sent < way.most:
                await loop.sock_sendall(client, way.piece)
                sent += len(way.piece)
                await asyncio.sleep(0)  # the others' turn: what a socket takes at once is sent without it
            if not way.leaves:
                await asyncio.sleep(1 << 20)
        await asyncio.sleep(0.01)


def _flood(port: int, way: Way, connections: int, seconds: float) -> None:
    async def run() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*(_one(port, way) for _ in range(connections))), seconds)

    uvloop.run(run())


def _check_health(port: int) -> None:
    """Raise AssertionError if a new client does not get 200 for /health."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def memory(server: psutil.Process) -> dict[int, float]:
    """Return the MiB of each process of a server, by its id, the front end first."""
    sizes = {}
    for process in (server, *server.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes[process.pid] = process.memory_info().rss / MIB
    return sizes


def flood(port: int, server: psutil.Process, way: Way, connections: int, seconds: float) -> list[float]:
    """Let `connections` behave in this way for `seconds`. Returns how many MiB each process of the server
    rose at most."""
    before, stop = memory(server), threading.Event()
    peak: dict[int, float] = {}

    def watch() -> None:
        while not stop.wait(0.05):
            for pid, mib in memory(server).items():
                peak[pid] = max(peak.get(pid, 0.0), mib)

    watcher = threading.Thread(target=watch)
    attacker = multiprocessing.get_context("fork").Process(
        target=_flood, args=(port, way, connections, seconds)
    )
    attacker.start()
    watcher.start()
    try:
        while attacker.is_alive():
            time.sleep(INTERVAL)
            _check_health(port)
    finally:
        stop.set()
        watcher.join()
        attacker.kill()
        attacker.join()
    return [peak[pid] - before.get(pid, 60.0) for pid in peak]


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
    seconds = max(3.0, environment_number(SECONDS) / 5)
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
