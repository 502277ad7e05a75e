"""All connections of one front end, and the resources they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roseinfer.server.http.buffers import READ, Budget
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.response import Answer, JoinedWrites, Response
from roseinfer.server.http.turns import Turns

if TYPE_CHECKING:
    from roseinfer.server.http.connection import Connection


@dataclass(eq=False)
class Connections:
    """All connections of one front end. A handler returns a Response, None after it has given the connection
    a `Producer`, or a coroutine that returns either. `admit` returns the error for a request that is refused
    by its head alone, else None."""

    handler: Callable[[HttpRequest, Connection], Answer]
    error_response: Callable[[HttpError], Response]
    on_close: Callable[[], None]
    admit: Callable[[HttpRequest], HttpError | None] = lambda request: None
    budget: Budget = field(default_factory=Budget)
    turns: Turns = field(default_factory=Turns)
    writes: JoinedWrites = field(default_factory=JoinedWrites)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ)))  # for every read
    all: set[Connection] = field(default_factory=set)
    stopping: bool = False
    none_left: asyncio.Event = field(default_factory=asyncio.Event)

    def sweep(self) -> None:
        """Close connections that have taken too long, and if the budget is exceeded the one with the most
        unread bytes, so that its client does not keep others out. Call it every second or so."""
        now = time.monotonic()
        for connection in list(self.all):
            connection.check(now)
        if self.budget.held_bytes > self.budget.limit:
            most = max(self.all, key=lambda connection: connection.unsent, default=None)
            if most is not None and most.unsent:
                most.abort()

    def end_answers(self, error: HttpError) -> None:
        """End all answers in progress with `error`."""
        for connection in list(self.all):
            connection.interrupt(error)

    def stop(self) -> None:
        """Close each connection as soon as it has no answer in progress."""
        self.stopping = True
        for connection in list(self.all):
            if not connection.busy:
                connection.close()
        self._check_whether_all_have_closed()

    def closed(self, connection: Connection) -> None:
        """Forget a connection that has closed."""
        self.all.discard(connection)
        self.on_close()
        self._check_whether_all_have_closed()

    def _check_whether_all_have_closed(self) -> None:
        if self.stopping and not self.all:
            self.none_left.set()
