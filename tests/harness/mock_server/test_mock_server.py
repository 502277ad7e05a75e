"""The mock server, asked by a client that shares nothing with ours."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from harness.mock_server.__main__ import main

pytestmark = pytest.mark.integration


def test_it_does_what_it_is_told_and_says_what_it_did(start_mock: Any) -> None:
    server = start_mock("--ttft-ms", "20", "--itl-ms", "2", "--tokens-per-chunk", "3")
    status, text = server.ask({"prompt": [1, 2, 3], "max_tokens": 8, "user": "me"})
    [served] = server.served_requests
    events = [json.loads(part[6:]) for part in text.decode().split("\n\n") if part.startswith("data: {")]
    assert status == 200
    assert [choice["token_ids"] for e in events for choice in e["choices"]] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    assert text.endswith(b"data: [DONE]\n\n")
    assert (served.user, served.outcome) == ("me", "complete")
    times = [t - served.t_received for t, _ in served.writes]
    assert [tokens for _, tokens in served.writes] == [3, 3, 2]
    assert times[0] >= 0.020 and times[1] >= 0.026 and times[2] >= 0.030
    assert served.t_end >= served.writes[-1][0]


def test_chunks_can_share_a_write_and_are_written_down_one_by_one(start_mock: Any) -> None:
    server = start_mock("--ttft-ms", "5", "--itl-ms", "2")
    asked = {"prompt": "a", "max_tokens": 7}
    _, apart = server.ask(asked)
    _, together = server.ask({**asked, "behaviour": {"chunks_per_write": 3}})
    served_requests = server.served_requests
    assert together == apart
    written = [[t - served.t_received for t, _ in served.writes] for served in served_requests]
    assert [tokens for served in served_requests for _, tokens in served.writes] == [1] * 14
    assert len(set(written[0])) == 7
    assert len(set(written[1])) == 3 and written[1][0] == written[1][2] >= 0.009


def test_a_script_is_taken_in_turn_and_a_request_overrides_it(start_mock: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"status": 429}, {"ttft_ms": 0, "itl_ms": 0}]')
    server = start_mock("--script", str(script))
    assert [server.ask({"prompt": "a b"})[0] for _ in range(4)] == [429, 200, 429, 200]
    assert server.ask({"prompt": "a b", "behaviour": {"status": 503}})[0] == 503


def test_it_is_healthy_has_a_model_and_refuses_what_it_does_not_understand(shared_mock: Any) -> None:
    for body in (b"{", b"[]", {"behaviour": {"no_such": 1}}, {"max_tokens": "x"}):
        assert shared_mock.ask(body)[0] == 400
    assert shared_mock.ask(b"", "/health")[0] == 200
    assert json.loads(shared_mock.ask(b"", "/v1/models")[1])["data"][0]["id"] == "mock"


def test_a_client_that_leaves_gives_its_slot_back(start_mock: Any) -> None:
    server = start_mock("--slots", "1", "--ttft-ms", "0", "--itl-ms", "0")
    leaver = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    leaver.request("POST", "/v1/completions", json.dumps({"behaviour": {"ttft_ms": 600_000}}))
    queued = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    queued.request("POST", "/v1/completions", json.dumps({"prompt": [1]}))
    leaver.close()
    assert queued.getresponse().read().endswith(b"[DONE]\n\n")
    queued.close()
    assert [served.outcome for served in server.served_requests] == ["aborted", "complete"]


def test_a_bad_script_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"no_such": 1}]')
    assert main(["--script", str(script)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no_such" in error
