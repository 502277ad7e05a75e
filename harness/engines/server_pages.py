"""HTTP requests to a server's pages other than its API, with the same encryption and headers."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import suppress
from http import HTTPStatus

from harness.engines.http2_socket import Http2Socket
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
    """The body of `GET path`; None unless it answers 200 in time."""
    status, body = ask(target, path, timeout_s)
    return body if status == 200 else None


def ask(target: Target, path: str, timeout_s: float = TIMEOUT_S) -> tuple[int | None, str]:
    """Status and body of `GET path`; the status is None if there is no answer in time."""
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
    """Status and body of the answer, which has `timeout_s` after the connection is there, and MAX_BYTES.

    Raises OSError and HTTPException where there is none.
    """
    connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    if target.tls:
        connection = http.client.HTTPSConnection(
            target.host,
            target.port,
            timeout=timeout_s,
            context=trusting(target.ca_cert, http2=target.http2),
        )
    connection.response_class = _LastResponse
    connection.connect()
    expired = threading.Event()
    timer = threading.Timer(timeout_s, _cut, (connection.sock, expired))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError as error:  # the machine has no more threads
        connection.close()
        raise OSError(str(error)) from None
    if target.http2:
        connection.sock = Http2Socket(connection.sock, tls=target.tls)
    headers = {**target.headers, **({} if method == "GET" else {"content-type": "application/json"})}
    try:
        connection.request(method, path, None if body is None else body.encode(), headers)
        response = connection.getresponse()
        content = response.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException):
        if expired.is_set():
            raise TimeoutError(f"the answer to {method} {path} was not whole after {timeout_s:g} s") from None
        raise
    finally:
        timer.cancel()
        connection.close()
    if expired.is_set():
        raise TimeoutError(f"the answer to {method} {path} was not whole after {timeout_s:g} s")
    if len(content) > MAX_BYTES:
        raise http.client.HTTPException(f"the answer to {method} {path} is over {MAX_BYTES >> 20} MiB")
    return response.status, content.decode(errors="replace")


class _LastResponse(http.client.HTTPResponse):
    """The response itself: http.client skips none of those before it but status 100."""

    def begin(self) -> None:
        super().begin()
        while 100 <= self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]  # so it reads on
            super().begin()


def _cut(connection: socket.socket, expired: threading.Event) -> None:
    """End a connection that another thread reads from: its own timeout bounds each read alone."""
    expired.set()
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
