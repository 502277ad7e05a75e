"""Cost of the front ends: many streaming clients, and an engine that computes nothing.

python -m benchmarks.frontend [--clients 256] [--frontend-processes 2]
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import psutil
import typer
import uvloop

from benchmarks.running_server import running_server
from roseinfer.config import ConfigError, EngineConfig
from roseinfer.options import with_settings
from roseinfer.server.config import ServerConfig
from roseinfer.server.process.launch import launch

#: Milliseconds of a step of the engine that computes nothing, in its environment.
STEP_MS = "ROSEINFER_SYNTHETIC_STEP_MS"
_PROMPT = list(range(100, 228))


@dataclass(frozen=True)
class FrontendCost:
    """CPU time in µs a token: of the front ends, of these in the kernel, of the engine process besides.

    `floor_us` is one `send` of a typical chunk to a socket that somebody reads.
    """

    front_ends: int
    tokens: int
    seconds: float
    front_end_us: float
    kernel_us: float
    engine_us: float
    floor_us: float

    def lines(self) -> list[str]:
        """For reading."""
        return [
            f"Front ends: {self.front_ends}",
            f"Tokens: {self.tokens} in {self.seconds:.2f} s, {self.tokens / self.seconds:.0f} tokens/s",
            f"Front end: {self.front_end_us:.2f} us a token, {self.kernel_us:.2f} of it in the kernel",
            f"Floor: {self.floor_us:.2f} us, one send of a chunk",
            f"Engine process: {self.engine_us:.2f} us a token",
            f"Tokens/s of a front end with a core of its own: {1e6 / self.front_end_us:.0f}",
        ]


def measure(server: ServerConfig, clients: int, tokens: int, rounds: int, step_ms: float) -> FrontendCost:
    """`clients` ask `rounds` times each for `tokens`, which come every `step_ms`."""
    environment = os.environ | {STEP_MS: str(step_ms)}
    command = [
        sys.executable,
        "-c",
        "import sys; from benchmarks.frontend import serve; serve(sys.argv[1])",
        msgspec.json.encode(replace(server, port=0)).decode(),
    ]
    with running_server(command, environment) as (port, processes):
        engine = next(each for each in processes if "benchmarks.synthetic_engine" in each.cmdline())
        front_ends = [each for each in processes if each != engine]
        uvloop.run(load(port, clients, tokens, 1))  # connections, tables and code paths are warm
        before, engine_before, start = _cpu(front_ends), _cpu([engine]), time.monotonic()
        uvloop.run(load(port, clients, tokens, rounds))
        seconds = time.monotonic() - start
        after, engine_after = _cpu(front_ends), _cpu([engine])
    made = clients * tokens * rounds
    user, kernel = ((b - a) / made * 1e6 for a, b in zip(before, after, strict=True))
    engine_us = sum(b - a for a, b in zip(engine_before, engine_after, strict=True)) / made * 1e6
    return FrontendCost(len(front_ends), made, seconds, user + kernel, kernel, engine_us, floor(clients))


def floor(connections: int, sends: int = 40_000, size: int = 240) -> float:
    """CPU µs of one `send` of `size` bytes to one of `connections` that another process reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = []
        for _ in range(connections):
            ours = socket.create_connection(listener.getsockname())
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pairs.append((ours, listener.accept()[0]))
    child = os.fork()
    if child == 0:
        _drain([theirs for _, theirs in pairs], [ours for ours, _ in pairs])
    for _, theirs in pairs:
        theirs.close()
    data, start = b"x" * size, time.process_time()
    for _ in range(sends // connections):
        for ours, _ in pairs:
            ours.send(data)
    spent = time.process_time() - start
    for ours, _ in pairs:
        ours.close()
    os.waitpid(child, 0)
    return spent / (sends // connections * connections) * 1e6


def _drain(sockets: list[socket.socket], others: list[socket.socket]) -> None:
    for sock in others:
        sock.close()
    poll, open_ones = select.epoll(), {sock.fileno(): sock for sock in sockets}
    for fd in open_ones:
        poll.register(fd, select.EPOLLIN)
    while open_ones:
        for fd, _ in poll.poll():
            if not open_ones[fd].recv(1 << 16):
                open_ones.pop(fd).close()
    os._exit(0)


async def load(port: int, clients: int, tokens: int, rounds: int) -> None:
    """Stream `tokens` to each of `clients`, `rounds` times. Raises ConfigError when a stream breaks."""
    body = {"prompt": _PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    data = json.dumps(body | {"return_token_ids": True, "stream_options": {"include_usage": True}}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n" % len(data)
    loop = asyncio.get_running_loop()
    readers = [_Reader(head + data, rounds) for _ in range(clients)]
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(reader.done for reader in readers))


class _Reader(asyncio.Protocol):
    """One client: asks again when a stream has ended."""

    def __init__(self, request: bytes, rounds: int) -> None:
        self._request, self._rounds = request, rounds
        self._tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-40:]
        if self._tail.endswith(b"0\r\n\r\n") and b"[DONE]" in self._tail:
            self._rounds -= 1
            if self._rounds:
                self._transport.write(self._request)
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._rounds:
            self.done.set_exception(ConfigError("the server closed a stream"))
        else:
            self.done.set_result(None)


def _cpu(processes: list[psutil.Process]) -> tuple[float, float]:
    times = [process.cpu_times() for process in processes]
    return sum(spent.user for spent in times), sum(spent.system for spent in times)


def serve(settings: str) -> None:
    """Real front ends, with `settings` as JSON, around the engine that computes nothing."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    server = msgspec.json.decode(settings, type=ServerConfig)
    model = EngineConfig(device="cpu", warmup=False, threads=1, kv_tokens=4096)
    sys.exit(launch(model, server, "benchmarks.synthetic_engine"))


@with_settings(ServerConfig)
def main(
    server: ServerConfig,
    clients: Annotated[int, typer.Option(min=1, help="streams at once")] = 256,
    tokens: Annotated[int, typer.Option(min=2, help="tokens of a stream")] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="streams of each client")] = 4,
    step_ms: Annotated[float, typer.Option(min=0.01, help="time between two tokens of a stream")] = 2.0,
) -> None:
    """Measure the cost of a token in the front ends: real HTTP clients, an engine that computes nothing."""
    print("\n".join(measure(server, clients, tokens, rounds, step_ms).lines()))


if __name__ == "__main__":
    typer.run(main)
