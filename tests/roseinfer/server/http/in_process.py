"""A server of socket pairs in a test's own event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from roseinfer.server.http.buffers import Budget
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer, Producer, Response
from roseinfer.server.openai.responses import error_response

LIMIT_S = 30.0


class Stream(Producer):
    """A stream that knows whether its client reads, and whether it has closed."""

    paused = closed = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    def fail(self, error: HttpError) -> None:
        raise AssertionError(error)


class Server:
    """A server without a port, which keeps the paths of its requests. It answers `/N` with N bytes,
    `/endless` with more than a client's buffers take, and others at once: `/stream` with a stream that the
    test writes, `/fails` and `/wrong` with errors, and all else with its path."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.clients: list[socket.socket] = []
        self.stream: Stream | None = None
        self.budget = Budget(64 << 20)
        self.connections = Connections(self._answer, error_response, lambda: None, budget=self.budget)

    def _answer(self, request: HttpRequest, connection: Connection) -> Answer:
        self.requests.append(request.path)
        match request.path:
            case "/stream" | "/endless":
                self.stream = Stream()
                connection.answer_with(self.stream)
                if request.path == "/endless":
                    write = connection.begin_stream(b"a")
                    while not self.stream.paused:
                        write(b"a" * 65536)
                return None
            case "/fails":
                raise ZeroDivisionError
            case "/wrong":
                raise HttpError(404, "there is none")
            case path:
                return self._bytes(int(path[1:])) if path[1:].isdigit() else Response(200, path.encode())

    async def _bytes(self, count: int) -> Response:
        return Response(200, b"a" * count)

    async def connect(self, kind: type[Connection] = Connection) -> tuple[socket.socket, Connection]:
        """Return a client's socket, and the connection on the server's side."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.clients.append(ours)
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: kind(self.connections), theirs)
        return ours, connection

    def later(self, seconds: float) -> None:
        """Sweep as if `seconds` had passed."""
        for connection in [*self.connections.all]:
            connection.check(time.monotonic() + seconds)


def in_process(
    test: Callable[..., Coroutine[Any, Any, None]],
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Callable[..., None]:
    """Run a test in an event loop of its own; its first argument is a server, whose clients end with it."""

    def run(*args: Any, **kwargs: Any) -> None:
        server = Server()
        with asyncio.Runner(loop_factory=loop) as runner:
            try:
                runner.run(asyncio.wait_for(test(server, *args, **kwargs), LIMIT_S))
            finally:
                for client in server.clients:
                    client.close()

    functools.update_wrapper(run, test)
    _, *parameters = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def receive(client: socket.socket, end: bytes | None = None) -> bytes:
    """Read until the server has sent `end`, or closes or resets the connection."""
    data = b""
    try:
        while more := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            data += more
            if end is not None and data.endswith(end):
                break
    except ConnectionResetError:
        pass
    return data
