"""What a handler returns for a request."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.response import Response


class Producer(Protocol):
    """Makes a connection's response piece by piece."""

    def pause(self) -> None:
        """The client does not read fast enough: buffer new data."""

    def resume(self) -> None:
        """The client has read what was written."""

    def close(self) -> None:
        """The client has gone."""

    def fail(self, error: HttpError) -> None:
        """End the response with `error`."""


#: The response; None where a Producer makes it; or a coroutine that returns either, run in a task.
Answer = Response | None | Coroutine[Any, Any, Response | None]
