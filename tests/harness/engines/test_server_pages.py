"""Requests for pages other than the API go where every other request goes, with its headers."""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import msgspec
import pytest

from harness.engines.server_pages import Route, ask, get, post, request
from harness.errors import EngineError
from harness.loadgen.load_plan import Target

pytestmark = pytest.mark.integration


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers requests with the key, for pages that it has, after hints that come early. Pages come a byte
    now and then, or are without an end, as are the head and the hints of others."""

    bodies: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        with suppress(OSError):
            while self.path in ("/hints", "/head"):
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" if self.path == "/hints" else b"H")
                time.sleep(0.02)
        for _ in range(2):
            self.send_response_only(103)
            self.send_header("Link", "</style.css>; rel=preload")
            self.end_headers()
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(401 if not allowed else 404 if self.path == "/unknown" else 200)
        self.end_headers()
        self.wfile.write(b"said")
        with suppress(OSError):
            while self.path in ("/drip", "/flood"):
                self.wfile.write(b"x" if self.path == "/drip" else bytes(1 << 20))
                if self.path == "/drip":
                    time.sleep(0.02)

    def do_POST(self) -> None:
        Pages.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        self.do_GET()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Target("127.0.0.1", server.server_port, "/v1", {"Authorization": "Bearer secret"})
        server.shutdown()
        thread.join()


def test_the_key_is_sent_with_every_request(target: Target) -> None:
    assert get(target, "/known") == "said"
    post(target, Route("/known", {"steps": 2}))
    assert Pages.bodies[-1] == b'{"steps": 2}'
    assert get(Target(target.host, target.port, "/v1"), "/known") is None
    with pytest.raises(EngineError, match=r"POST /unknown answered 404: said"):
        post(target, Route("/unknown"))


@pytest.mark.parametrize(
    ("path", "timeout_s", "fault"),
    [
        ("/drip", 0.3, "not whole after 0.3 s"),
        ("/head", 0.3, "not whole after 0.3 s"),
        ("/hints", 0.3, "not whole after 0.3 s"),
        ("/drip", 60.0, "not whole after 5 s"),
        ("/flood", 60.0, "is over 16 MiB"),
    ],
)
def test_a_page_without_an_end_is_given_up(target: Target, path: str, timeout_s: float, fault: str) -> None:
    target = msgspec.structs.replace(target, answer_s=5.0)
    with pytest.raises((TimeoutError, http.client.HTTPException), match=fault):
        request(target, "GET", path, timeout_s)
    assert ask(target, path, 0.3)[0] is None
