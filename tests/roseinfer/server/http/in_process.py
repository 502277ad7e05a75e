"""Tests of connections over socket pairs, which are served in the test's own event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import uvloop

from roseinfer.server.http.buffers import Budget
from roseinfer.server.http.connection import Connection
from roseinfer.server.http.connections import Connections
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer
from roseinfer.server.openai.responses import error_response

LIMIT_S = 30.0


class Server:
    """A server without a port, which keeps the paths of its requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.budget = Budget(64 << 20)
        self.connections = Connections(self._handle, error_response, lambda: None, budget=self.budget)

    def _handle(self, request: HttpRequest, connection: Connection) -> Answer:
        self.requests.append(request.path)
        return self.answer(request, connection)

    def answer(self, request: HttpRequest, connection: Connection) -> Answer:
        raise NotImplementedError

    async def connect(self, kind: type[Connection] = Connection) -> tuple[socket.socket, Connection]:
        """Return a client's socket, and the connection on the server's side."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        _, connection = await loop.connect_accepted_socket(lambda: kind(self.connections), theirs)
        return ours, connection


S = TypeVar("S", bound=Server)
P = ParamSpec("P")


def in_process(
    kind: type[S], loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
) -> Callable[[Callable[Concatenate[S, P], Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a test in an event loop of its own; its first argument is a server of this kind."""

    def decorate(test: Callable[Concatenate[S, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            async def limited() -> None:
                await asyncio.wait_for(test(kind(), *args, **kwargs), LIMIT_S)

            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(limited())

        functools.update_wrapper(run, test)
        _, *parameters = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def read_all(client: socket.socket) -> bytes:
    """Read until the server closes or resets the connection."""
    data = b""
    try:
        while more := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            data += more
    except ConnectionResetError:
        pass
    return data
