"""Ways to a server: through a proxy, and to several addresses of one."""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.engines.running.address import Address, proxy_of
from harness.engines.running.model_list import no_answer
from harness.engines.server_pages import request
from harness.errors import UsageError
from harness.loadgen.load_plan import LoadPlan, Proxy, RawResponse, Target, WireRequest
from harness.loadgen.run_load import run_load

from .test_connections import ANSWER, receive, serving

pytestmark = pytest.mark.integration

KEY = {"Proxy-Authorization": "Basic " + b64encode(b"me:secret-word").decode()}
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def send(target: Target, *requests: WireRequest) -> list[RawResponse]:
    plan = LoadPlan(target, requests or [WireRequest(0, None, b"{}")], concurrency=1, timeout_s=20)
    return list(run_load(plan, start_delay_s=0.05).responses)


def answering(heads: list[bytes]) -> Callable[[socket.socket, int], None]:
    """Answer every request, and keep it."""

    def answer(connection: socket.socket, _: int) -> None:
        while data := receive(connection):
            heads.append(data)
            connection.sendall(ANSWER)

    return answer


def test_a_proxy_gets_the_whole_url_and_its_password() -> None:
    heads: list[bytes] = []
    with serving(answering(heads)) as port:
        target = Target("far.example", 80, "/v1/x", {"X-A": "1"}, proxy=Proxy("127.0.0.1", port, KEY))
        assert send(target)[0].error is None
        assert request(target, "POST", "/v1/y", 5.0, "{}") == (200, "ok")
    for head, path in zip(heads, ("/v1/x", "/v1/y"), strict=True):
        assert head.startswith(b"POST http://far.example:80%b HTTP/1.1\r\n" % path.encode())
        assert KEY["Proxy-Authorization"].encode() in head and b"X-A: 1" in head


@pytest.mark.parametrize("allowed", [True, False])
def test_a_proxy_tunnels_to_a_server_with_encryption(
    allowed: bool, make_certificate: Callable[[str], Path]
) -> None:
    """The proxy sees neither the request nor its headers, and the certificate is that of the server."""
    certificate = make_certificate("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    heads: list[bytes] = []
    asked: list[bytes] = []

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # the other side has left
            while data := source.recv(65536):
                sink.sendall(data)

    def proxy(connection: socket.socket, _: int) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (more := connection.recv(65536)):
                return
            head += more
        asked.append(head)
        if not allowed:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", server)) as server_side:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            threading.Thread(target=pass_on, args=(server_side, connection), daemon=True).start()
            pass_on(connection, server_side)

    with serving(answering(heads), context) as server, serving(proxy) as port:
        way = Proxy("127.0.0.1", port, KEY)
        target = Target("localhost", server, "/", {"X-A": "1"}, True, str(certificate), proxy=way)
        [response] = send(target)
        if allowed:
            assert request(target, "POST", "/y", 5.0, "{}") == (200, "ok")
    assert asked[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % server) and b"X-A" not in asked[0]
    if allowed:
        assert response.error is None and len(heads) == 2
        assert all(b"X-A: 1" in head and b"Proxy-Authorization" not in head for head in heads)
    else:
        assert (response.error, "407" in response.detail, heads) == ("connect", True, [])
        error = no_answer(target, OSError("Tunnel connection failed: 407"))
        assert f"the proxy 127.0.0.1:{port}" in error.message and "NO_PROXY" in error.hint


def test_each_request_goes_to_its_address_with_its_header() -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    with serving(answering(first)) as a, serving(answering(second)) as b:
        target = Target("127.0.0.1", a, "/", others=(Target("127.0.0.1", b, "/other"),))
        wire = [WireRequest(i, None, b"{}", route=i % 2, header=f"X-Session: s{i // 2}") for i in range(4)]
        responses = send(target, *wire)
    assert [response.error for response in responses] == [None] * 4
    assert [response.reused for response in responses] == [False, False, True, True]
    for heads, path in ((first, b"/"), (second, b"/other")):
        assert [head.split()[1] for head in heads] == [path, path]
        assert [b"X-Session: s0\r\n" in head for head in heads] == [True, False]


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://far.example", None),
        ({"https_proxy": "http://p:3128"}, "https://far.example", ("p", 3128)),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://far.example", ("p", 3128)),
        ({"https_proxy": "http://p:3128"}, "http://far.example", None),
        ({"all_proxy": "p:3128"}, "http://far.example", ("p", 3128)),
        ({"https_proxy": "http://p", "no_proxy": ".example"}, "https://far.example", None),
        ({"http_proxy": "http://p"}, "http://127.0.0.1:8000", None),
        ({"http_proxy": "http://p"}, "http://localhost:8000", None),
    ],
)
def test_the_environment_names_the_proxy(
    variables: dict[str, str], url: str, expected: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    proxy = Address(url).target().proxy
    assert (proxy and (proxy.host, proxy.port)) == expected


def test_a_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://me:secret-word@p:1080")
    with pytest.raises(UsageError, match=r"^(?!.*secret-word).*not one like http://HOST:PORT"):
        proxy_of("https", "far.example")
    monkeypatch.setenv("https_proxy", "http://me:secret-word@p:1080")
    assert proxy_of("https", "far.example") == Proxy("p", 1080, KEY)
