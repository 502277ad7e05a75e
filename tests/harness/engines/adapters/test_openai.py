"""A server that is already running: its address, its models, its key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import EngineSettings
from harness.engines.registry import get_engine_variant
from harness.engines.running.address import Address
from harness.engines.selection import address_of, reported_context
from harness.errors import EngineError, UsageError
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineRef

pytestmark = pytest.mark.integration

KEY = "sk-secret"


class _Handler(BaseHTTPRequestHandler):
    """One model at `/v1/models` and, with a key, at `/proxy`; two at `/several`; no list elsewhere."""

    def do_GET(self) -> None:
        body, status = json.dumps({"data": [{"id": "first"}]}).encode(), 200
        if self.path == "/proxy/v1/models" and self.headers["Authorization"] != f"Bearer {KEY}":
            body, status = b"{}", 401
        elif self.path.startswith("/other"):
            body = b"<html>"
        elif self.path.startswith("/several"):
            body = b'{"data": [{"id": "first"}, {"id": "second"}]}'
        elif self.path.startswith("/empty"):
            body = b'{"data": []}'
        elif self.path not in ("/v1/models", "/proxy/v1/models"):
            status = 404
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """It answers for every model but `nope`."""
        lacks = b"nope" in self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(404 if lacks else 200)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "The model `nope` does not exist."}}' if lacks else b"{}")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _openai(url: str, **address: Any) -> OpenAI:
    return OpenAI(Address(url, **address))


def _settings(served_name: str = "gpt2") -> EngineSettings:
    engine_variant = get_engine_variant(EngineRef(name="openai"))
    return EngineSettings(engine_variant, Path(), served_name, "cpu", "bf16", 1024)


@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/", "http://{}/v1", "http://{}/v1/"])
def test_forms_of_the_address(address: str, form: str, tmp_path: Path):
    with _openai(form.format(address)).open(_settings(), tmp_path) as server:
        assert f"{server.target.host}:{server.target.port}" == address
        assert server.target.path == "/v1/completions"
        assert server.served_name == "first"
        server.check()


def test_several_models_are_not_guessed_among(address: str, tmp_path: Path):
    with (
        pytest.raises(UsageError, match="serves several models: first, second") as raised,
        _openai(f"{address}/several").open(_settings("second"), tmp_path),
    ):
        pass
    assert "--served-model" in raised.value.hint


@pytest.mark.parametrize("path", ["", "/several", "/nothing", "/other", "/empty"])
def test_a_model_that_is_named_is_taken_whatever_is_listed(address: str, tmp_path: Path, path: str):
    with _openai(address + path, model="second").open(_settings(), tmp_path) as server:
        assert server.served_name == "second"
        assert server.record.settings["model"] == "second"
        server.check()


def test_a_model_that_the_server_lacks_is_refused_with_those_that_it_lists(address: str):
    with pytest.raises(UsageError) as raised:
        _ = _openai(f"{address}/several", model="nope").model
    assert raised.value.message == f"the server at {address} has no model 'nope'; it lists first, second"
    assert raised.value.hint == "start a new run with one of them, such as --served-model first"


def test_the_context_of_a_model_that_is_not_listed_is_not_known(address: str):
    settings = OnlineSettings(base_url=f"{address}/several", served_model="third")
    server = OpenAI(address_of(settings, "openai"))
    with pytest.raises(UsageError, match="openai does not list the model 'third', so its context") as raised:
        reported_context(settings, {"openai": server})
    assert raised.value.message.endswith("it lists first, second")
    assert reported_context(settings.model_copy(update={"max_model_len": 9}), {"openai": server}) is None


def test_a_named_model_needs_a_server_and_its_key(address: str):
    with pytest.raises(EngineError, match="no server answers"):
        _ = _openai("http://127.0.0.1:1", model="second").model
    with pytest.raises(EngineError, match="wants an API key"):
        _ = _openai(f"{address}/proxy", model="second").model


def test_the_key_is_sent_and_not_written_down(address: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    with _openai(f"http://{address}/proxy", api_key_env="SOME_KEY").open(_settings(), tmp_path) as server:
        assert server.target.path == "/proxy/v1/completions"
        assert server.target.headers == {"Authorization": f"Bearer {KEY}"}
        assert KEY not in server.record.model_dump_json()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/proxy", "wants an API key"),
        ("/nothing", "404"),
        ("/other", "not a list"),
        ("/empty", "no model"),
    ],
)
def test_a_server_that_cannot_be_used(address: str, tmp_path: Path, path: str, message: str):
    with (
        pytest.raises(EngineError, match=message),
        _openai(address + path).open(_settings(), tmp_path),
    ):
        pass


def test_nobody_there(tmp_path: Path):
    with (
        pytest.raises(EngineError, match="no server answers at 127"),
        _openai("http://127.0.0.1:1").open(_settings(), tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "http://host:port", "http://host?x=1", "http://a@b"]
)
def test_an_address_that_is_none(url: str):
    with pytest.raises(UsageError, match="address"):
        _openai(url)


def test_a_key_that_is_not_set(monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UsageError, match="SOME_KEY"):
        _openai("http://127.0.0.1:1", api_key_env="SOME_KEY")
