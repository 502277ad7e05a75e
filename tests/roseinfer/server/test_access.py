"""Access: keys, names of the server, content types, addresses to listen on, and shares of the queue."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from roseinfer.server.access import Access, QueueLimits
from roseinfer.server.http.errors import HttpError
from roseinfer.server.http.parser import HttpRequest
from roseinfer.server.metrics.counters import Counters
from tests.roseinfer.server.clients import connect, post, wait_for

pytestmark = pytest.mark.integration

OK = {"prompt": [1, 2], "max_tokens": 1}
LONG = {"prompt": [1, 2, 3], "max_tokens": 80, "ignore_eos": True, "temperature": 0}


def test_keys(keyed: Any) -> None:
    """From the file and the environment, not from a trailer; in no command line. They make names safe."""
    server = keyed
    headers = {"authorization": "Bearer third-key", "host": "any.example"}
    assert server.request("/v1/models", headers=headers).status == 200
    trailer = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nauthorization: Bearer third-key\r\n\r\n"
    )
    with connect(server, trailer) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 401 ")
    for key in ("first-key", "second-key", "third-key"):
        for scheme in ("Bearer", "bearer", "BEARER"):
            reply = server.request("/v1/completions", OK, headers={"authorization": f"{scheme} {key}"})
            assert reply.status == 200
    for headers in (
        {},
        {"authorization": "first-key"},
        {"authorization": "Basic first-key"},
        {"authorization": "Bearer"},
    ):
        for path, body in (
            ("/v1/models", None),
            ("/nothing", None),
            ("/v1/completions", OK),
            ("/metrics", None),
        ):
            reply = server.request(path, body, headers=headers)
            assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer"
    assert server.request("/health").status == 200
    for process in (psutil.Process(server.process.pid), *server.below):
        assert not [word for word in process.cmdline() if "-key" in word and "file" not in word]
    assert "ROSEINFER_API_KEY" not in server.engine.environ()


def test_pages_of_other_sites(serving: Any) -> None:
    for host, status in (
        ("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:5", 200), ("engine.example:8000", 200),
        ("Engine.Example.", 200), ("rebound.example", 403), ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403), ("", 403),
    ):  # fmt: skip
        assert serving.request("/v1/models", headers={"host": host}).status == status, host
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        for path, body in (("/v1/completions", OK), ("/flush_cache", None)):
            assert serving.request(path, body, "POST", headers={"content-type": kind}).status == 415
    json_type = {"content-type": "Application/JSON; charset=utf-8", "origin": "https://evil.example"}
    reply = serving.request("/v1/completions", OK, headers=json_type)
    assert reply.status == 200 and not [name for name in reply.headers if name.startswith("access-control")]
    assert serving.request("/v1/completions", method="OPTIONS").status == 405


def test_a_post_without_a_body_needs_no_type_unless_a_browser_sends_it(serving: Any) -> None:
    def status(path: str, body: bytes | None = None, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
            return connection.getresponse().status

    assert status("/flush_cache") == 200 and status("/v1/completions") == 400
    assert status("/flush_cache", b"{}") == status("/flush_cache", origin="null") == 415
    assert (
        status("/flush_cache", sec_fetch_site="cross-site") == status("/flush_cache", content_type="") == 415
    )


def refused(*options: str) -> str:
    command = [sys.executable, "-m", "roseinfer.cli", "serve", "--port", "0", "--no-warmup", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    return process.stderr


def test_listening_beyond_this_machine_needs_a_key(tmp_path: Path) -> None:
    assert "--insecure" in refused("--host", "0.0.0.0")
    empty = tmp_path / "keys"
    empty.write_text("\n")
    assert "no key" in refused("--api-key-file", str(empty))
    assert "cannot be read" in refused("--api-key-file", str(tmp_path / "none"))


def test_profiles_only_where_they_were_allowed(serving: Any, profiles: Path, tmp_path: Path) -> None:
    (profiles / "out").symlink_to(tmp_path)
    for folder in ("/tmp", "..", str(profiles / "out"), f"{profiles}/../../x", "a\nb/../../.."):
        refusal = serving.request("/start_profile", {"output_dir": folder, "num_steps": 1})
        assert refusal.status == 400 and refusal.json["error"]["param"] == "output_dir"
    for steps in (2**64, 1001, 0):
        assert (
            serving.request("/start_profile", {"output_dir": str(profiles), "num_steps": steps}).status == 400
        )
    assert serving.request("/integrity").status == 200


def test_profiles_are_off_unless_asked_for(chatting: Any) -> None:
    assert chatting.request("/start_profile", {"num_steps": 1}).status == 403


def as_client(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextlib.contextmanager
def flood(server: Any, key: str, requests: int, n: int, tokens: int = 80) -> Iterator[None]:
    """Open that many requests that wait for their answers, `n` each, of so many tokens."""
    request = post(LONG | {"n": n, "max_tokens": tokens}, f"authorization: Bearer {key}")
    with contextlib.ExitStack() as stack:
        for _ in range(requests):
            stack.enter_context(connect(server, request))
        yield


def waiting(server: Any, key: str) -> int:
    load = server.request("/server_info", headers=as_client(key)).json["load"]
    return int(load["waiting"])


def test_a_stranger_is_answered_within_a_flood(keyed: Any) -> None:
    """40 requests of 128 answers each from one client, and another's single token, through any front end."""
    with flood(keyed, "first-key", 40, 128):
        assert wait_for(lambda: waiting(keyed, "third-key") >= 4_300)
        for _ in range(4):
            reply = keyed.complete([7, 8], max_tokens=1, headers=as_client("third-key"))
            assert reply.status == 200 and reply.json["usage"]["completion_tokens"] == 1
            assert waiting(keyed, "third-key") > 3_300


def test_a_prefix_is_cached_for_a_key_and_a_salt(keyed: Any) -> None:
    def cached(key: str, salt: str | None) -> int:
        reply = keyed.complete([11] * 40, max_tokens=1, cache_salt=salt, headers=as_client(key))
        return int(reply.json["usage"]["prompt_tokens_details"]["cached_tokens"])

    for key in ("first-key", "second-key"):
        for salt in (None, "a", "b"):
            assert cached(key, salt) == 0 < cached(key, salt)
    for wrong in ("", "a" * 257, 1):
        reply = keyed.complete([1], cache_salt=wrong, headers=as_client("first-key"))
        assert reply.status == 400 and reply.json["error"]["param"] == "cache_salt"


def test_a_client_cannot_fill_the_queue(serve: Any) -> None:
    server = serve(
        "--max-active-requests", "1", "--max-waiting-requests", "400",
        environment={"ROSEINFER_API_KEY": "one\nother\nthird"},
    )  # fmt: skip

    def refused(key: str, n: int) -> Any:
        reply = server.request("/v1/completions", LONG | {"n": n}, headers=as_client(key))
        assert int(reply.headers["retry-after"]) >= 1
        return reply.status, reply.json["error"]["type"]

    with flood(server, "one", 2, 100, tokens=300):  # few of them end while others come
        assert wait_for(lambda: waiting(server, "one") >= 190)
        assert refused("one", 128) == (429, "rate_limit_error")
        with flood(server, "other", 1, 128, tokens=300):
            assert wait_for(lambda: waiting(server, "one") >= 310)
            assert refused("other", 128) == (429, "rate_limit_error")
            assert refused("third", 128) == (503, "server_error")
            assert server.complete([1], max_tokens=1, headers=as_client("third")).status == 200


def test_shares_of_the_queue() -> None:
    """Over all front ends; a first request is taken whatever its size; tokens count like answers."""
    first = Counters.create(2)
    second = Counters(first.fd, 2, 1)
    assert first.salt == second.salt and len(first.salt) == 16
    limits = QueueLimits(second, 100, 1000)
    limits.check(1, 128, 5000)
    first.add_waiting(1, 50, 100)
    for answers, tokens, status in ((1, 0, 429), (0, 900, 429), (0, 500, None)):
        with pytest.raises(HttpError) if status else contextlib.nullcontext() as refusal:
            limits.check(1, answers, tokens)
        assert refusal is None or refusal.value.status == status
    second.add_waiting(2, 45, 100)
    limits.check(3, 5, 800)
    with pytest.raises(HttpError) as full:
        limits.check(3, 6)
    assert full.value.status == 503
    first.add_waiting(1, -50, -100)
    limits.check(3, 100, 5000)


def test_who_is_a_client() -> None:
    """Keys where there are several, else addresses; of IPv6, networks."""

    def number(keys: list[str], peer: str, key: str = "a", salt: bytes = b"x") -> int:
        headers = {b"authorization": key.encode() if " " in key else f"Bearer {key}".encode()}
        return Access(keys, (), salt).client(HttpRequest("GET", "/", headers, True, True), peer)

    assert number(["a", "b"], "10.0.0.1") == number(["a", "b"], "10.0.0.2") != number(["a", "b"], "", "b")
    assert len({number(["a", "b"], "", key) for key in ("a", "bearer a", "BEARER  a ")}) == 1
    for keys in ([], ["a"]):
        assert number(keys, "10.0.0.1") == number(keys, "10.0.0.1", "b") != number(keys, "10.0.0.2")
        assert number(keys, "fe80::1%eth0") == number(keys, "fe80::2") != number(keys, "fe80:0:0:1::1")
        assert number(keys, "::ffff:10.0.0.1") != number(keys, "::ffff:10.0.0.2")
    assert number([], "10.0.0.1") != number([], "10.0.0.1", salt=b"y")
    assert 0 <= number([], "::1") < 2**63
