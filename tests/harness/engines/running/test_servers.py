"""A server that is already running: its address, key and models, and a message for each way to fail."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from harness.calibration.mock_process import mock_server as mock_process
from harness.engines.adapters.openai import OpenAI, main_process
from harness.engines.base import EngineSettings, endpoint_target
from harness.engines.registry import ENGINES, get_engine_variant
from harness.engines.running.address import Address
from harness.engines.running.model_list import ServedModel, models_path, served_model
from harness.engines.running.reported import note_reported
from harness.engines.selection import address_of, reported_context
from harness.errors import BenchError, EngineError, UsageError
from harness.schema.fairness import EngineFact
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import LaunchRecord
from harness.schema.setting_types import HIDDEN, EngineRef

pytestmark = pytest.mark.integration

KEY = "sk-very-secret"
SETTINGS = EngineSettings(get_engine_variant(EngineRef(name="openai")), Path(), "gpt2", "cpu", "bf16", 1024)
#: Lists of models, by the first part of the path.
LISTS = {
    "first": b'{"data": [{"id": "first", "max_model_len": 77}]}',
    "several": b'{"data": [{"id": "first"}, {"id": "second"}]}',
    "empty": b'{"data": []}',
    "html": b"<html>",
    "slots": b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}',
    "ollama": b'{"data": [{"id": "qwen3:latest", "owned_by": "library"}]}',
}
#: Other pages, as llama.cpp and Ollama have them; the latter names models that are loaded.
PAGES = {
    "/slots/props": b'{"default_generation_settings": {"n_ctx": 512}, "total_slots": 8}',
    "/ollama/api/ps": b'{"models": []}',
    "/vllm/version": b'{"version": "0.33.0"}',
    "/sglang/server_info": b'{"version": "0.5.23", "dtype": "torch.bfloat16", "quantization": null,'
    b' "context_length": 4096, "disable_overlap_schedule": false, "kv_cache_dtype": "auto"}',
    "/roseinfer/server_info": b'{"version": "0.2.0", "settings": {"dtype": "float32", "quantization": "fp8",'
    b' "kv_tokens": 640, "threads": 3}}',
    "/roseinfer-fp16/server_info": b'{"version": "0.2.0", "settings": {"dtype": "float16", "threads": 3}}',
    "/llamacpp/props": b'{"build_info": "b1-x", "model_ftype": "Q4_K", "total_slots": 8}',
    "/strange/server_info": b'{"version": "1", "dtype": NaN, "tp_size": {"a": [%s]}, "settings": [1],'
    b' "attention_backend": "auto"}' % b",".join([b"7"] * 999),
    "/nothing/version": b'{"version": ""}',
    "/nothing/server_info": b"[1]",
    "/nothing/props": b"<html>",
}
LOADED = (
    b'{"models": [{"model": "other", "context_length": 9},'
    b' {"model": "qwen3:latest", "context_length": 4096}]}'
)


class _Handler(BaseHTTPRequestHandler):
    """Has a list of models at `/NAME/v1/models`, at `/proxy` with the key alone, and answers `/STATUS/…` with
    that status and the key that it was sent. It has every model but `nope`."""

    def do_GET(self) -> None:
        name, key = self.path.split("/")[1], self.headers["Authorization"]
        if name == "proxy":
            name = "first" if key == f"Bearer {KEY}" else "401"
        page = PAGES.get(self.path) or LISTS.get(name, b"")
        self._answer(int(name), f"no: {key}") if name.isdigit() else self._answer(200, page)

    def do_POST(self) -> None:
        if self.path.startswith("/ollama/"):
            PAGES["/ollama/api/ps"] = LOADED
        lacks = b"nope" in self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(404 if lacks else 200, "The model `nope` does not exist." if lacks else b"{}")

    def _answer(self, status: int, body: str | bytes) -> None:
        self.send_response(status)
        self.end_headers()
        error = json.dumps({"error": {"message": str(body)}}).encode()
        self.wfile.write(body if isinstance(body, bytes) else error)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def listening(tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with listening() as port:
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port: int = reserved.getsockname()[1]
        return port


def fault(url: str, **address: Any) -> BenchError:
    with pytest.raises(BenchError) as raised:
        served_model(Address(url, **address).target(), address.get("model"))
    return raised.value


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("308", "redirects GET /308/v1/models to another address", "https://"),
        ("401", "wants an API key", "environment variable"),
        ("403", "does not allow", "--served-model"),
        ("404", "has no GET /404/v1/models, which lists models (404)", "name the model with --served-model"),
        ("418", "answers 418", "change the option that it names"),
        ("429", "limits how much it is asked", "lower the load"),
        ("500", "answers 500", "server's log"),
        ("several", "serves several models: first, second", "--served-model"),
        ("html", "is not a list of models", "OpenAI's API"),
        ("empty", "lists no model", "load a model"),
    ],
)
def test_each_answer_has_its_own_words(address: str, path: str, message: str, hint: str) -> None:
    error = fault(f"{address}/{path}")
    assert message in error.message and hint in error.hint
    assert isinstance(error, UsageError if path == "several" else EngineError)


@pytest.mark.parametrize("path", ["403", "429", "404", "first", "several", "html", "empty"])
def test_a_model_that_is_named_needs_no_list(address: str, path: str, tmp_path: Path) -> None:
    with OpenAI(Address(f"{address}/{path}", model="second")).open(SETTINGS, tmp_path) as server:
        assert (server.served_name, server.record.settings["model"]) == ("second", "second")
        server.check()


def test_the_process_of_a_server_is_the_one_above_all_that_listen(start_mock: Any, tmp_path: Path) -> None:
    mock = start_mock()
    with (
        OpenAI(Address(mock.url, pid=mock.process.pid)).open(SETTINGS, tmp_path) as server,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as deaf,
    ):
        assert deaf.stdin is not None
        assert server.record.argv == psutil.Process(mock.process.pid).cmdline()
        assert server.pids[0] == mock.process.pid and server.record.facts["processes"].value == 1
        elsewhere = f"http://192.0.2.1:{mock.port}"
        wrong = [(mock.url, deaf.pid), (mock.url, os.getpid()), (elsewhere, mock.process.pid)]
        for url, pid in [*wrong, (mock.url, 999_999_999)]:
            with pytest.raises(UsageError, match="is not the main process"):
                main_process(pid, Address(url).target())
        server.check()
        mock.end()
        with mock_process("--port", str(mock.port)):
            assert server.pids == []
            with pytest.raises(EngineError, match=f"process {mock.process.pid} .* has ended"):
                server.check()


@pytest.mark.parametrize("pid", ["0", "-1", "x", "9999999999", "٤٧", "here=4", ""])
def test_a_process_is_named_by_a_number(pid: str) -> None:
    with pytest.raises(ValidationError, match="--server-pid"):
        OnlineSettings(base_url="http://h", server_pid=pid)


#: Of each engine's server, what its pages and its command line tell; of /strange, a page that is none.
REPORTED: dict[str, tuple[str | None, dict[str, object]]] = {
    "vllm": ("0.33.0", {"dtype": "bfloat16", "quantization": "fp8", "max_batch": 64}),
    "sglang": ("0.5.23", {"dtype": "bfloat16", "context": 4096, "overlap": True}),
    "roseinfer": ("0.2.0", {"dtype": "float32", "quantization": "fp8", "kv_tokens": 640}),
    "llamacpp": ("b1-x", {"dtype": "Q4_K", "max_batch": 8}),
    "strange": ("1", {}),
    "nothing": (None, {}),
}
VLLM = "--dtype=half --dtype bfloat16 --quantization fp8_per_tensor --max-num-seqs 64 --kv-cache-dtype=auto"


@pytest.mark.parametrize("name", REPORTED)
def test_a_running_server_reports_its_version_and_settings(address: str, name: str) -> None:
    record = LaunchRecord(engine="openai", label="a", argv=VLLM.split() if name == "vllm" else [])
    record.facts["max_batch"] = at_first = EngineFact(value=8, source="GET /v1/models")
    if name == "vllm":
        del record.facts["max_batch"]
    server = SimpleNamespace(target=Address(f"{address}/{name}").target(), record=record)
    note_reported(server, ENGINES.values())  # type: ignore[arg-type]
    version, facts = REPORTED[name]
    values = {key: fact.value for key, fact in record.facts.items()}
    assert record.version == version and facts.items() <= values.items()
    assert name == "vllm" or record.facts["max_batch"] == at_first
    assert "auto" not in values.values() and (facts or values == {"max_batch": 8})


@pytest.mark.parametrize("names", [("vllm", "sglang"), ("roseinfer", "roseinfer-fp16"), ("vllm", "nothing")])
def test_all_addresses_of_a_server_report_their_version_and_settings(names: tuple[str, str]) -> None:
    record = LaunchRecord(engine="openai", label="a")
    with listening() as first, listening() as second:
        other_url = f"http://127.0.0.1:{second}/{names[1]}"
        address = Address(f"http://127.0.0.1:{first}/{names[0]}", others=(other_url,))
        server = SimpleNamespace(target=address.target(), record=record)
        if names == ("vllm", "sglang"):
            with pytest.raises(EngineError) as raised:
                note_reported(server, ENGINES.values())  # type: ignore[arg-type]
            assert raised.value.message == (
                f"the addresses of a are of several versions: 127.0.0.1:{first} is version 0.33.0, "
                f"127.0.0.1:{second} is version 0.5.23"
            )
        else:
            note_reported(server, ENGINES.values())  # type: ignore[arg-type]
    values = {name: fact.value for name, fact in record.facts.items()}
    if names[0] == "roseinfer":
        assert record.version == "0.2.0" and "kv_tokens" not in values
        assert (values["dtype"], values["threads"]) == ("float32 and float16", 3)
    else:
        assert record.version is None and not values


def test_a_model_that_is_named_needs_a_server_and_its_key(address: str) -> None:
    assert "redirects GET" in fault(f"{address}/301", model="second").message
    assert "wants an API key" in fault(f"{address}/proxy", model="second").message
    nobody = fault(f"http://127.0.0.1:{free_port()}", model="second")
    assert "no server answers" in nobody.message and "--wait-ready" in nobody.hint


@pytest.mark.parametrize("seconds", [0, 0.25])
def test_a_server_that_does_not_get_ready_in_its_time(address: str, seconds: float) -> None:
    for url in (f"http://127.0.0.1:{free_port()}", f"{address}/503"):
        with pytest.raises(EngineError) as raised:
            served_model(Address(url).target(), None, seconds)
        assert ("after 0.25 s" in raised.value.message) == (seconds > 0)


def test_a_model_that_the_server_lacks_is_refused_with_those_that_it_lists(address: str):
    error = fault(f"{address}/several", model="nope")
    place = address.removeprefix("http://")
    assert error.message == f"the server at {place} has no model 'nope'; it lists first, second"
    assert error.hint == "start a new run with one of them, such as --served-model first"


def test_the_context_of_a_model_that_is_not_listed_is_not_known(address: str):
    assert served_model(Address(f"{address}/first").target(), None) == ServedModel("first", 77)
    settings = OnlineSettings(base_url=f"{address}/several", served_model="third")
    server = OpenAI(address_of(settings, "openai"))
    assert reported_context(settings, {"openai": server}) is None


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("slots", {"context": (512, "GET /props"), "max_batch": (8, "GET /props")}),
        ("ollama", {"context": (4096, "GET /api/ps")}),
    ],
)
def test_a_context_that_another_page_tells_counts(address: str, tmp_path: Path, name: str, facts: Any):
    """Of one slot of llama.cpp; Ollama knows it once a request has loaded the model."""
    server = OpenAI(Address(f"{address}/{name}"))
    with server.open(SETTINGS, tmp_path) as opened:
        reported = {key: (fact.value, fact.source) for key, fact in opened.record.facts.items()}
    assert reported == facts
    settings = OnlineSettings(base_url=f"{address}/{name}", max_model_len=8192)
    with pytest.raises(UsageError, match=f"above the {facts['context'][0]}"):
        reported_context(settings, {"openai": server})


def test_the_key_is_sent_and_neither_written_down_nor_repeated(address, tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_KEY", KEY)
    with OpenAI(Address(f"{address}/proxy", api_key_env="SOME_KEY")).open(SETTINGS, tmp_path) as server:
        assert server.target.path == "/proxy/v1/completions"
        assert server.target.headers == {"Authorization": f"Bearer {KEY}"}
        assert KEY not in server.record.model_dump_json()
    error = fault(f"{address}/401", api_key_env="SOME_KEY")
    assert "refuses the API key" in error.message and "[secret]" in error.message
    assert KEY not in str(error)
    headers = {"X-Key": "env:SOME_KEY", "X-Team": "a"}
    assert Address("http://h", headers=headers).target().headers == {"X-Key": KEY, "X-Team": "a"}


def test_a_name_that_is_unknown() -> None:
    error = fault("http://no-such-host.invalid:80")
    assert "the name no-such-host.invalid is unknown" in error.message and "DNS" in error.hint


def test_certificates(address: str, make_certificate: Callable[[str], Path]) -> None:
    mine, other = make_certificate("localhost"), make_certificate("other.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(mine)
    with listening(context) as port:
        unknown = fault(f"https://localhost:{port}/first")
        assert "certificate" in unknown.message and "--ca-cert" in unknown.hint
        wrong_name = fault(f"https://127.0.0.1:{port}/first", ca_cert=mine)
        assert "certificate" in wrong_name.message and "use a name" in wrong_name.hint
        assert "--ca-cert" in fault(f"https://localhost:{port}/first", ca_cert=other).hint
        trusted = Address(f"https://localhost:{port}/first", ca_cert=mine).target()
        assert served_model(trusted, None).max_model_len == 77
    plain = fault(address.replace("http://127.0.0.1", "https://localhost"))
    assert "does not speak TLS" in plain.message and "http://" in plain.hint


def test_a_server_is_waited_for() -> None:
    """It begins to listen while the first answer is waited for."""
    port, done = free_port(), threading.Event()

    def serve() -> None:
        with listening(port=port):
            done.wait(20)

    threading.Timer(0.3, serve).start()
    assert served_model(Address(f"http://127.0.0.1:{port}/first").target(), None, 20).name == "first"
    done.set()


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_speaks_only_http_2_needs_a_proxy(tls, make_certificate):
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


@pytest.mark.parametrize(
    ("url", "address", "message"),
    [
        ("ftp://host", {}, "not the address of a server"),
        ("http://", {}, "not the address of a server"),
        ("http://host:port", {}, "its port is no number"),
        ("http://a@b", {}, "user or password"),
        ("http://me:word@h", {}, "user or password"),
        ("http://host?x=1", {}, "only api-version is supported"),
        (f"http://h/v1?api-version=1&key={KEY}", {}, "only api-version is supported"),
        ("http://h", {"api_key_env": "UNSET_KEY"}, "UNSET_KEY: the variable is not set"),
        ("http://h", {"api_key_env": KEY}, "needs the name of an environment variable"),
        ("http://h", {"headers": {"X-Key": f"env:{KEY}"}}, "needs the name of an environment variable"),
        ("http://h", {"headers": {"X-Key": HIDDEN}}, "is not kept in a run's folder"),
        ("https://h", {"ca_cert": Path("/absent.pem")}, "--ca-cert /absent.pem"),
        ("https://h", {"ca_cert": Path(__file__)}, "holds no certificate"),
    ],
)
def test_what_is_no_address_is_refused_without_the_key(url: str, address: dict[str, Any], message: str):
    with pytest.raises(UsageError) as raised:
        Address(url, **address).target()
    assert message in raised.value.message and raised.value.hint and KEY not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "chat", "models"),
    [
        ("h", "/v1/chat/completions", "/v1/models"),
        ("http://h/", "/v1/chat/completions", "/v1/models"),
        ("http://h/v1", "/v1/chat/completions", "/v1/models"),
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
    assert (target.host, target.port) == ("h", 443 if url.startswith("https") else 80)
    assert endpoint_target(target, "chat").path == chat
    assert endpoint_target(target, "completions").path == chat.replace("/chat", "")
    assert models_path(target) == models


@pytest.mark.parametrize(
    "url", ["http://h/v1/chat/completions", "https://h/v1/chat/completions/?api-version=1"]
)
def test_an_address_of_chats_needs_their_endpoint(url: str) -> None:
    with pytest.raises(UsageError, match="is that of chat") as raised:
        address_of(OnlineSettings(base_url=url), "openai")
    assert raised.value.hint == "add --endpoint chat"
    address = address_of(OnlineSettings(base_url=url, endpoint="chat", timeout_s=9, deadline_s=7), "openai")
    assert address is not None and address.url == url and address.target().answer_s == 7
