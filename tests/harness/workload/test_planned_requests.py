"""Requests as they are planned: prompts, sessions, and fields that are drawn for each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import RequestSettings
from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings
from harness.traces import builtin
from harness.traces.trace import Trace, describe
from harness.workload.planned_requests import (
    BASE,
    UNTIMED,
    DrawnFields,
    PlannedRequest,
    PromptSource,
    distinct_requests,
    end_whole,
    open_loop,
    reusable_tokens,
    warmup,
)

VOCAB = 50_257
BLOCK = 16


def trace_of(arrivals: list[float], **fields: Any) -> Trace:
    ones = [1] * len(arrivals)
    return Trace.build("t", arrivals, ones, ones, **fields)


@given(arrivals=st.lists(st.floats(0, 1e7), min_size=1, max_size=50), scale=st.floats(1e-3, 1e3))
def test_schedule_is_the_trace_scaled(arrivals: list[float], scale: float) -> None:
    trace = trace_of(arrivals)
    planned = open_loop(trace, scale, VOCAB, seed=0)
    times = [request.t_sched_s for request in planned]
    assert times == [(t - trace.arrival_s[0]) * scale for t in trace.arrival_s.tolist()]
    assert times[0] == 0.0 and times == sorted(times)  # type: ignore[type-var]
    assert [request.index for request in planned] == list(range(len(arrivals)))


def test_a_turn_follows_the_one_before_it_and_requests_without_a_session_follow_nothing() -> None:
    trace = trace_of([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], session=["", "a", "", "b", "a", ""])
    planned = open_loop(trace, 1.0, VOCAB, seed=0)
    assert [request.after for request in planned] == [(), (), (), (), (1,), ()]
    assert describe(trace).sessions == 2


def test_lengths_are_the_traces() -> None:
    trace = builtin.builtin().head(50)
    planned = open_loop(trace, 1.0, VOCAB, seed=0)
    assert [len(request.prompt) for request in planned] == trace.input_tokens.tolist()
    assert [request.output_tokens for request in planned] == trace.output_tokens.tolist()


def test_prompts_are_the_same_at_every_scale_and_differ_by_seed() -> None:
    trace = builtin.builtin().head(5)
    light, heavy, other = (open_loop(trace, s, VOCAB, seed) for s, seed in ((1.6, 7), (0.4, 7), (0.4, 8)))
    for a, b, c in zip(light, heavy, other, strict=True):
        np.testing.assert_array_equal(a.prompt, b.prompt)
        assert not np.array_equal(a.prompt[:BLOCK], c.prompt[:BLOCK])


def first_blocks(requests: Sequence[PlannedRequest]) -> list[tuple[int, ...]]:
    return [tuple(request.prompt[:BLOCK].tolist()) for request in requests]


def test_no_two_prompts_of_any_kind_begin_alike() -> None:
    trace = builtin.builtin().head(300)
    firsts = [
        block
        for seed in (0, 1)
        for block in (
            *first_blocks(open_loop(trace, 1.0, VOCAB, seed)),
            *first_blocks(distinct_requests(UNTIMED, [(32, 4)] * 300, VOCAB, seed)),
            *first_blocks(warmup([(32, 4)] * 300, VOCAB, seed)),
        )
    ]
    assert len(set(firsts)) == len(firsts) == 1_800


def test_a_warmup_has_no_schedule() -> None:
    warm = warmup([(4, 2), (9, 1)], VOCAB, seed=0)
    lengths = [(r.index, len(r.prompt), r.output_tokens, r.t_sched_s) for r in warm]
    assert lengths == [(0, 4, 2, None), (1, 9, 1, None)]


@given(vocab=st.integers(2, 70_000), length=st.integers(0, 300), seed=st.integers(0, 2**70))
def test_ids_are_in_the_vocabulary_but_not_its_last(vocab: int, length: int, seed: int) -> None:
    prompt = PromptSource(vocab, seed, "s").distinct(3, length)
    assert prompt.dtype == np.int32 and len(prompt) == length
    assert np.all((prompt >= 0) & (prompt < max(1, vocab - 1)))


def test_ids_are_spread_evenly() -> None:
    counts = np.bincount(PromptSource(11, 0, "s").distinct(0, 100_000), minlength=10)
    assert counts.size == 10
    assert np.all(np.abs(counts - 10_000) < 500)


@st.composite
def block_traces(draw: st.DrawFn) -> Trace:
    """Requests over few hashes, so that prefixes are shared; some with more or fewer blocks than needed."""
    block_size = draw(st.sampled_from([16, 64]))
    hashes = st.lists(st.integers(0, 5) | st.just(2**70), min_size=0, max_size=5).map(tuple)
    requests = draw(st.lists(st.tuples(hashes, st.integers(1, 5 * block_size)), min_size=1, max_size=8))
    blocks, lengths = zip(*requests, strict=True)
    return Trace.build(
        "t", range(len(requests)), lengths, [1] * len(requests), blocks=tuple(blocks), block_size=block_size
    )


@given(trace=block_traces())
def test_equal_hashes_are_equal_tokens_and_others_are_not(trace: Trace) -> None:
    assert trace.blocks is not None and trace.block_size is not None
    size = trace.block_size
    planned = open_loop(trace, 1.0, VOCAB, seed=3)
    assert [len(request.prompt) for request in planned] == trace.input_tokens.tolist()
    pieces: list[tuple[Any, np.ndarray]] = []
    for request, blocks in zip(planned, trace.blocks, strict=True):
        for place in range(-(-len(request.prompt) // size)):
            name = blocks[place] if place < len(blocks) else ("own", request.index, place)
            pieces.append((name, request.prompt[place * size : (place + 1) * size]))
    for (name, piece), (other_name, other) in itertools.combinations(pieces, 2):
        common = min(len(piece), len(other))
        if name == other_name:
            np.testing.assert_array_equal(piece[:common], other[:common])
        elif common >= 8:
            assert not np.array_equal(piece[:common], other[:common])


def test_two_tokens_are_the_least_vocabulary() -> None:
    with pytest.raises(ValueError, match="two tokens"):
        PromptSource(1, 0, "s")


#: Tokens 3 and 4 are no end.
ENDS = np.array([0, 1, 2, 5, 5, 5], dtype=np.int32)


@given(st.lists(st.integers(0, 9), max_size=8))
def test_only_the_last_token_changes_and_only_where_it_is_no_end(ids: list[int]) -> None:
    prompt = np.array(ids, dtype=np.int32)
    [ended] = end_whole([PlannedRequest(0, None, prompt, 1)], ENDS)
    expected = [*ids[:-1], 5 if ids[-1] in (3, 4) else ids[-1]] if ids else []
    assert ended.prompt.tolist() == expected and prompt.tolist() == ids


def test_what_somebody_wrote_stays() -> None:
    written = PlannedRequest(0, None, np.array([1, 3], dtype=np.int32), 1, text="so")
    assert end_whole([written], ENDS) == [written]


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), max_size=12), st.integers(0, BLOCK - 1))
def test_by_the_definition(bits: list[list[int]], rest: int) -> None:
    """The longest run of whole blocks at the head that any earlier prompt has at its head, by comparing all
    with all; and never the last token of a prompt."""
    prompts = [np.array([bit for bit in own for _ in range(BLOCK)] + [9] * rest, np.int32) for own in bits]
    for index, (prompt, found) in enumerate(zip(prompts, reusable_tokens(prompts), strict=True)):
        shared = 0
        for earlier in prompts[:index]:
            blocks = min(len(prompt), len(earlier)) // BLOCK
            same = [np.array_equal(prompt[: n * BLOCK], earlier[: n * BLOCK]) for n in range(1, blocks + 1)]
            shared = max(shared, sum(same) * BLOCK)
        assert found == min(shared, max(len(prompt) - 1, 0) // BLOCK * BLOCK)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=10),
    st.sampled_from([16, 512]),
)
def test_prompts_of_a_trace_share_what_its_hashes_say(blocks: list[list[int]], size: int) -> None:
    """With one token after whole blocks, the hit rate is that of the trace's blocks."""
    trace = Trace.build(
        "t", range(len(blocks)), [size * len(own) + 1 for own in blocks], [1] * len(blocks),
        blocks=tuple(map(tuple, blocks)), block_size=size,
    )  # fmt: skip
    found = reusable_tokens(request.prompt for request in open_loop(trace, 1.0, VOCAB, seed=1))
    known = describe(trace)
    assert known.reuse is not None and known.blocks is not None
    assert sum(found) == round(known.reuse * known.blocks) * size


@given(st.lists(st.sampled_from("abc"), max_size=20), st.floats(0.01, 2))
def test_a_turn_follows_the_one_before_it_of_its_session(sessions: list[str], scale: float) -> None:
    ones = [1] * len(sessions)
    planned = open_loop(
        Trace.build("t", range(len(sessions)), ones, ones, session=sessions), scale, VOCAB, seed=0
    )

    def before(request: PlannedRequest) -> list[int]:
        return [i for i in range(request.index) if sessions[i] == sessions[request.index]]

    assert [request.after for request in planned] == [tuple(before(it)[-1:]) for it in planned]


def test_without_sessions_nothing_waits() -> None:
    planned = open_loop(Trace.build("t", [0, 1], [5, 5], [1, 1]), 1.0, 99, 0)
    assert {request.after for request in planned} == {()}


REQUESTS = warmup([(4, 4)] * 400, 100, seed=1)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def test_adapters_come_by_their_weights_and_by_the_seed_alone() -> None:
    fields = DrawnFields({"a": 3, BASE: 1, "never": 0})
    drawn = [request.adapter for request in fields.draw(REQUESTS, 7)]
    assert drawn == [request.adapter for request in fields.draw(REQUESTS, 7)]
    assert drawn != [request.adapter for request in fields.draw(REQUESTS, 8)]
    assert set(drawn) == {"a", None}
    assert 250 < drawn.count("a") < 350


@given(share=st.floats(0, 1), seed=st.integers(0, 2**63))
def test_a_larger_share_has_the_format_wherever_a_smaller_one_has_it(share: float, seed: int) -> None:
    few, more = (
        [request.response_format for request in DrawnFields({}, SCHEMA, part).draw(REQUESTS, seed)]
        for part in (share / 2, share)
    )
    assert all(b is not None for a, b in zip(few, more, strict=True) if a is not None)


def test_they_stand_in_the_body() -> None:
    [request] = DrawnFields({"a": 1}, {"type": "json_object"}).draw(REQUESTS[:1], 1)
    body = json.loads(OpenAI().encoder(RequestSettings(None, "m"))(request))
    assert (body["model"], body["response_format"]) == ("a", {"type": "json_object"})


def test_a_schema_becomes_a_format(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    fields = DrawnFields.make({}, path, 1.0)
    assert fields is not None and fields.response_format is not None
    assert fields.response_format["json_schema"]["schema"] == SCHEMA
    path.write_text('{"type": "json_object"}')
    again = DrawnFields.make({}, path, 1.0)
    assert again is not None and again.response_format == {"type": "json_object"}
    assert DrawnFields.make({}, None, 1.0) is None


@pytest.mark.parametrize("content", ["[1]", "{", None])
def test_a_file_that_is_no_format(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="--response-format"):
        DrawnFields.make({}, path, 1.0)


@pytest.mark.parametrize("weights", ["a:1,a:2", "a:-1", "a:0", "a:x"])
def test_weights_that_are_none(weights: str) -> None:
    with pytest.raises(ValueError):
        OnlineSettings(lora=weights)


def test_an_answer_of_a_format_ends_on_its_own() -> None:
    with pytest.raises(ValueError, match="--no-ignore-eos"):
        OnlineSettings(response_format="f.json")
