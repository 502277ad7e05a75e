"""Clients that write and read a server's sockets byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import select
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")
LONG = {"ignore_eos": True, "temperature": 0}


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in an event loop of its own, for a minute at most."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


def wait_for(condition: Callable[[], object], seconds: float = 60) -> bool:
    """Wait until `condition` holds, and return whether it does."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(holds)


def post(body: Any, *headers: str, version: str = "1.1", path: str = "/v1/completions") -> bytes:
    """Return a POST of `body`, in JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/{version}", "host: localhost", "content-type: application/json",
        f"content-length: {len(data)}", *headers,
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def connect(server: Any, sent: bytes = b"") -> socket.socket:
    """Connect, and send some bytes."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall(sent)
    return client


def read_all(client: socket.socket) -> bytes:
    """Read until the server closes or resets the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            data += more
    return data


def ask(server: Any, index: int, *, stream: bool = True, tokens: int = 900, **settings: Any) -> socket.socket:
    """Ask for a long answer."""
    body = {"prompt": [index + 1] * 20, "stream": stream, "max_tokens": tokens}
    return connect(server, post(LONG | body | settings))


def first_chunk(client: socket.socket) -> None:
    """Read until a token has come."""
    data = b""
    while b"data: " not in data:
        data += (more := client.recv(4096))
        assert more


def reset_on_close(client: socket.socket) -> None:
    """Have the client reset its connection when it closes."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leave(server: Any, index: int) -> None:
    """Ask, and go: before or after the first chunks, with or without a reset, streaming or not."""
    with contextlib.closing(ask(server, index, stream=index % 4 != 0)) as client:
        if index % 4 in (1, 2):
            first_chunk(client)
        if index % 3 == 0:
            reset_on_close(client)


def answer(client: socket.socket, sent: bytes) -> bytes:
    """Return the beginning of the answer to `sent`, which the server need not take to the end."""
    unsent = memoryview(sent)
    while unsent and not select.select([client], [], [], 0)[0]:
        readable, writable, _ = select.select([client], [client], [], 60)
        assert readable or writable
        if writable:
            unsent = unsent[client.send(unsent[:4096]) :]
    return client.recv(100)
