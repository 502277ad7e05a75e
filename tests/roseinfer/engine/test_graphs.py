"""Graphs of steps with prompts beside requests that decode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roseinfer.engine.graphs import LARGE_ROWS, MixedSteps
from roseinfer.engine.resolve import STEP_ROWS
from roseinfer.scheduler.policies import MIXED_SIZES, FillUp


def test_parts_of_prompts_fill_the_rows_that_those_that_decode_leave() -> None:
    sizes = MixedSteps(2048, cut=True).sizes(256, 8192)
    for batch, stride in ((16, 128), (64, 256), (128, 512), (256, 512)):
        rows = [prompts + decoding for prompts, decoding in reversed(sizes) if decoding == batch]
        assert [stride * part for part in range(1, 2048 // stride + 1)][-len(rows) :] == rows
    assert MixedSteps(2048, cut=True).sizes(5, 8192)[0] == (2043, 5)
    assert MixedSteps(16, cut=True).sizes(64, 8192) == []


def test_whole_prompts_have_the_room_of_their_own_graphs() -> None:
    assert MixedSteps(1024).sizes(64, 8192) == [(1024, 64), (768, 64), (512, 64), (256, 64)]
    assert MixedSteps(1024).sizes(64, 600) == [(512, 64), (256, 64)]
    assert MixedSteps().sizes(64, 8192) == []


@given(st.integers(1, 2048), st.booleans(), st.integers(1, 600), st.integers(16, 9000))
def test_no_graph_is_larger_than_a_step(tokens: int, cut: bool, max_batch: int, max_tokens: int) -> None:
    sizes = MixedSteps(tokens, cut).sizes(max_batch, max_tokens)
    assert all(0 < prompts <= max_tokens and 0 < batch <= max_batch for prompts, batch in sizes)
    assert all(prompts + batch * cut <= tokens for prompts, batch in sizes)
    assert len(set(sizes)) == len(sizes)


@given(st.integers(1, MIXED_SIZES[-1]))
def test_a_step_of_many_requests_has_a_graph(decoding: int) -> None:
    """FillUp fills it up to that many rows, whatever is the largest batch that holds these requests."""
    rows = next(rows for most, rows in STEP_ROWS if decoding <= most)
    prompts = FillUp(((decoding, min(rows, LARGE_ROWS)),)).budget(0, decoding)
    for max_batch in (decoding, 256, 512):
        sizes = MixedSteps(LARGE_ROWS, cut=True).sizes(max_batch, 8192)
        assert any(tokens >= prompts and batch >= decoding for tokens, batch in sizes)
