"""Chats with running servers: a role chunk, then reasoning, then text, against the server's own log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.records.parquet import read_records
from harness.runs.folder import RUN
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import HIDDEN
from tests.harness.measured import run_online

pytestmark = pytest.mark.integration

REASONING, OUTPUT, INPUT, N = 5, 12, 64, 6
#: The mock server counts words; this many more are its template's.
TEMPLATE = 9
QUICK = {
    "concurrency": [2], "n": N, "input_len": INPUT, "output_len": OUTPUT,
    "warmup": 0, "calibrate": False, "check_answers": False, "endpoint": "chat",
}  # fmt: skip


@pytest.fixture
def chatting(start_mock: Any, tmp_path: Path) -> Callable[..., Any]:
    """Starts a server that thinks before it answers."""

    def start(**behaviour: Any) -> Any:
        chat = {"chat": True, "reasoning": REASONING, "template_tokens": TEMPLATE, **behaviour}
        script = tmp_path / "script.json"
        script.write_text(json.dumps([chat]))
        return start_mock("--script", str(script), "--context", "512")

    return start


def settings(server: Any, tmp_path: Path, **given: Any) -> OnlineSettings:
    return OnlineSettings(server={"mine": server.url}, out=tmp_path / "runs", **{**QUICK, **given})


@pytest.mark.parametrize("counts", [{}, {"token_ids": False}, {"token_ids": False, "usage": "continuous"}])
def test_what_is_measured_is_what_the_server_wrote(
    chatting: Any, tmp_path: Path, counts: dict[str, Any]
) -> None:
    server = chatting(**counts)
    folder, results = run_online(settings(server, tmp_path, tokenizer="none"), ["bench"], lambda _: None)
    [summary, _] = results.summaries
    assert (summary.label, summary.num_success, summary.errors) == ("mine", N, {})
    assert summary.ttfo_ms.n == summary.ttft_ms.n == N
    records = read_records(folder)
    served = [request for request in server.served_requests if request.writes][-N:]
    assert [sum(tokens for _, tokens in request.writes) for request in served] == [OUTPUT] * N
    assert list(records.requests["completion_tokens"]) == [OUTPUT] * N
    assert list(records.requests["prompt_tokens"]) == list(records.requests["input_tokens"]) == [INPUT] * N
    for row in records.requests.itertuples():
        chunks = records.chunks[records.chunks["request"] == row.request]
        before = chunks.loc[chunks["t"] < row.t_answer, "tokens"].sum()
        until = chunks.loc[chunks["t"] <= row.t_answer, "tokens"].sum()
        assert before <= REASONING < until
    wrote = sorted(request.t_answer - request.t_received for request in served)
    read = sorted(records.requests["t_answer"] - records.requests["t_sent"])
    assert all(client >= server - 1e-3 for client, server in zip(read, wrote, strict=True))


def test_secrets_are_in_no_file(chatting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-of-the-environment")
    headers = {"X-Plain": "sk-as-it-is", "X-Env": "env:SOME_KEY"}
    given = {"tokenizer": "none", "header": headers, "api_key_env": "SOME_KEY"}
    folder, _ = run_online(settings(chatting(), tmp_path, **given), ["bench"], lambda _: None)
    for file in folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"sk-of-the-environment" not in content and b"sk-as-it-is" not in content, file
    stored = json.loads((folder / RUN).read_text())["settings"]["header"]
    assert stored == {"X-Plain": HIDDEN, "X-Env": "env:SOME_KEY"}


def test_several_servers_are_several_rows(chatting: Any, tmp_path: Path) -> None:
    server = chatting()
    wanted = settings(server, tmp_path, tokenizer="none").model_copy(
        update={"server": {"a": server.url, "b": server.url}}
    )
    folder, results = run_online(wanted, ["bench"], lambda _: None)
    assert [summary.label for summary in results.summaries if summary.repeat is None] == ["a", "b"]
    facts = json.loads((folder / RUN).read_text())["launches"][0]["facts"]
    assert facts["prompts"]["value"] == f"chat, counted by the server, at least {TEMPLATE + 1} tokens"
    assert facts["context"] == {"value": 512, "source": "GET /v1/models"}
