"""Who is answered: keys, names of the server, content types, and addresses to listen on."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.integration

OK = {"prompt": [1, 2], "max_tokens": 1}


def test_keys(keyed: Any) -> None:
    """From the file and the environment, not from a trailer; in no command line. They make names safe."""
    server = keyed
    headers = {"authorization": "Bearer third-key", "host": "any.example"}
    assert server.request("/v1/models", headers=headers).status == 200
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nauthorization: Bearer third-key\r\n\r\n"
        )
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
