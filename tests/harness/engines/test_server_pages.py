"""Requests for pages other than the API go where every other request goes, with its headers."""

from __future__ import annotations

import http.client
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import pytest

from harness.engines.profiler import Route
from harness.engines.server_pages import ask, get, post, request
from harness.errors import EngineError
from harness.loadgen.load_plan import Target

pytestmark = pytest.mark.integration


class Guarded(http.server.BaseHTTPRequestHandler):
    """Answers requests with the key, for pages that it has, after hints that come early."""

    bodies: ClassVar[list[bytes]] = []

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        Guarded.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
        self._answer()

    def _answer(self) -> None:
        for _ in range(2):
            self.send_response_only(103)
            self.send_header("Link", "</style.css>; rel=preload")
            self.end_headers()
        self.log_request()
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(401 if not allowed else 200 if self.path == "/known" else 404)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"said")

    def log_message(self, *args: object) -> None:
        """Keep the test output quiet."""


@pytest.fixture
def target() -> Iterator[Target]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Target("127.0.0.1", server.server_port, "/v1", {"Authorization": "Bearer secret"})
        server.shutdown()
        thread.join()


def test_the_key_is_sent_with_every_request(target: Target) -> None:
    assert get(target, "/known") == "said"
    post(target, Route("/known", {"steps": 2}))
    assert Guarded.bodies[-1] == b'{"steps": 2}'
    assert get(Target(target.host, target.port, "/v1"), "/known") is None


def test_what_a_route_answers_is_told(target: Target) -> None:
    with pytest.raises(EngineError, match=r"POST /unknown answered 404: said"):
        post(target, Route("/unknown"))


class Slow(http.server.BaseHTTPRequestHandler):
    """Sends a byte of a page now and then, or a page without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"x" if self.path == "/drip" else bytes(1 << 20))
                if self.path == "/drip":
                    time.sleep(0.02)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("path", ["/drip", "/flood"])
def test_a_page_without_an_end_is_given_up(path: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        target = Target("127.0.0.1", server.server_port, "/v1")
        fault = "not whole after 0.5 s" if path == "/drip" else "is over 16 MiB"
        with pytest.raises((TimeoutError, http.client.HTTPException), match=fault):
            request(target, "GET", path, 0.5 if path == "/drip" else 60.0)
        assert ask(target, path, 0.5)[0] is None
        server.shutdown()
        thread.join()
