"""Sessions of agents as TraceLab publishes them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets.agents import BLOCK_TOKENS, AgentJobs, read_agent_jobs, runs_of
from harness.errors import UsageError
from harness.workload.dataset_content import AgentContent

BEGIN = datetime(2026, 6, 1, 5, 40, tzinfo=UTC)


def event(kind: str, at_s: float) -> dict[str, Any]:
    return {"event_type": kind, "timestamp": (BEGIN + timedelta(seconds=at_s)).isoformat(), "source": "x"}


def asked(
    index: int, tokens: int, prefix: int = 0, events: Sequence[dict[str, Any]] = (), **more: Any
) -> dict[str, Any]:
    """A line of the trace, with fields that are not read."""
    row = {"provider": "claude", "session_id": "s", "round_index": index, "input_tokens_total": tokens}
    row |= {"prefix_tokens": prefix, "output_tokens": 5, "timing_events": list(events), "tools": []}
    return row | more


def read(folder: Path, *rows: dict[str, Any]) -> AgentJobs:
    (folder / "t.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return read_agent_jobs(f"tracelab:{folder / 't.jsonl.gz'}")


def test_times_are_from_an_answer_to_the_last_input_after_it(tmp_path: Path) -> None:
    [job] = read(
        tmp_path,
        asked(1, 900, events=[event("tool_result", 11), event("tool_result", 19), event("text", 25)]),
        asked(0, 800, events=[event("user_message", 0), event("reasoning", 8), event("tool_call", 10)]),
        asked(2, 950, events=[event("user_message", 85.5), event("tool_call", 90)]),
        asked(3, 990),
    ).jobs
    assert [turn.input_tokens for turn in job] == [800, 900, 950, 990]  # in the order of the session
    assert [turn.think_s for turn in job] == [0.0, 9.0, 60.5, 0.0]


def test_a_time_without_a_zone_is_of_utc(tmp_path: Path) -> None:
    events = [event("user_message", 0), event("text", 10), event("text", 12)]
    for some in (events[1], events[2]):
        some["timestamp"] = some["timestamp"].removesuffix("+00:00")
    rows = asked(0, 800, events=events[:2]), asked(1, 900, events=[event("tool_result", 40), events[2]])
    assert [turn.think_s for turn in read(tmp_path, *rows).jobs[0]] == [0.0, 30.0]


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl.gz"
    packed = bytearray(gzip.compress(json.dumps(asked(0, 70)).encode()))
    packed[20:40] = bytes(byte ^ 0x5A for byte in packed[20:40])
    file.write_bytes(packed)
    with pytest.raises(UsageError, match="cannot be read: Error -3"):
        read_agent_jobs(f"tracelab:{file}")


def test_sessions_are_those_of_a_provider_and_those_without_answers_are_left_out(tmp_path: Path) -> None:
    rows = [asked(0, 70), asked(0, 80, provider="codex"), asked(0, 90, session_id="t", output_tokens=0)]
    found = read(tmp_path, *rows)
    assert [[turn.input_tokens for turn in job] for job in found.jobs] == [[70], [80]]
    assert found.name == "t"


def test_a_context_that_grows_keeps_its_prompt_and_a_shorter_one_what_was_cached(tmp_path: Path) -> None:
    rows = [asked(0, 640), asked(1, 1280), asked(2, 320, prefix=130), asked(3, 640)]
    made = AgentContent(read(tmp_path, *rows), 1000, 4096)
    first, second, third, fourth = (request.prompt for request in made.take(1, 0, 0))
    np.testing.assert_array_equal(first, second[:640])
    np.testing.assert_array_equal(third[:128], second[:128])
    assert third[128:192].tolist() != second[128:192].tolist()
    np.testing.assert_array_equal(third, fourth[:320])
    assert fourth[320:640].tolist() != second[320:640].tolist()


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2000)), min_size=1, max_size=12))
def test_every_prompt_has_its_whole_blocks_and_no_id_twice(tmp_path_factory, lengths):
    rows = [asked(i, tokens, prefix) for i, (tokens, prefix) in enumerate(lengths)]
    [job] = read(tmp_path_factory.mktemp("t"), *rows).jobs
    for turn, (tokens, _) in zip(job, lengths, strict=True):
        assert len(turn.block_ids) == len(set(turn.block_ids)) == tokens // BLOCK_TOKENS


@given(st.lists(st.integers(0, 20)))
def test_runs_have_the_same_ids_in_the_same_order(ids: list[int]) -> None:
    assert [number for run in runs_of(ids) for number in run] == ids


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1: .*missing required field `round_index`"):
        read(tmp_path, {"session_id": "x"})
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(UsageError, match="cannot be read"):
        read_agent_jobs(f"tracelab:{cut}")
    with pytest.raises(UsageError, match="cannot be read"):
        read_agent_jobs(f"tracelab:{tmp_path / 'none.jsonl'}")
