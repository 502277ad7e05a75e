"""HTTP requests to a server's pages other than its API, with the same encryption and headers."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from threading import Timer
from time import monotonic

from pydantic import JsonValue

from harness.errors import BusyServerError, EngineError
from harness.loadgen.load_plan import Target
from harness.loadgen.tls import trusting

TIMEOUT_S = 10.0
#: For control routes: writing a profile can take minutes.
ROUTE_TIMEOUT_S = 300.0
#: Bytes of a page: metrics of a large server are under a MiB.
MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Route:
    """A POST request, with a JSON body or none."""

    path: str
    body: JsonValue = None


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
    """POST to a server. Raises EngineError unless it answers 2xx, BusyServerError where it has no time."""
    body = None if route.body is None else json.dumps(route.body)
    try:
        status, answer = request(target, "POST", route.path, ROUTE_TIMEOUT_S, body)
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"POST {route.path}: {error}", "see the engine's log") from None
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        hint = "the machine is busy: close other programs, then profile the run again"
        raise BusyServerError(f"POST {route.path} answered {status}: {answer[:300]}", hint)
    if status // 100 != 2:
        raise EngineError(f"POST {route.path} answered {status}: {answer[:300]}", "see the engine's log")


def _end(sock: socket.socket) -> None:
    """End the reading of an answer, however slowly it comes."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of an SSLSocket, which is no reader's


def request(
    target: Target, method: str, path: str, timeout_s: float = TIMEOUT_S, body: str | None = None
) -> tuple[int, str]:
    """Return status and body of the answer, which may have `timeout_s` once connected, at most the target's
    `answer_s`, and MAX_BYTES.

    Raises OSError and HTTPException if there is none.
    """
    timeout_s = min(timeout_s, target.answer_s)
    if target.tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            *target.peer, timeout=timeout_s, context=trusting(target.ca_cert)
        )
        if target.proxy is not None:
            connection.set_tunnel(target.host, target.port, target.proxy.headers)
    else:
        connection = http.client.HTTPConnection(*target.peer, timeout=timeout_s)
    connection.connect()
    until = monotonic() + timeout_s
    timer = Timer(timeout_s, _end, [connection.sock])
    timer.start()
    headers = {
        **target.sent_headers,
        **({} if method == "GET" else {"content-type": "application/json"}),
    }
    content = b""
    try:
        connection.request(method, target.url_of(path), None if body is None else body.encode(), headers)
        response = connection.getresponse()
        while 100 <= response.status < 200 and response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            response.headers = None  # type: ignore[assignment]  # so it reads on: it skips only status 100
            response.begin()
        while len(content) <= MAX_BYTES and (piece := response.read1(1 << 20)):
            content += piece
    except (OSError, http.client.HTTPException):
        if monotonic() < until:
            raise
    finally:
        timer.cancel()
        connection.close()
    if monotonic() >= until:
        raise TimeoutError(f"the answer to {method} {path} was not whole after {timeout_s:g} s")
    if len(content) > MAX_BYTES:
        raise http.client.HTTPException(f"the answer to {method} {path} is over {MAX_BYTES >> 20} MiB")
    return response.status, content.decode(errors="replace")
