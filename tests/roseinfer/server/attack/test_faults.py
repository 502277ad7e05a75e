"""Faults of the machine below a server: processes that stop or die, files and disks that are full."""

from __future__ import annotations

import json
import resource
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.integration]

LONG = {"prompt": [1], "max_tokens": 900, "ignore_eos": True, "stream": True}


def connect(server: Any, body: dict[str, Any] | None = None) -> socket.socket:
    """A client that has asked for `body`."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    if body is not None:
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
        client.sendall(head + kind + data)
    return client


def rest(client: socket.socket) -> bytes:
    with client.makefile("rb") as stream:
        return stream.read()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return met


@pytest.mark.parametrize("index", range(4))
def test_killed(serve: Any, tried: Callable[[int], None], index: int) -> None:
    """SIGKILL of each process with answers in flight: every client learns it, no process is left."""
    server = serve("--frontend-processes", "3")
    clients = [connect(server, LONG) for _ in range(6)]
    for client in clients:
        assert client.recv(100)
    victim = [psutil.Process(server.process.pid), server.engine, *server.front_ends][index]
    victim.kill()
    for client in clients:
        assert not rest_or_reset(client).endswith(b"[DONE]\n\n") or index == 1  # an error event, then the end
    assert server.ended()
    tried(1)


def rest_or_reset(client: socket.socket) -> bytes:
    try:
        return rest(client)
    except ConnectionResetError:
        return b""


def test_stopped_engine(serve: Any, tried: Callable[[int], None]) -> None:
    """SIGSTOP of the engine: /health says so while work waits, questions are answered, all goes on then."""
    server = serve("--stall-seconds", "2")
    clients = [connect(server, LONG) for _ in range(3)]
    for client in clients:
        assert client.recv(100)
    server.engine.suspend()
    try:
        assert within(60, lambda: server.request("/health").status == 503)
        for path in ("/metrics", "/server_info"):
            assert server.request(path).status in (200, 503)  # 200: what was known last
    finally:
        server.engine.resume()
    assert within(60, lambda: server.request("/health").status == 200)
    for client in clients:
        assert b"[DONE]" in rest(client)
    assert server.becomes_idle()
    tried(4)


def test_stopped_reader(serve: Any, tried: Callable[[int], None]) -> None:
    """SIGSTOP of the process that reads large bodies: others are answered, and it is replaced."""
    server = serve("--frontend-processes", "1")
    large = json.dumps({"prompt": [1], "max_tokens": 1, "user": "a" * 2**20}).encode()
    assert server.request("/v1/completions", large).status == 200
    (reader,) = (
        child
        for child in psutil.Process(server.process.pid).children()
        if any("large_bodies" in word for word in child.cmdline())
    )
    reader.suspend()
    with connect(server, json.loads(large)) as client:
        assert server.complete([1], max_tokens=1).status == 200
        assert b" 503 " in rest(client)
    assert server.request("/v1/completions", large).status == 200
    tried(1)


def test_full_disk(serve: Any, tmp_path: Path, tried: Callable[[int], None]) -> None:
    """A file that cannot grow: a profile fails with a reason, leaves nothing, and the next works."""
    server = serve("--profile-dir", str(tmp_path))
    server.engine.rlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    assert server.request("/start_profile", {"num_steps": 2}).status == 200
    assert server.complete([1], max_tokens=8, ignore_eos=True).status == 200
    reply = server.request("/stop_profile", b"", "POST")
    assert reply.status == 400 and reply.json["error"]["message"]
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]
    server.engine.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert server.request("/start_profile", {"num_steps": 2}).status == 200
    assert server.complete([1], max_tokens=8, ignore_eos=True).status == 200
    assert server.becomes_idle()
    assert not [line for line in server.log if "Traceback" in line]
    tried(1)


@pytest.mark.parametrize("index", range(2))
def test_no_descriptors(serve: Any, tried: Callable[[int], None], index: int) -> None:
    """A front end without descriptors: clients wait or are turned away, until there are some again."""
    server = serve("--frontend-processes", "2")
    process = [psutil.Process(server.process.pid), *server.front_ends][index]
    most = process.num_fds() + 20
    process.rlimit(resource.RLIMIT_NOFILE, (most, process.rlimit(resource.RLIMIT_NOFILE)[1]))
    clients = [connect(server) for _ in range(200)]
    assert within(30, lambda: process.num_fds() >= most - 1)
    for client in clients:
        client.close()
    assert within(60, lambda: process.num_fds() < most - 10)
    assert within(60, lambda: server.request("/health").status == 200)
    for _ in range(10):
        assert server.complete([1], max_tokens=1).status == 200
    assert not [line for line in server.log if "Traceback" in line]
    tried(200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_signals(serve: Any, tried: Callable[[int], None], number: signal.Signals) -> None:
    """Signals to end, with clients that do not read: no process is left."""
    server = serve("--frontend-processes", "2")
    clients = [connect(server, LONG | {"n": 8}) for _ in range(4)]
    assert clients[0].recv(100)
    server.process.send_signal(number)
    assert server.ended()
    tried(1)
