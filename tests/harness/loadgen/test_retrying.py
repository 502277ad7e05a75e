"""Requests that fail in a way that may pass are sent again, and none are sent after too many failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest

from harness.loadgen import retrying
from harness.loadgen.load_plan import LoadPlan, RawResponse, Target
from harness.loadgen.retrying import failed_status, pause_s
from harness.loadgen.run_load import run_load

from .conftest import make_plan

PLAN = LoadPlan(Target("h", 1, "/"), [], retries=2, deadline_s=60)


def ended(head: str, **fields: Any) -> RawResponse:
    segments = [(1.0, head.replace("\n", "\r\n").encode())] if head else []
    return RawResponse(0, 0.0, 0.5, 1.0, segments, **fields)


@pytest.mark.parametrize(
    ("response", "least", "most"),
    [
        (ended("HTTP/1.1 429 Too Many\n\n{}"), 0.25, 0.5),
        (ended("HTTP/1.1 529 Overloaded\n\n", retries=1), 0.5, 1.0),
        (ended("HTTP/1.1 429 Too Many\nRetry-After: 7\n\n"), 7, 7),
        (ended("HTTP/1.1 503 No\nretry-after-ms: 1500\n\n"), 1.5, 1.5),
        (ended("HTTP/1.1 503 No\nRetry-After: soon\n\n"), 0.25, 0.5),
        (ended("HTTP/1.1 100 Continue\n\nHTTP/1.1 502 Bad\n\n"), 0.25, 0.5),
        (ended("", error="connect"), 0.25, 0.5),
    ],
)
def test_what_may_pass_is_asked_again_later(response: RawResponse, least: float, most: float) -> None:
    pause = pause_s(response, PLAN)
    assert pause is not None and least <= pause <= most


def test_a_date_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    monkeypatch.setattr(retrying, "time", now.timestamp)
    date = format_datetime(now + timedelta(seconds=9), usegmt=True)
    assert pause_s(ended(f"HTTP/1.1 429 No\nRetry-After: {date}\n\n"), PLAN) == 9


@pytest.mark.parametrize(
    "response",
    [
        ended("HTTP/1.1 400 Bad\n\n"),
        ended("HTTP/1.1 200 OK\n\n"),
        ended("HTTP/1.1 200 OK\n\ndata: {}", error="disconnected"),
        ended("HTTP/1.1 429 No\n\n", retries=2),
        ended("", error="timeout"),
        ended("HTTP/1.1 429 No\nRetry-After: 60\n\n"),  # after its deadline
    ],
)
def test_what_stays_wrong_is_not(response: RawResponse) -> None:
    assert pause_s(response, PLAN) is None


def test_a_request_counts_from_its_first_try(start_mock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"status": 429, "retry_after": "0.3"}
    server = start_mock(script=[{}, refused, {}, refused, *[{}] * 3])
    plan = msgspec.structs.replace(make_plan(server, [{}] * 3, every_s=0.05), retries=5)
    plain = [msgspec.structs.replace(r, body=b'{"prompt": "a", "max_tokens": 3}') for r in plan.requests]
    result = run_load(msgspec.structs.replace(plan, requests=plain), start_delay_s=0.1)
    first, again, other = result.responses
    assert (first.retries, again.retries, other.retries) == (0, 2, 0)
    assert (first.t_retry, failed_status(again)) == (None, None)
    assert again.t_sent is not None and again.t_retry is not None
    assert again.t_retry - again.t_sent >= 2 * 0.3
    assert again.t_sent - again.t_sched < 0.25


@pytest.mark.parametrize("concurrency", [None, 2])
def test_nothing_is_sent_after_too_many_failures(shared_mock: Any, concurrency: int | None) -> None:
    behaviours = [{}, *[{"status": 500}] * 3, *[{}] * 36]
    plan = make_plan(shared_mock, behaviours, every_s=0.02, concurrency=concurrency)
    responses = run_load(msgspec.structs.replace(plan, most_failed=2), start_delay_s=0.1).responses
    kinds: list[object] = [response.error or failed_status(response) for response in responses]
    assert kinds[:4] == [None, b"500", b"500", b"500"] and kinds[-1] == "stopped"
    assert [response.index for response in responses] == list(range(40))
    assert all(response.t_sent is None for response in responses if response.error == "stopped")
