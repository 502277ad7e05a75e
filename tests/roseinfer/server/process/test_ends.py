"""What clients see of a server that stops, and of an engine that does."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from roseinfer.server.openai.large_bodies import LARGE

from .test_life import connect, first_chunk

pytestmark = pytest.mark.integration


def within(seconds: float, condition: Callable[[], object]) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def refuses(server: Any) -> bool:
    """Whether it takes no new client."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    except ConnectionError:
        return True
    return False


def rest(client: socket.socket) -> bytes:
    return client.makefile("rb").read()


def test_answers_that_end_in_time_are_whole(serve: Any) -> None:
    """Streams and whole ones on both front ends; new clients are refused meanwhile. The engine stands still
    until they are, so that no answer ends before."""
    server = serve("--frontend-processes", "2", "--grace-seconds", "60")
    first = connect(server, 0, tokens=200)
    first_chunk(first)
    server.engine.suspend()
    clients = [first, *(connect(server, index, stream=index % 4 < 2, tokens=200) for index in range(1, 8))]
    assert within(30, lambda: server.load()["inflight"] == 8)
    server.process.send_signal(signal.SIGTERM)
    assert within(30, lambda: refuses(server))
    server.engine.resume()
    for index, client in enumerate(clients):
        answer = rest(client)
        if index % 4 < 2:
            assert b'"finish_reason":"length"' in answer and b"[DONE]" in answer and b"error" not in answer
        else:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert json.loads(body)["usage"]["completion_tokens"] == 200
    assert server.ended() and server.process.returncode == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_answers_that_do_not_are_told(serve: Any, signals: int) -> None:
    """At the end of their time, or at a second signal, which ends this process's at once. With a stopped
    engine nothing ends by itself."""
    options = ("--grace-seconds", "0.5" if signals == 1 else "600", "--frontend-processes", str(3 - signals))
    server = serve(*options)
    clients = [connect(server, index, stream=index % 4 < 2) for index in range(4)]
    first_chunk(clients[0])
    first_chunk(clients[1])
    assert within(30, lambda: server.load()["inflight"] == 4)
    server.engine.suspend()
    for _ in range(signals):
        server.process.send_signal(signal.SIGTERM)
        assert within(30, lambda: refuses(server))  # two signals that wait would be one
    for index, client in enumerate(clients):
        answer = rest(client)
        if index % 4 < 2:
            assert b'"message":"the server is stopping"' in answer and answer.endswith(
                b"[DONE]\n\n\r\n0\r\n\r\n"
            )
        else:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["type"] == "server_error"
    assert server.ended() and server.process.returncode == 0
    server._drain.join()
    assert not [line for line in server.log if "Traceback" in line]


def test_two_front_ends(serve: Any) -> None:
    """Whose engine stands still for a while, until all get signals."""
    server = serve("--frontend-processes", "2", "--grace-seconds", "60", "--stall-seconds", "2")
    an_engine_that_stands_still(server)
    a_signal_to_every_process(server)


def a_signal_to_every_process(server: Any) -> None:
    """As a service manager sends SIGTERM, and some shells SIGINT: the parent leads. One of them reads large
    bodies."""
    large = b'{"prompt": [1], "max_tokens": 1}'.ljust(LARGE + 1)
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def status() -> int:
        asking.request("POST", "/v1/completions", large, {"content-type": "application/json"})
        response = asking.getresponse()
        response.read()
        return response.status

    with contextlib.closing(asking):
        assert status() == 200
        clients = [connect(server, index, tokens=400) for index in range(2)]
        for client in clients:
            first_chunk(client)
        below = psutil.Process(server.process.pid).children(recursive=True)
        assert len(below) == len(server.below) + 1
        for number in (signal.SIGTERM, signal.SIGINT):
            for process in below:
                process.send_signal(number)
            assert status() == 200
        server.process.send_signal(signal.SIGINT)
        for client in clients:
            assert b'"finish_reason":"length"' in rest(client)
    assert server.ended() and server.process.returncode == 0


def test_nobody_is_waited_for_before_the_first_client(launch: Any) -> None:
    """While the engine loads, no front end has an answer that could use the time."""
    process = launch("--frontend-processes", "2", "--grace-seconds", "600")
    parent = psutil.Process(process.pid)

    def engines() -> list[psutil.Process]:
        return [child for child in parent.children() if "roseinfer.engine.process" in child.cmdline()]

    def takes_signals() -> bool:
        (caught,) = re.findall(r"SigCgt:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    assert within(60, engines)
    engines()[0].suspend()
    assert within(60, takes_signals)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def an_engine_that_stands_still(server: Any) -> None:
    """Everything is answered within seconds, from what was known last or with an error; health fails, in all
    front ends, and recovers."""
    routes = ("/health", "/live", "/livez", "/ready", "/readyz")
    assert all(server.request(path).status == 200 for path in routes)
    assert server.load()["running"] == 0
    assert server.request("/metrics").status == 200
    clients = [connect(server, index, stream=index < 2) for index in range(4)]
    first_chunk(clients[0])
    first_chunk(clients[1])
    server.engine.suspend()
    for client in clients:
        client.shutdown(socket.SHUT_WR)  # the server closes after the answer
        assert b"the engine does not answer" in rest(client)
    for _ in range(4):
        assert [server.request(path).status for path in routes] == [503] * 5
        assert server.complete([1, 2], max_tokens=1).status == 503
        assert b"roseinfer_engine_silent 1.0" in server.request("/metrics").body
        assert server.request("/server_info").status == 200
    server.engine.resume()
    assert within(30, lambda: [server.request("/health").status for _ in range(4)] == [200] * 4)
    assert server.complete([1, 2], max_tokens=1).status == 200
    assert server.becomes_idle()
