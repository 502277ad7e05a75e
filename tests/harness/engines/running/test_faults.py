"""Each way in which a running server cannot be used has a message and a hint of its own."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import endpoint_target
from harness.engines.running.address import Address
from harness.engines.running.model_list import ServedModel, check_answers, models_path, served_model
from harness.engines.selection import address_of
from harness.errors import BenchError, EngineError, UsageError
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import HIDDEN

pytestmark = pytest.mark.integration

KEY = "sk-very-secret"
MODELS = b'{"data": [{"id": "m", "max_model_len": 77}]}'


class _Handler(BaseHTTPRequestHandler):
    """Answers `/STATUS/v1/models` with that status, and repeats the key it was sent."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        refused = json.dumps({"error": {"message": f"no: {self.headers['Authorization']}"}})
        self.send_response(status)
        self.end_headers()
        self.wfile.write(MODELS if status == 200 else refused.encode())

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def listening(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def fault(url: str, **address: object) -> BenchError:
    with pytest.raises(BenchError) as raised:
        served_model(Address(url, **address).target(), None)  # type: ignore[arg-type]
    return raised.value


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (308, "redirects GET /308/v1/models to another address", "https://"),
        (401, "wants an API key", "environment variable"),
        (403, "does not allow", "--served-model"),
        (404, "has no GET /404/v1/models, which lists models (404)", "name the model with --served-model"),
        (429, "limits how much it is asked", "lower the load"),
        (500, "answers 500", "server's log"),
    ],
)
def test_each_status_has_its_own_words(status: int, message: str, hint: str) -> None:
    with listening() as port:
        error = fault(f"http://127.0.0.1:{port}/{status}")
    assert message in error.message and hint in error.hint


@pytest.mark.parametrize("status", [403, 429])
def test_a_list_that_is_not_to_be_had_is_not_needed(status: int) -> None:
    with listening() as port:
        target = Address(f"http://127.0.0.1:{port}/{status}").target()
        assert served_model(target, "m") == ServedModel("m")
        check_answers(target)


def test_a_redirect_is_named_although_the_model_is_known() -> None:
    with listening() as port, pytest.raises(EngineError, match="redirects GET"):
        served_model(Address(f"http://127.0.0.1:{port}/301").target(), "m")


def test_a_refused_key_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    with listening() as port:
        error = fault(f"http://127.0.0.1:{port}/401", api_key_env="SOME_KEY")
    assert "refuses the API key" in error.message and "[secret]" in error.message
    assert KEY not in str(error)


def test_a_name_that_is_unknown() -> None:
    error = fault("http://no-such-host.invalid:80")
    assert "the name no-such-host.invalid is unknown" in error.message and "DNS" in error.hint


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    error = fault(f"http://127.0.0.1:{port}")
    assert "no server answers" in error.message and "--wait-ready" in error.hint


def test_certificates(make_certificate: Callable[[str], Path]) -> None:
    mine, other = make_certificate("localhost"), make_certificate("other.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(mine)
    with listening(context) as port:
        unknown = fault(f"https://localhost:{port}/200")
        assert "certificate" in unknown.message and "--ca-cert" in unknown.hint
        wrong_name = fault(f"https://127.0.0.1:{port}/200", ca_cert=mine)
        assert "certificate" in wrong_name.message and "use a name" in wrong_name.hint
        assert "--ca-cert" in fault(f"https://localhost:{port}/200", ca_cert=other).hint
        trusted = Address(f"https://localhost:{port}/200", ca_cert=mine).target()
        assert served_model(trusted, None).max_model_len == 77
    with listening() as port:
        plain = fault(f"https://localhost:{port}/200")
        assert "does not speak TLS" in plain.message and "http://" in plain.hint


def test_a_file_that_holds_no_certificate(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (empty, tmp_path / "absent.pem"):
        with pytest.raises(UsageError, match="--ca-cert"):
            Address("https://h", ca_cert=path).target()


def test_a_server_is_waited_for() -> None:
    """It begins to listen while the first answer is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    waiting = threading.Event()

    def begin() -> None:
        waiting.wait(20)
        server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        servers.append(server)
        server.serve_forever(0.01)

    servers: list[ThreadingHTTPServer] = []
    threading.Thread(target=begin, daemon=True).start()
    threading.Timer(0.3, waiting.set).start()
    assert served_model(Address(f"http://127.0.0.1:{port}/200").target(), None, 20).name == "m"
    servers[0].shutdown()
    servers[0].server_close()


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_speaks_only_http_2_needs_a_proxy(
    tls: bool, make_certificate: Callable[[str], Path]
) -> None:
    """The first bytes of its answer are a frame of settings."""
    certificate = make_certificate("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def answer() -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) if tls else connection as stream:
            stream.recv(1 << 16)
            stream.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer, daemon=True).start()
        address = f"{'https' if tls else 'http'}://localhost:{listener.getsockname()[1]}"
        error = fault(address, ca_cert=certificate)
    assert "HTTP/2" in error.message and "proxy" in error.hint


def test_what_was_hidden_is_asked_for_again() -> None:
    with pytest.raises(UsageError, match="is not kept") as raised:
        Address("http://h", headers={"X-Key": HIDDEN}).target()
    assert "env:" in raised.value.hint


def test_headers_come_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    headers = {"X-Key": "env:SOME_KEY", "X-Team": "a"}
    assert Address("http://h", headers=headers).target().headers == {"X-Key": KEY, "X-Team": "a"}
    with pytest.raises(UsageError, match="password"):
        Address("http://me:word@h").target()


@pytest.mark.parametrize("address", [{"api_key_env": KEY}, {"headers": {"X-Key": f"env:{KEY}"}}])
def test_a_key_in_the_place_of_its_variable_is_not_repeated(address: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="needs the name of an environment variable") as raised:
        Address("http://h", **address).target()
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "chat", "models"),
    [
        ("http://h", "/v1/chat/completions", "/v1/models"),
        ("http://h/proxy/v1/", "/proxy/v1/chat/completions", "/proxy/v1/models"),
        (
            "http://h/v1beta/openai/chat/completions",
            "/v1beta/openai/chat/completions",
            "/v1beta/openai/models",
        ),
        ("http://h/api/completions", "/api/chat/completions", "/api/models"),
        (
            "https://h/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "/openai/deployments/d/models?api-version=2024-10-21",
        ),
    ],
)
def test_paths_of_an_address(url: str, chat: str, models: str) -> None:
    target = Address(url).target()
    assert endpoint_target(target, "chat").path == chat
    assert endpoint_target(target, "completions").path == chat.replace("/chat", "")
    assert models_path(target) == models


def test_a_query_is_not_stored_where_it_may_be_a_key() -> None:
    with pytest.raises(UsageError, match="only api-version is supported") as raised:
        Address(f"http://h/v1?api-version=1&key={KEY}").target()
    assert KEY not in str(raised.value) and "--header" in raised.value.hint


@pytest.mark.parametrize(
    "url", ["http://h/v1/chat/completions", "https://h/v1/chat/completions/?api-version=1"]
)
def test_an_address_of_chats_needs_their_endpoint(url: str) -> None:
    with pytest.raises(UsageError, match="is that of chats") as raised:
        address_of(OnlineSettings(base_url=url), "openai")
    assert raised.value.hint == "add --endpoint chat"
    address = address_of(OnlineSettings(base_url=url, endpoint="chat"), "openai")
    assert address is not None and address.url == url


def test_another_error_is_an_engine_error() -> None:
    with listening() as port:
        assert isinstance(fault(f"http://127.0.0.1:{port}/418"), EngineError)
