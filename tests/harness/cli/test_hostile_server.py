"""A server that attacks whoever measures it: what is shown and kept has nothing that hides, and no key."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from harness.plain_text import visible

KEY, TENANT = "sk-rosebench-0123456789abcdef", "tenant-0123456789"
#: Clears the screen, sets the title, colours by C1, turns the direction, returns the carriage.
ATTACK = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e4201\u2066\u200f\r\x00\x7f"
NAME = f"model{ATTACK}"


class Hostile(http.server.BaseHTTPRequestHandler):
    """Repeats the key that it gets; every third answer is an error, the others finish in an odd way."""

    protocol_version = "HTTP/1.1"
    keys: ClassVar[set[str]] = set()
    command_lines: ClassVar[set[bytes]] = set()
    count: ClassVar[int] = 0

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, "application/json", json.dumps({"data": [{"id": NAME}]}))
        else:
            self._send(404, "text/plain", ATTACK)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == NAME
        key = self.headers["Authorization"]
        Hostile.keys.add(key)
        Hostile.command_lines.update(map(_read, Path("/proc").glob("[0-9]*/cmdline")))
        Hostile.count += 1
        if Hostile.count % 3 == 0:
            known = f"{key} {self.headers['X-Tenant']}"
            message = {"error": {"message": f"{ATTACK} {known} is known {'x' * 5000}"}}
            self._send(500, f"text/{ATTACK[:2]!r}", json.dumps(message, ensure_ascii=False))
            return
        tokens = body["max_tokens"]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
        finish = "stop" if Hostile.count % 3 == 1 else f"{ATTACK}{key}"
        events = [{"choices": [{"text": ATTACK, "token_ids": [1] * tokens, "finish_reason": finish}]},
                  {"choices": [], "usage": usage, "metrics": {"queue_time_ms": -1e300}}]  # fmt: skip
        stream = [*map(json.dumps, events), "[DONE]"]
        self._send(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in stream))

    def _send(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.fixture
def hostile_url(integration: None) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return options that send them."""
    monkeypatch.setenv("SERVER_KEY", KEY)
    monkeypatch.setenv("TENANT", TENANT)
    return ["--api-key-env", "SERVER_KEY", "--header", "X-Tenant=env:TENANT"]


def test_nothing_of_an_attack_arrives_and_the_key_stays(
    hostile_url: str, secrets: list[str], bench: Any, quick: list[str], tmp_path: Path
) -> None:
    server = ["--base-url", hostile_url, *secrets]
    load = ["--concurrency", "2", "--n", "9", "--input-len", "4"]
    done = bench("online", *server, *quick, *load, "--json", "--figures")
    assert done.code == 3, done.err
    assert json.loads(done.out)["summaries"][0]["errors"] == {"http_500": 3, "stream_error": 3}
    [folder] = (tmp_path / "runs").iterdir()
    page = bench("report", str(folder), "--out", str(tmp_path / "report.html"))
    assert page.code == 0, page.err
    compared = bench("compare", str(folder), str(folder), "--json")

    assert Hostile.keys == {f"Bearer {KEY}"} and len(Hostile.command_lines) > 2
    assert not [line for line in Hostile.command_lines if KEY.encode() in line or TENANT.encode() in line]
    for said in (done.out, done.err, page.out, page.err, compared.out, compared.err):
        assert visible(said) == said and KEY not in said and TENANT not in said
    files = [tmp_path / "report.html", *(path for path in folder.rglob("*") if path.is_file())]
    assert {path.suffix for path in files} >= {".html", ".md", ".csv", ".json", ".jsonl", ".parquet", ".svg"}
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
            data = "\n".join(str(value) for row in rows for value in row.values()).encode()
        assert KEY.encode() not in data and TENANT.encode() not in data, path
        if path.suffix != ".png":
            assert visible(data.decode()) == data.decode(), path
    details = pq.read_table(folder / "requests.parquet")["error_detail"].to_pylist()
    assert sum("[secret]" in (detail or "") for detail in details) >= 3
