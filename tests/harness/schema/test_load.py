"""The order of loads, and how they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.report.text.load_words import head_of, load_file_name, load_number, where
from harness.schema.load import (
    Batch,
    ClosedLoop,
    Load,
    Ramp,
    RequestRate,
    TraceLoad,
    from_light_to_heavy,
    heaviest,
    load_text,
    parse_load,
)
from harness.schema.online_settings import OnlineSettings

POSITIVE = st.floats(1e-3, 1e3)
TRACES = st.builds(TraceLoad, scale=POSITIVE)
COUNTED = st.sampled_from(["requests", "sessions"])
CLOSED = st.builds(ClosedLoop, of=COUNTED, concurrency=st.integers(1, 4096))
RATES = st.builds(RequestRate, of=COUNTED, req_per_s=POSITIVE, cv=st.none() | POSITIVE)
RAMPS = st.builds(Ramp, of=COUNTED, from_req_per_s=POSITIVE, to_req_per_s=POSITIVE, seconds=POSITIVE)


@given(st.one_of([st.lists(kind, min_size=1) for kind in (TRACES, CLOSED, RATES, RAMPS)]))
def test_loads_ascend_by_their_value_and_the_heaviest_ends_them(loads: list[Load]) -> None:
    ascending, heavier = sorted(set(loads)), from_light_to_heavy(loads)
    assert [load.value for load in ascending] == sorted(load.value for load in set(loads))
    values = [load.value for load in heavier]
    assert values == sorted(values, reverse=isinstance(loads[0], TraceLoad))
    assert heaviest(loads) == heavier[-1]


@given(TRACES, CLOSED)
def test_a_scale_and_requests_in_flight_are_never_the_same(trace: Load, closed: Load) -> None:
    assert trace != closed and sorted([closed, trace]) == [trace, closed]


@given(TRACES | CLOSED | RATES | RAMPS | st.builds(Batch, prompts=st.integers(1, 4096)))
def test_a_load_is_what_its_text_says(load: Load) -> None:
    assert parse_load(load_text(load)) == load and hash(parse_load(load_text(load))) == hash(load)
    assert TypeAdapter(Load).validate_python(load.model_dump(mode="json")) == load


def test_the_kind_decides_what_a_load_has() -> None:
    assert load_text(TraceLoad(scale=0.4)) == '{"kind":"trace","scale":0.4}'
    assert load_text(ClosedLoop(concurrency=8)) == '{"kind":"closed_loop","concurrency":8}'
    sessions = ClosedLoop(concurrency=8, of="sessions")
    assert load_text(sessions) == '{"of":"sessions","kind":"closed_loop","concurrency":8}'
    assert sessions != ClosedLoop(concurrency=8)
    for wrong in ('{"scale":1}', '{"kind":"closed_loop","scale":1}', '{"kind":"trace","scale":0}'):
        with pytest.raises(ValidationError):
            parse_load(wrong)


@pytest.mark.parametrize(
    ("turns", "of"), [(None, "requests"), ("live", "sessions"), ("recorded", "sessions")]
)
@pytest.mark.parametrize("asked", [{"concurrency": "2"}, {"request_rate": "2"}, {"ramp": "1:2:3"}])
def test_with_turns_a_load_counts_sessions(turns: str | None, of: str, asked: dict[str, str]) -> None:
    engines = {"engines": "roseinfer", "model": "random:gpt2"}
    settings = OnlineSettings.model_validate(engines | asked | {"dataset": "builtin", "turns": turns})
    assert [load.counts for load in settings.loads] == [of]


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (TraceLoad(scale=0.4), "scale 0.4 | at scale 0.4 | 0.4 | scale | scale_0.4"),
        (ClosedLoop(concurrency=1), "1 in flight | with 1 request in flight | 1 | in flight | in_flight_1"),
        (
            ClosedLoop(concurrency=1000),
            "1,000 in flight | with 1,000 requests in flight | 1,000 | in flight | in_flight_1000",
        ),
        (
            ClosedLoop(concurrency=1, of="sessions"),
            "1 session in flight | with 1 session in flight | 1 | in flight | in_flight_1",
        ),
        *(
            (
                RequestRate(req_per_s=2.5, of=of),
                f"2.5 {of}/s (poisson) | at 2.5 {of}/s (poisson) | 2.5 | {of}/s | {of}_per_s_2.5",
            )
            for of in ("requests", "sessions")
        ),
        (Batch(prompts=1000), "batch of 1,000 prompts | in a batch of 1,000 prompts | 1,000 | prompts"),
        (
            Ramp(from_req_per_s=1, to_req_per_s=8, seconds=60),
            "1 to 8 requests/s in 60 s | from 1 to 8 requests/s in 60 s | 8 | up to requests/s | "
            "up_to_requests_per_s_8",
        ),
    ],
)
def test_words(load: Load, words: str) -> None:
    names = [str(load), where(load), load_number(load), head_of([load])]
    assert " | ".join([*names, *([] if isinstance(load, Batch) else [load_file_name(load)])]) == words
    assert head_of([]) == "load"
