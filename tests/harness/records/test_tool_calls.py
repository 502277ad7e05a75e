"""Tool calls of answers: when they came, what they say, whether they fit; and the sessions they are in."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from harness.records.cell import (
    MEASURED,
    RECEIVED,
    Answers,
    CellIdentity,
    Expected,
    cell_records,
    judge_calls,
)
from harness.schema.load import ClosedLoop

from .test_chat_streams import SENT, TOKENS, answer

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": SCHEMA}}]
CALLED = '{"path": "docs/a café"}'


@pytest.mark.parametrize("counts", [{}, {"token_ids": False, "usage": "continuous"}])
def test_a_call_begins_with_its_name_and_is_whole_with_its_last_argument(counts: dict[str, Any]) -> None:
    record = answer(tool_calls=7, function="ls", arguments=CALLED, **counts)
    assert record.error is None and record.chunks == SENT
    assert (record.t_call, record.t_called) == (SENT[TOKENS - 7][0], SENT[-1][0])
    assert json.loads(record.tool_calls or "") == [["ls", CALLED]]


def test_an_answer_without_calls_has_none() -> None:
    record = answer()
    assert (record.tool_calls, record.t_call, record.t_called) == (None, None, None)


@pytest.mark.parametrize(
    ("calls", "end", "tools", "judged"),
    [
        ([["ls", CALLED]], "tool_calls", TOOLS, (1, 0)),
        ([["ls", CALLED], ["ls", "{}"]], "tool_calls", TOOLS, (2, 1)),  # what is required is missing
        ([["ls", '{"path": 3}']], "stop", TOOLS, (1, 1)),
        ([["ls", '{"path": "a']], "tool_calls", TOOLS, (1, 1)),
        ([["ls", "[]"]], "tool_calls", TOOLS, (1, 1)),
        ([["rm", CALLED]], "tool_calls", TOOLS, (1, 1)),
        ([["ls", '{"path": "a']], "length", TOOLS, (None, None)),  # cut
        ([["ls", CALLED]], "tool_calls", [], (None, None)),
        ([["ls", ""]], "tool_calls", [{"function": {"name": "ls"}}], (1, 0)),
        ([["ls", "{}"]], "tool_calls", [{"function": {"name": "ls", "parameters": {"type": 5}}}], (1, 0)),
        ([["ls", "{}"]], "stop", [{"function": {"name": "ls", "parameters": {"$ref": "#/no"}}}], (1, 0)),
        ([["ls", "{}"]], "stop", [{"function": {"name": "ls", "parameters": "none"}}], (1, 0)),
        ([["ls", 5000 * '{"a":']], "stop", TOOLS, (1, 1)),
        (None, "stop", TOOLS, (0, 0)),
    ],
)
def test_calls_are_held_against_the_tools_that_were_offered(calls, end, tools, judged) -> None:
    assert judge_calls(None if calls is None else json.dumps(calls), end, tools) == judged


def cell(rows: list[dict[str, Any]], after: list[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Return the rows of `requests.parquet` of one session."""
    nothing = dict.fromkeys(MEASURED.names) | {"error": None}
    table = pa.Table.from_pylist([nothing | {"request": i} | row for i, row in enumerate(rows)], MEASURED)
    expected = [Expected(9, 9, session=4, turn=i, after=needs) for i, needs in enumerate(after)]
    identity = CellIdentity(0, "e", None, "e", ClosedLoop(concurrency=1, of="sessions"), 0)
    records = cell_records(Answers(0.0, table, RECEIVED.empty_table()), expected, identity)
    return [
        dict(zip(records.requests.columns.tolist(), row, strict=True))
        for row in records.requests.to_numpy().tolist()
    ]


def turn(due: float, sent: float, end: float, queue_ms: float | None = 5.0, **more: Any) -> dict[str, Any]:
    times = {"t_sched": due, "t_sent": sent, "t_last": end - 0.01, "t_end": end}
    return times | {"queue_wait_ms": queue_ms} | more


#: A planner, two subagents after 0.5 and 1 s, and a call that waits for both of them, and 2 s.
FAN = [turn(1, 1.001, 3), turn(3.5, 3.501, 4), turn(4, 4.002, 7), turn(9, 9.003, 10)]
NEEDS: list[tuple[int, ...]] = [(), (0,), (0,), (1, 2)]


def test_a_session_is_its_critical_path() -> None:
    *others, last = cell(FAN, NEEDS)
    assert last["session_start"] == 1.001
    assert last["session_model_s"] == pytest.approx(1.999 + 2.998 + 0.987)
    assert last["session_tools_s"] == pytest.approx(1 + 2)
    assert last["session_queue_s"] == pytest.approx(0.015)
    whole = last["t_last"] - last["session_start"]
    lags = 0.002 + 0.003  # of the client, after the first request
    assert last["session_model_s"] + last["session_tools_s"] + lags == pytest.approx(whole)
    assert all(row["session_start"] != row["session_start"] for row in others)  # NaN


def test_a_session_is_of_the_turn_that_ends_last_and_begins_with_its_first() -> None:
    beside = [turn(1, 1, 2), turn(1.5, 1.5, 8)]
    first, last = cell(beside, [(), ()])
    assert first["session_start"] != first["session_start"]
    assert (last["session_start"], last["session_tools_s"]) == (1, pytest.approx(0.5))
    assert cell([beside[0], turn(1.5, 1.5, 8, None)], [(), ()])[1]["session_queue_s"] != 0.005
    failed = cell([FAN[0], FAN[1] | {"error": "timeout"}, *FAN[2:]], NEEDS)
    assert all(row["session_start"] != row["session_start"] for row in failed)
