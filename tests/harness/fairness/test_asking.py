"""A server that has too much to do is asked again, and is not judged by what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from harness.fairness.answer_check import judge
from harness.fairness.asking import ask_all, is_unanswered
from harness.loadgen.load_plan import Target
from harness.workload import PlannedRequest

BODY = b'{"model": "m", "prompt": [1, 2], "max_tokens": 3, "stream": true}'
#: Asks again at once, twice.
ask_soon = partial(ask_all, pauses_s=(0.0, 0.0))


def target(start_mock: Any, tmp_path: Path, *statuses: int) -> Target:
    """A server that answers with these statuses in turn, and with the last from then on."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"status": status} for status in statuses]))
    return Target("127.0.0.1", start_mock("--script", str(script)).port, "/v1/completions")


def requests(count: int) -> list[PlannedRequest]:
    return [PlannedRequest(i, None, np.array([1, 2], np.int32), 3) for i in range(count)]


def test_what_met_a_limit_is_asked_again(start_mock: Any, tmp_path: Path) -> None:
    server = target(start_mock, tmp_path, 200, 429, 503, 200, 429, 200)
    replies = ask_soon(server, Mock(return_value=BODY), requests(4), in_flight=1, exact_tokens=3)
    assert [(reply.error, reply.count) for reply in replies] == [(None, 3)] * 4


@pytest.mark.parametrize(("status", "outcome"), [(429, "unknown"), (503, "unknown"), (500, "failed")])
def test_what_a_server_refuses_in_the_end_is_wrong_only_if_it_is_its_fault(
    start_mock: Any, tmp_path: Path, status: int, outcome: str
) -> None:
    server = target(start_mock, tmp_path, status)
    [reply] = ask_soon(server, Mock(return_value=BODY), requests(1), in_flight=1, exact_tokens=3)
    assert reply.error is not None and reply.error.startswith(f"http_{status}")
    assert is_unanswered(reply) == (outcome == "unknown")
    assert judge(reply, 2, 3, None, None).outcome == outcome
