"""HTTP requests to a server's pages other than its API, with the same encryption and headers."""

from __future__ import annotations

import http.client
import io
import json
import socket
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any

from harness.engines.profiler import Route
from harness.errors import EngineError
from harness.loadgen.load_plan import Target
from harness.loadgen.tls import trusting

TIMEOUT_S = 10.0
#: For control routes: writing a profile can take minutes.
ROUTE_TIMEOUT_S = 300.0
#: Bytes of a page: metrics of a large server are under a MiB.
MAX_BYTES = 16 << 20


def get(target: Target, path: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """Return the body of `GET path`; None unless the server answers 200 in time."""
    status, body = ask(target, path, timeout_s)
    return body if status == 200 else None


def ask(target: Target, path: str, timeout_s: float = TIMEOUT_S) -> tuple[int | None, str]:
    """Return status and body of `GET path`; the status is None if there is no answer in time."""
    try:
        return request(target, "GET", path, timeout_s)
    except (OSError, http.client.HTTPException):
        return None, ""


def post(target: Target, route: Route) -> None:
    """POST to a server. Raises EngineError unless it answers 2xx."""
    body = None if route.body is None else json.dumps(route.body)
    try:
        status, answer = request(target, "POST", route.path, ROUTE_TIMEOUT_S, body)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"POST {route.path}: {error}", "see the engine's log") from None
    if status // 100 != 2:
        raise EngineError(f"POST {route.path} answered {status}: {answer[:300]}", "see the engine's log")


def request(
    target: Target, method: str, path: str, timeout_s: float = TIMEOUT_S, body: str | None = None
) -> tuple[int, str]:
    """Return status and body of the answer, which may have `timeout_s` once connected, and MAX_BYTES.

    Raises OSError and HTTPException if there is none.
    """
    if target.tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            target.host, target.port, timeout=timeout_s, context=trusting(target.ca_cert)
        )
    else:
        connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    connection.connect()
    connection.response_class = partial(_Response, until=monotonic() + timeout_s)  # type: ignore[assignment]
    headers = {**target.headers, **({} if method == "GET" else {"content-type": "application/json"})}
    try:
        connection.request(method, path, None if body is None else body.encode(), headers)
        response = connection.getresponse()
        content = response.read(MAX_BYTES + 1)
    except TimeoutError:
        raise TimeoutError(f"the answer to {method} {path} was not whole after {timeout_s:g} s") from None
    finally:
        connection.close()
    if len(content) > MAX_BYTES:
        raise http.client.HTTPException(f"the answer to {method} {path} is over {MAX_BYTES >> 20} MiB")
    return response.status, content.decode(errors="replace")


class _Response(http.client.HTTPResponse):
    """The final response, read until a moment: http.client bounds each read alone, and of the interim
    responses it skips only status 100."""

    def __init__(self, sock: socket.socket, *args: Any, until: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedReader(sock, until))

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]  # so it reads on
            super().begin()


class _TimedReader(io.RawIOBase):
    """Reads a socket; raises TimeoutError at `until`, however much is sent."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open until it is closed too

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining_s = self._until - monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining_s)
        return self._file.readinto(buffer)
