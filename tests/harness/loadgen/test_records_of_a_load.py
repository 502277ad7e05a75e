"""Real client processes against the mock server, over real sockets."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

import msgspec
import pandas as pd
import pytest

from harness.loadgen.client import token_times
from harness.loadgen.load_plan import LoadPlan, LoadResult, Progress, RawResponse, Target, WireRequest
from harness.loadgen.retrying import failed_status
from harness.loadgen.run_load import run_load
from harness.records.cell import CellIdentity, CellRecords, Expected
from harness.records.request_record import read_request
from harness.schema.load import TraceLoad
from tests.harness.measured import read_cell

from .conftest import INPUT_TOKENS, OUTPUT_TOKENS, make_plan

pytestmark = pytest.mark.integration

IDENTITY = CellIdentity(3, "mock", None, "mock", TraceLoad(scale=1.0), 0)

SHAPES: list[dict[str, Any]] = [
    {},
    {"tokens_per_chunk": 4},
    {"tokens_per_chunk": 5, "token_ids": False},
    {"empty_first": True, "held_back": True},
    {"chat": True},
    {"chat": True, "usage": "continuous", "token_ids": False},
    {"framing": "close"},
    {"framing": "length", "crlf": True, "pings": True},
    {"done": False, "end_delay_ms": 30.0},
    {"hang_up": True},
]

#: How a fault of each way of failing is counted; all kinds are counted in the tests of `bench online`.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"status": 503}, "http_503"),
    ({"error_after": 0}, "stream_error"),
    ({"cut_after": 3}, "disconnected"),
    ({"usage_off_by": 1}, "token_mismatch"),
    ({"stall_after": 4}, "timeout"),
]


def records(result: LoadResult) -> CellRecords:
    expected = [Expected(INPUT_TOKENS, OUTPUT_TOKENS)] * len(result.responses)
    return read_cell(result, expected, IDENTITY)


def token_stamps(response: RawResponse) -> list[tuple[float, int]]:
    return read_request(response, OUTPUT_TOKENS).chunks


def one_by_one(chunks: list[tuple[float, int]]) -> list[float]:
    """The time of each token."""
    return [t for t, tokens in chunks for _ in range(tokens)]


@pytest.mark.usefixtures("chunks_as_read")
@pytest.mark.parametrize(("clients", "concurrency"), [(2, None), (1, 4)])
def test_what_is_measured_is_what_the_server_did(
    mock_server: Any, clients: int, concurrency: int | None
) -> None:
    behaviours = SHAPES * 4
    result = run_load(
        make_plan(mock_server, behaviours, concurrency=concurrency), clients=clients, start_delay_s=0.1
    )
    served_requests = {int(served.user or -1): served for served in mock_server.served_requests}
    assert [response.index for response in result.responses] == list(range(len(behaviours)))
    assert len(served_requests) == len(behaviours)
    late = []
    for response in result.responses:
        served = served_requests[response.index]
        seen = token_stamps(response)
        reads, writes = one_by_one(seen), one_by_one(served.writes)
        assert len(reads) == len(writes)
        assert all(read > write - 1e-3 for read, write in zip(reads, writes, strict=True))
        assert reads == sorted(reads)
        assert response.t_sent is not None and response.t_end is not None
        assert result.t0 <= response.t_sched <= response.t_sent <= seen[0][0] <= response.t_end
        assert response.t_end >= served.t_end
        late += [read - write for read, write in zip(reads, writes, strict=True)]
    assert median(late) < 0.5
    assert {response.client for response in result.responses} == set(range(clients))
    assert [usage.client for usage in result.usage] == list(range(clients))
    assert records(result).requests["error"].isna().all()


def test_the_schedule_is_kept_as_it_was_given(shared_mock: Any) -> None:
    plan = make_plan(shared_mock, [{}] * 30, every_s=0.003)
    result = run_load(plan, clients=2, start_delay_s=0.1)
    offsets = [response.t_sched - result.t0 for response in result.responses]
    assert offsets == pytest.approx([request.t_sched_s for request in plan.requests], abs=1e-6)


def test_a_closed_loop_holds_its_concurrency(shared_mock: Any) -> None:
    result = run_load(make_plan(shared_mock, [{}] * 24, concurrency=3), clients=2, start_delay_s=0.1)
    for client, slots in enumerate((2, 1)):
        sent = [response for response in result.responses if response.client == client]
        begun = [(response.t_sched, 1) for response in sent]
        moments = sorted(begun + [(response.t_end or 0.0, -1) for response in sent])
        assert max(accumulate(change for _, change in moments)) == slots
        assert len(sent) == 8 * slots


def test_a_batch_begins_when_the_one_before_has_ended(shared_mock: Any) -> None:
    plan = make_plan(shared_mock, [{}, {"hang_up": True}, *[{}] * 6], concurrency=3)
    result = run_load(msgspec.structs.replace(plan, in_batches=True), start_delay_s=0.1)
    begin = result.t0
    for batch in (result.responses[:3], result.responses[3:6], result.responses[6:]):
        assert [response.t_sched for response in batch] == pytest.approx([begin] * len(batch), abs=1e-6)
        begin = max(response.t_end or 0.0 for response in batch)


def test_a_fault_is_counted_under_its_kind_and_stops_nothing(shared_mock: Any) -> None:
    behaviours = [behaviour for fault, _ in FAULTS for behaviour in (fault, {})]
    kinds = [kind for _, fault in FAULTS for kind in (fault, None)]
    seen: list[Progress] = []
    result = run_load(
        make_plan(shared_mock, behaviours, timeout_s=1.0), progress=seen.append, start_delay_s=0.1
    )
    frame = records(result).requests
    found = [None if pd.isna(kind) else kind for kind in frame["error"]]
    assert found == kinds
    assert frame["error_detail"].notna().tolist() == [kind is not None for kind in kinds]
    assert seen[-1].sent == seen[-1].completed == len(behaviours)
    failed = [raw for raw in result.responses if raw.error is not None or failed_status(raw) is not None]
    assert seen[-1].failed == len(failed) > 0


def test_a_response_that_only_sends_comments_ends_at_its_deadline(shared_mock: Any) -> None:
    plan = msgspec.structs.replace(make_plan(shared_mock, [{"comments": 3000}, {}]), deadline_s=1.0)
    talker, prompt = run_load(plan, start_delay_s=0.1).responses
    assert (talker.error, talker.detail) == ("timeout", "not complete after 1 s")
    assert prompt.error is None


def test_queued_requests_wait_for_their_turn(start_mock: Callable[..., Any]) -> None:
    mock_server = start_mock("--slots", "1")
    result = run_load(make_plan(mock_server, [{}] * 6, every_s=0.0), start_delay_s=0.1)
    served_requests = sorted(mock_server.served_requests, key=lambda served: served.t_started)
    for before, after in pairwise(served_requests):
        assert after.t_started >= before.t_end
        assert token_stamps(result.responses[int(after.user)])[0][0] >= before.t_end
    assert records(result).requests["error"].isna().all()


def test_connections_are_kept_and_never_used_after_the_server_closed_them(mock_server: Any) -> None:
    result = run_load(
        make_plan(mock_server, [{}, {}, {"hang_up": True}, {}, {}], concurrency=1), start_delay_s=0.1
    )
    assert [response.reused for response in result.responses] == [False, True, True, False, True]
    assert len(mock_server.served_requests) == 5
    assert records(result).requests["error"].isna().all()


def test_each_request_has_its_connection_where_a_server_keeps_none(mock_server: Any) -> None:
    """It closes them right after each answer without saying so, as llama.cpp does."""
    result = run_load(make_plan(mock_server, [{"hang_up": True}] * 8, concurrency=1), start_delay_s=0.1)
    frame = records(result).requests
    assert frame["error"].isna().all()
    assert not any(response.reused for response in result.responses)
    assert frame["resent"][2:].sum() == 0


def test_what_a_server_drops_is_sent_again_and_timed_from_the_first_time(mock_server: Any) -> None:
    result = run_load(
        make_plan(mock_server, [{}, {"drop_ms": 100}, {}, {"model": "small"}], concurrency=1),
        start_delay_s=0.1,
    )
    frame = records(result).requests
    assert frame["error"].isna().all()
    assert frame["resent"].tolist() == [0, 1, 0, 0]
    assert (frame["t_first"] - frame["t_sent"])[1] > 0.103
    dropped, *answered = sorted(mock_server.served_requests, key=lambda served: len(served.writes))
    assert (dropped.user, len(answered)) == ("1", 4)
    assert (result.responses[1].t_sent or math.inf) <= dropped.t_received


def test_a_refused_connection_fails_its_request() -> None:
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        target = Target("127.0.0.1", taken.getsockname()[1], "/v1/completions")
        plan = LoadPlan(target, [WireRequest(i, None, b"{}") for i in range(5)], concurrency=2)
        result = run_load(plan, start_delay_s=0.05)
    assert [response.error for response in result.responses] == ["connect"] * 5
    frame = records(result).requests
    assert frame["error"].tolist() == ["connect"] * 5
    assert frame["t_sent"].isna().all() and frame["status"].isna().all()


@pytest.mark.usefixtures("chunks_as_read")
def test_progress_takes_the_same_first_token_as_the_metric(shared_mock: Any) -> None:
    """It finds it by the bytes: the first chunk of a chat, its role, is none."""
    result = run_load(
        make_plan(shared_mock, [shape | {"ttft_ms": 20} for shape in SHAPES]), start_delay_s=0.05
    )
    for response in result.responses:
        assert next(token_times(response)) == token_stamps(response)[0][0]
