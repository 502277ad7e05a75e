"""Connections that send whatever the server takes and read nothing, while others ask whether it lives.

    python -m benchmarks.flood [--connections 1000] [--seconds 5] [--way WAY …] [-- SERVER OPTIONS]

For each way it prints how far each process of the server rose in memory, what was left a moment after all had
gone, and how long others waited for `/health`: it fails where one of a hundred took over 50 ms. Run it on a
machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
import uvloop

from benchmarks.running_server import running_server

MIB = 1 << 20
SERVER = ("--model", "random:gpt2-tiny", "--device", "cpu", "--dtype", "fp32", "--port", "0", "--no-warmup")
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LONG = b'{"prompt": [1], "max_tokens": 900, "ignore_eos": true, "stream": true, "return_token_ids": true}'
#: Seconds between two questions of whoever else is there, and after the flood until memory is read.
INTERVAL, REST = 0.01, 2.0
#: Within which 99 of 100 are answered.
BOUND_MS = 50.0


def body(data: bytes) -> bytes:
    return POST + b"content-length: %d\r\n\r\n" % len(data) + data


@dataclass(frozen=True)
class Way:
    """What a connection sends: `first`, then `piece` again and again, until it has sent `most` bytes; it then
    leaves and comes again where `leaves`, else stays and does not read."""

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
    "pipelined bodies": Way(body(LONG), body(b"{" + b" " * 100_000)),
    "streams": Way(body(LONG)),
    "large lists": Way(body(_LISTS)),
    "large text": Way(body(b'{"prompt": "' + "😀".encode() + b"a" * (31 * MIB) + b'"}')),
}


@dataclass
class Seen:
    """What others saw during a flood: memory in MiB of each process, above what it was before; seconds that
    `/health` took; bytes that the flood could send; connections that it opened."""

    peak: list[float] = field(default_factory=list)
    left: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def p99(self) -> float:
        """Of the waits, in ms."""
        return float(np.percentile(self.waited, 99)) * 1e3


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


def health(port: int) -> float:
    """Seconds until a new client has the answer. Raises AssertionError if it is not 200."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
    return time.monotonic() - start


def family(server: psutil.Process) -> Iterator[psutil.Process]:
    yield server
    yield from server.children()


def memory(server: psutil.Process) -> dict[int, float]:
    """MiB of each process of a server."""
    found = {}
    for process in family(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = process.memory_info().rss / MIB
    return found


def flood(port: int, server: psutil.Process, way: Way, connections: int, seconds: float) -> Seen:
    """Let `connections` behave in this way for `seconds`."""
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
    waited = []
    attacker.start()
    watcher.start()
    try:
        time.sleep(min(1.0, seconds / 4))  # they connect
        while attacker.is_alive():
            waited.append(health(port))
            time.sleep(INTERVAL)
    finally:
        stop.set()
        watcher.join()
        attacker.kill()
        attacker.join()
    time.sleep(REST)
    after = memory(server)
    base = {pid: before.get(pid, 60.0) for pid in peak}
    return Seen(
        [peak[pid] - base[pid] for pid in peak],
        [after[pid] - base[pid] for pid in peak if pid in after],
        waited,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--way", action="append", choices=list(WAYS), help="may be repeated")
    parser.add_argument("server", nargs="*", help="more options of `roseinfer serve`")
    settings = parser.parse_args()
    command: Sequence[str] = [sys.executable, "-m", "roseinfer.cli", "serve", *SERVER, *settings.server]
    slow = []
    with running_server(command) as (port, processes):
        print(f"{'way':30} {'MiB above before':>30} {'MiB left':>26} {'/health p50':>9} p99 max ms")
        for name in settings.way or WAYS:
            seen = flood(port, processes[0], WAYS[name], settings.connections, settings.seconds)
            print(
                f"{name:30} {' '.join(f'{mib:.0f}' for mib in seen.peak):>30}"
                f" {' '.join(f'{mib:.0f}' for mib in seen.left):>26}"
                f" {np.median(seen.waited) * 1e3:9.1f} {seen.p99():.1f} {max(seen.waited) * 1e3:.1f}"
                f" ({len(seen.waited)})",
                flush=True,
            )
            if seen.p99() > BOUND_MS:
                slow.append(name)
    if slow:
        print(f"/health took over {BOUND_MS:.0f} ms: {', '.join(slow)}", file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
