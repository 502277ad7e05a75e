"""Connections to servers that misbehave below HTTP, and to one that speaks TLS."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.loadgen.connection import STALE_S
from harness.loadgen.load_plan import LoadPlan, LoadResult, Target, WireRequest
from harness.loadgen.run_load import run_load

pytestmark = pytest.mark.integration

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def serving(handle: Callable[[socket.socket, int], None], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run `handle(connection, its number)` for every connection, each in a thread; gives the port."""

    def accept() -> None:
        number = 0
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=converse, args=(plain, number), daemon=True).start()
            number += 1

    def converse(plain: socket.socket, number: int) -> None:
        try:
            with tls.wrap_socket(plain, server_side=True) if tls else plain as connection:
                handle(connection, number)
        except OSError:
            pass  # the client left

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()


def one_after_another(port: int, count: int, target_host: str = "127.0.0.1", tls: bool = False) -> LoadResult:
    target = Target(target_host, port, "/", tls=tls)
    plan = LoadPlan(target, [WireRequest(i, None, b"{}") for i in range(count)], concurrency=1, timeout_s=20)
    return run_load(plan, start_delay_s=0.05)


def receive(connection: socket.socket) -> bytes:
    """One request; empty when the client closed the connection."""
    data = b""
    while not data.endswith(b"\r\n\r\n{}"):
        if not (more := connection.recv(65536)):
            return b""
        data += more
    return data


def test_a_kept_connection_that_breaks_under_a_request_is_replaced_once() -> None:
    served: list[int] = []

    def one_answer_each(connection: socket.socket, number: int) -> None:
        if not receive(connection):
            return  # the client opened it ahead and had no request for it
        served.append(number)
        connection.sendall(ANSWER)
        receive(connection)  # the next request gets a close for an answer

    with serving(one_answer_each) as port:
        result = one_after_another(port, 4)
    assert [response.error for response in result.responses] == [None] * 4
    assert not any(response.reused for response in result.responses)
    assert len(served) == 4


def test_a_server_that_had_the_request_and_hung_up_is_an_error() -> None:
    def think_and_hang_up(connection: socket.socket, number: int) -> None:
        receive(connection)
        connection.sendall(ANSWER)
        if receive(connection):
            time.sleep(2 * STALE_S)

    with serving(think_and_hang_up) as port:
        result = one_after_another(port, 2)
    assert [response.error for response in result.responses] == [None, "disconnected"]


def test_a_new_connection_that_breaks_is_an_error() -> None:
    asked: list[int] = []

    def say_nothing(connection: socket.socket, number: int) -> None:
        if receive(connection):
            asked.append(number)

    with serving(say_nothing) as port:
        result = one_after_another(port, 2)
    assert [response.error for response in result.responses] == ["disconnected"] * 2
    assert all(not response.segments for response in result.responses)
    assert len(asked) <= 4  # at most once more each


def test_a_break_after_the_first_byte_is_not_tried_again() -> None:
    asked: list[int] = []

    def half_an_answer(connection: socket.socket, number: int) -> None:
        while receive(connection):
            asked.append(number)
            connection.sendall(ANSWER if len(asked) == 1 else ANSWER[:-1])
            if len(asked) > 1:
                return

    with serving(half_an_answer) as port:
        result = one_after_another(port, 2)
    assert [response.error for response in result.responses] == [None, "disconnected"]
    assert len(asked) == 2


def test_what_is_not_http_fails_its_request() -> None:
    def banner(connection: socket.socket, _: int) -> None:
        receive(connection)
        connection.sendall(b"220 mail.example.org ESMTP\r\n")
        receive(connection)

    with serving(banner) as port:
        result = one_after_another(port, 2)
    assert [response.error for response in result.responses] == ["protocol"] * 2


@pytest.mark.parametrize(
    ("begin", "endless", "fault", "most"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a" * 4096, "the head of the answer is over 256 KiB", 1 << 19),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99, "the head of the answer is over 256 KiB", 1 << 19),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"\n" * 4096, "the answer is over 2.01 MiB", 4 << 20),
        (b"HTTP/1.1 200 OK\r\n\r\n", b": ping\n" * 999, "the answer is over 2.01 MiB", 4 << 20),
    ],
)
def test_an_answer_is_no_longer_than_its_tokens_can_be(begin, endless, fault, most):
    def flood(connection: socket.socket, _: int) -> None:
        receive(connection)
        connection.sendall(begin)
        while True:
            connection.sendall(endless)

    with serving(flood) as port:
        requests = [WireRequest(i, None, b"{}", most_tokens=2) for i in range(2)]
        result = run_load(LoadPlan(Target("127.0.0.1", port, "/"), requests, 2), start_delay_s=0.05)
    for response in result.responses:
        assert (response.error, response.detail) == ("protocol", fault)
        assert sum(len(data) for _, data in response.segments) < most


def test_the_answers_in_flight_share_the_memory_of_a_load() -> None:
    def flood(connection: socket.socket, number: int) -> None:
        while receive(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")
            while True:
                connection.sendall(bytes(4096))

    with serving(flood) as port:
        requests = [WireRequest(i, None, b"{}") for i in range(6)]
        plan = LoadPlan(Target("127.0.0.1", port, "/"), requests, 4, max_memory=2 << 20)
        result = run_load(plan, clients=2, start_delay_s=0.05)
    assert [response.error for response in result.responses] == ["memory"] * 6
    assert all(sum(len(data) for _, data in r.segments) < 1 << 20 for r in result.responses)


def test_tls(make_certificate: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def answer(connection: socket.socket, _: int) -> None:
        while receive(connection):
            connection.sendall(ANSWER)

    with serving(answer, context) as port:
        refused = one_after_another(port, 1, "localhost", tls=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusted = one_after_another(port, 3, "localhost", tls=True)
    assert [response.error for response in refused.responses] == ["connect"]
    assert "certificate" in refused.responses[0].detail
    assert [response.error for response in trusted.responses] == [None] * 3
    assert [response.reused for response in trusted.responses] == [False, True, True]
    assert all(r.t_sent is not None and r.t_sched <= r.t_sent < r.segments[0][0] for r in trusted.responses)


def test_a_server_with_a_thread_for_each_connection_is_not_starved() -> None:
    """Eight threads that keep an idle connection for half a second and hang up when its second request comes:
    the new connection for that waits for no thread that has one without a request."""

    def work(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(0.5)
                if receive(connection):
                    time.sleep(0.03)
                    connection.sendall(ANSWER)
                    receive(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=work, args=(listener,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        requests = [WireRequest(i, 0.02 * i, b"{}") for i in range(40)]
        plan = LoadPlan(Target("127.0.0.1", listener.getsockname()[1], "/"), requests)
        responses = run_load(plan, start_delay_s=0.2).responses
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    waits = sorted(r.segments[0][0] - r.t_sched for r in responses)
    assert waits[len(waits) * 9 // 10] < 0.3
