"""What speaks HTTP, compared: roseinfer's own against kept servers, in front of the same engine.

    python -m benchmarks.http_layers [--rounds 3] [NAME…]

The engine computes nothing and gives each stream a token every so often, as a GPU would. Printed for each
server and number of streams: time to first token, tokens/s, CPU time, and tokens in a read of the client,
which says how far tokens wait for each other. The servers of others are in the extra `http-servers`. What
they make of broken HTTP and of floods: `benchmarks.http_layer_limits`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import msgspec
import numpy as np
import psutil
import uvloop

from benchmarks.frontend import STEP_MS
from benchmarks.running_server import ROOT
from roseinfer.server.config import ServerConfig

OWN = "roseinfer"
NAMES = (OWN, "uvicorn", "hypercorn", "granian", "aiohttp")
#: Streams at once: ms between two tokens of one, rounds, as on an H200 (docs/notes/h200.md).
LOADS = {1: (0.18, 40), 64: (0.55, 8), 256: (1.4, 5)}
TOKENS = 128


@dataclass
class Measured:
    """Of one load: ms to first tokens, tokens/s, CPU µs a token of what speaks HTTP, tokens in a read."""

    ttft_p50: float
    ttft_p99: float
    tok_s: float
    cpu_us: float
    joined: float


@contextlib.contextmanager
def serving(name: str, step_ms: float) -> Iterator[tuple[int, psutil.Process]]:
    """A server that answers: its port, its first process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = "import sys; from benchmarks.frontend import serve; serve(sys.argv[1])"
    config = msgspec.json.encode(ServerConfig(port=port, frontend_processes=1)).decode()
    module = ["-m", "benchmarks.http_layer_servers", name, str(port)]
    command = [sys.executable, *(["-c", own, config] if name == OWN else module)]
    environment = os.environ | {STEP_MS: str(step_ms), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
        first = psutil.Process(process.pid)
        try:
            end = time.monotonic() + 60
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{name} did not start")
                time.sleep(0.1)
            yield port, first
        finally:
            for each in [*first.children(recursive=True), first]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return b" 200 " in client.recv(100)
    return False


class Stream(asyncio.Protocol):
    """One client, that asks again when a stream has ended."""

    def __init__(self, request: bytes, rounds: int) -> None:
        self._request, self._rounds = request, rounds
        self.ttft: list[float] = []
        self.reads = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._ask()

    def _ask(self) -> None:
        self._waiting, self._tail = True, b""
        self._transport.write(self._request)
        self._sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        if self._waiting and b"data: " in data:
            self._waiting = False
            self.ttft.append(time.perf_counter() - self._sent)
        self._tail = (self._tail + data)[-40:]
        if self._tail.endswith(b"0\r\n\r\n") and b"[DONE]" in self._tail:
            self._rounds -= 1
            if self._rounds:
                self._ask()
            else:
                self.done.set_result(None)
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed a stream"))


async def load(port: int, streams: int, rounds: int) -> tuple[list[float], float, int]:
    """Seconds to first tokens, and of the whole load; reads of the clients."""
    body = {"prompt": list(range(100, 228)), "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    data = json.dumps(body | {"return_token_ids": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(data) + data
    clients = [Stream(request, rounds) for _ in range(streams)]
    start = time.perf_counter()
    for client in clients:
        await asyncio.get_running_loop().create_connection(lambda c=client: c, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - start
    return [each for client in clients for each in client.ttft], seconds, sum(it.reads for it in clients)


def cpu(server: psutil.Process) -> float:
    """CPU seconds of what speaks HTTP: all but the engine."""
    every = [server, *server.children(recursive=True)]
    own = [each for each in every if "benchmarks.synthetic_engine" not in each.cmdline()]
    return sum(sum(each.cpu_times()[:2]) for each in own)


def measure(name: str, streams: int) -> Measured:
    step_ms, rounds = LOADS[streams]
    with serving(name, step_ms) as (port, server):
        uvloop.run(load(port, streams, 1))
        before = cpu(server)
        ttft, seconds, reads = uvloop.run(load(port, streams, rounds))
        spent, made = cpu(server) - before, streams * rounds * TOKENS
        p50, p99 = np.percentile(ttft, (50, 99)) * 1e3
        return Measured(p50, p99, made / seconds, spent / made * 1e6, made / reads)


def row(values: Sequence[float], digits: int) -> str:
    """Median, and from the least to the greatest."""
    middle, least, most = (f"{each:,.{digits}f}" for each in (np.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4, help="of all servers in turn")
    parser.add_argument("names", nargs="*", default=NAMES)
    settings = parser.parse_args()
    for name in settings.names:
        print(name, "" if name == OWN else version(name))
    found: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(settings.rounds):
        for streams in LOADS:
            for name in settings.names:
                found.setdefault((name, streams), []).append(measure(name, streams))
    print("| server | streams | TTFT p50, ms | p99, ms | tokens/s | CPU µs a token | tokens a read |")
    print("|---|---|---|---|---|---|---|")
    for (name, streams), rounds in found.items():
        cells = [
            row([getattr(each, what) for each in rounds], digits)
            for what, digits in (("ttft_p50", 2), ("ttft_p99", 1), ("tok_s", 0), ("cpu_us", 1), ("joined", 1))
        ]
        print(f"| {name} | {streams} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
