"""All connections of one front end, and what they share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from roseinfer.server.http.budget import Budget
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.joined_writes import JoinedWrites
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.http.producer import Answer
from roseinfer.server.http.response import Response
from roseinfer.server.http.turns import Turns
from roseinfer.server.http.unparsed import READ

if TYPE_CHECKING:
    from roseinfer.server.http.connection import Connection

#: Bytes that the connections of a process may hold, by default.
MAX_HELD_BYTES = 512 << 20


@dataclass(eq=False)
class Connections:
    """All connections of one front end, and what they share. A handler returns a Response, None when it has
    given the connection a `Producer`, or a coroutine that returns either. `admit` returns the error for a
    request that is refused by its head alone, else None."""

    handler: Callable[[HttpRequest, Connection], Answer]
    error_response: Callable[[HttpError], Response]
    on_close: Callable[[], None]
    admit: Callable[[HttpRequest], HttpError | None] = lambda request: None
    budget: Budget = field(default_factory=lambda: Budget(MAX_HELD_BYTES))
    turns: Turns = field(default_factory=Turns)
    joined: JoinedWrites = field(default_factory=JoinedWrites)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ)))  # for every read
    all: set[Connection] = field(default_factory=set)
    stopping: bool = False
    none_left: asyncio.Event = field(default_factory=asyncio.Event)

    def sweep(self) -> None:
        """Close connections that have taken too long. Call it every second or so."""
        now = time.monotonic()
        for connection in list(self.all):
            connection.check(now)
        if self.budget.exceeded:
            self._end_slowest_reader()

    def _end_slowest_reader(self) -> None:
        """Abort the connection with the most unread bytes, so that its client does not keep others out."""
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
        self._see_whether_none_is_left()

    def closed(self, connection: Connection) -> None:
        """Called by a connection that has closed."""
        self.all.discard(connection)
        self.on_close()
        self._see_whether_none_is_left()

    def _see_whether_none_is_left(self) -> None:
        if self.stopping and not self.all:
            self.none_left.set()
