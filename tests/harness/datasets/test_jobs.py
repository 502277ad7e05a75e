"""Jobs of agents with tools: conversations, agentperf-local's tasks, OpenTelemetry's spans."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.datasets.dataset import load_dataset
from harness.datasets.jobs import AGENTPERF_WHEEL, Job
from harness.errors import UsageError

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]
SYSTEM, ASK = {"role": "system", "content": "s"}, {"role": "user", "content": "look"}


def called(number: str, text: str | None = None) -> dict[str, Any]:
    function = {"name": "ls", "arguments": '{"path": "."}'}
    calls = [{"id": number, "type": "function", "function": function}]
    return {"role": "assistant", "content": text or "", "tool_calls": calls}


def result(number: str, text: str = "a b", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": number, **more}


def jobs_of(kind: str, place: Path) -> list[Job]:
    load_dataset.cache_clear()
    return [job for job in load_dataset(f"{kind}:{place}").conversations if isinstance(job, Job)]


def test_a_conversation_with_tools_is_a_call_for_each_answer(tmp_path: Path) -> None:
    counted = {"role": "user", "content": "turn 1 of 9", "once": True}
    messages = [
        SYSTEM, ASK, counted, called("c1"), result("c1", think_s=0.2), result("c1", think_s=1.5),
        called("c2", "hm"), result("c2"),
    ]  # fmt: skip
    line = {"messages": messages, "tools": TOOLS}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    [job] = jobs_of("jsonl", tmp_path / "x.jsonl")
    first, second, third = job.calls
    assert first.messages == (SYSTEM, ASK, {"role": "user", "content": "turn 1 of 9"})
    assert second.messages == (SYSTEM, ASK, called("c1"), result("c1"), result("c1"))  # the count is gone
    assert third.messages == (*second.messages, called("c2", "hm"), result("c2"))
    assert [call.after for call in job.calls] == [(), (0,), (1,)]
    assert [call.think_s for call in job.calls] == [0.0, 1.5, 0.0]  # tools run beside each other
    assert [call.quoted for call in job.calls] == [(), ((2, 0),), ((2, 0), (5, 1))]
    assert [call.answer for call in job.calls] == ['ls {"path": "."}', 'hm\nls {"path": "."}', None]
    assert all(call.tools == tuple(TOOLS) for call in job.calls)


def row(place: int, *messages: dict[str, Any], task: str = "t") -> dict[str, Any]:
    return {
        "version": 1, "conversation_id": task, "conversation_idx": place, "messages": messages,
        "tools": TOOLS,
        "target_output_tokens": 7 + place, "simulated_tool_delay_ms_after": 250.0 * (place + 1),
    }  # fmt: skip


ROWS = [
    row(0, SYSTEM, ASK, {"role": "user", "content": "turn 1 of 100"}),
    row(1, SYSTEM, ASK, called("c1"), result("c1"), {"role": "user", "content": "turn 2 of 100"}),
    row(2, SYSTEM, ASK, called("c1"), result("c1"), called("c2"), result("c2")),
]


def wheel(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with zipfile.ZipFile(folder / AGENTPERF_WHEEL, "w") as file:
        place = "agentperf_local/data/replays/agentperf-default-v1/traces/t.jsonl"
        file.writestr(place, "\n".join(map(json.dumps, rows)))
    return folder / AGENTPERF_WHEEL


def test_tasks_of_agentperf(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, ROWS[::-1])))
    [job] = jobs_of("agentperf", tmp_path / "t.jsonl")
    assert jobs_of("agentperf", wheel(tmp_path, ROWS)) == jobs_of("agentperf", tmp_path) == [job]
    assert [call.messages for call in job.calls] == [tuple(row["messages"]) for row in ROWS]
    assert [call.output_tokens for call in job.calls] == [7, 8, 9]
    assert [call.think_s for call in job.calls] == [0.0, 0.25, 0.5]
    assert [call.quoted for call in job.calls] == [(), ((2, 0),), ((2, 0), (4, 1))]
    assert [call.answer for call in job.calls] == ['ls {"path": "."}'] * 2 + [None]


def test_other_tasks_than_the_published_are_not_agentperf(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BENCH_DATASETS", str(tmp_path))
    wheel(tmp_path, ROWS)
    load_dataset.cache_clear()
    with pytest.raises(UsageError, match=r"are not those of agentperf_local-0\.3\.4"):
        load_dataset("agentperf")


# --- OpenTelemetry ---------------------------------------------------------------------------------------

BEGIN = datetime(2026, 2, 25, 10, tzinfo=UTC)


def span(name: str, start: float, end: float, messages: Any, answer: Any, **more: Any) -> dict[str, Any]:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages} | more.pop("with_", {})
    kind = "gen_ai.output.messages" if isinstance(answer, list) else "gen_ai.output.text"
    times = {key: (BEGIN + timedelta(seconds=at)).isoformat() for key, at in (("start", start), ("end", end))}
    return {
        "trace_id": "t", "span_id": name, "start_time": times["start"], "end_time": times["end"],
        "attributes": attributes | {kind: answer}, **more,
    }  # fmt: skip


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def read_spans(folder: Path, *spans: dict[str, Any]) -> list[Job]:
    (folder / "t.json").write_text(json.dumps({"trace_id": "t", "spans": spans}))
    return jobs_of("otel", folder / "t.json")


def test_spans_become_a_graph_by_answers_and_times(tmp_path: Path) -> None:
    """A planner, two workers side by side, and a call that has both of their answers."""
    plan, left, right = said("user", "plan"), said("user", "left"), said("user", "right")
    joined = [plan, said("assistant", "P"), left, said("assistant", "L"), right, said("assistant", "R")]
    [job] = read_spans(
        tmp_path,
        span("d", 6.5, 9, json.dumps([*joined, said("user", "join")]), "J"),
        span("a", 0, 2, json.dumps([plan]), "P"),
        span("b", 2.5, 6, [left], "L"),
        span("c", 3, 5, [right], "R", with_={"gen_ai.usage.output_tokens": 11}),
        span("x", 3, 5, [right], "R", status={"code": 2}),
        {"span_id": "tool", "name": "execute_tool ls", "start_time": BEGIN.isoformat(), "attributes": {}},
    )
    assert [call.after for call in job.calls] == [(), (0,), (0,), (1, 2)]
    assert [call.think_s for call in job.calls] == [0.0, 0.5, 1.0, 0.5]
    assert job.calls[3].quoted == ((1, 0), (3, 1), (5, 2))
    assert [call.output_tokens for call in job.calls] == [None, None, 11, None]
    assert "1 calls that failed" in (load_dataset(f"otel:{tmp_path / 't.json'}").note or "")


def test_calls_that_began_together_need_nothing(tmp_path: Path) -> None:
    [job] = read_spans(tmp_path, *(span(str(i), i / 4, 5, [said("user", str(i))], "x") for i in range(3)))
    assert [(call.after, call.think_s) for call in job.calls] == [((), 0.0), ((), 0.25), ((), 0.5)]


def test_parts_of_spans_become_messages_of_requests(tmp_path: Path) -> None:
    call = {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "."}}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "hm"}, call]}
    results = [{"type": "tool_call_response", "id": f"c{i}", "response": "a b"} for i in (1, 2)]
    [job] = read_spans(
        tmp_path,
        span(
            "a", 0, 2, [said("developer", "s"), ASK], [answer],
            with_={"gen_ai.tool.definitions": json.dumps([{"type": "function", "name": "ls"}])},
        ),
        span("b", 3, 4, [SYSTEM, ASK, answer, {"role": "user", "parts": results}], "done"),
    )  # fmt: skip
    first, second = job.calls
    function = {"name": "ls", "arguments": '{"path":"."}'}
    calls = [{"id": "c1", "type": "function", "function": function}]
    made = {"role": "assistant", "content": "hm", "tool_calls": calls}
    assert first.messages == (SYSTEM, ASK)
    assert second.messages == (SYSTEM, ASK, made, result("c1"), result("c2"))
    assert first.tools == ({"type": "function", "function": {"name": "ls"}},)
    assert first.answer == 'hm\nls {"path":"."}' and second.quoted == ((2, 0),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"resourceSpans": []}, "missing required field `spans`"),
        ({"spans": []}, "has no job of an agent"),
        ({"spans": [span("a", 0, 1, [{"content": "x"}], "y")]}, "the span 'a' is malformed: KeyError"),
        ({"spans": [span("a", 0, 1, "[{", "y")]}, "the span 'a' is malformed"),
        ({"spans": [span("a", 0, 1, [ASK], "y") | {"start_time": "noon"}]}, "Invalid RFC3339"),
    ],
)
def test_damaged_spans_are_said(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        jobs_of("otel", tmp_path / "t.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no job of an agent"),
        ("{", "line 1: Input data was truncated"),
        (json.dumps(row(0, ASK) | {"target_output_tokens": 0}), "line 1: Expected `int` >= 1"),
    ],
)
def test_damaged_tasks_are_said(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(UsageError, match=message):
        jobs_of("agentperf", tmp_path / "t.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        jobs_of("agentperf", tmp_path / "gone")
