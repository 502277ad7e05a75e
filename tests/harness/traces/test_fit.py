"""Fitting: what is kept fits, what is kept keeps its order, and everything else is counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.schema.online_settings import Fit
from harness.traces.fit import RESERVED_TOKENS, Fitted, fit, room
from harness.traces.trace import Trace

RULES: tuple[Fit, ...] = ("drop", "clip", "scale")


def trace_of(pairs: list[tuple[int, int]], block_size: int | None = None) -> Trace:
    inputs, outputs = zip(*pairs, strict=True)
    blocks = None
    if block_size is not None:
        blocks = tuple(tuple(range(-(-tokens // block_size))) for tokens in inputs)
    return Trace.build("t", range(len(pairs)), inputs, outputs, blocks=blocks, block_size=block_size)


def lengths(fitted: Fitted) -> list[tuple[int, int]]:
    trace = fitted.trace
    return list(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


def test_the_limit_leaves_nine_tokens_free() -> None:
    assert room(1024) == 1015
    assert lengths(fit(trace_of([(1000, 15), (1000, 16)]), "drop", 1024)) == [(1000, 15)]


def test_drop_counts_and_keeps_arrivals() -> None:
    fitted = fit(trace_of([(2000, 1), (10, 10), (5, 0), (0, 5), (20, 20), (3000, 1)]), "drop", 1024)
    assert lengths(fitted) == [(10, 10), (20, 20)]
    assert fitted.trace.arrival_s.tolist() == [0, 3]
    assert (fitted.considered, fitted.dropped, fitted.changed) == (6, 4, 0)


def test_head_counts_up_to_its_last_request() -> None:
    fitted = fit(trace_of([(2000, 1), (10, 10), (5, 0), (20, 20), (3000, 1), (7, 7)]), "drop", 1024)
    assert (fitted.head(1).considered, fitted.head(1).dropped) == (2, 1)
    assert (fitted.head(2).considered, fitted.head(2).dropped) == (4, 2)
    assert fitted.head(3) is fitted


def test_clip_cuts_the_output_first() -> None:
    fitted = fit(trace_of([(2000, 500), (10, 500), (10, 10), (3000, 1)]), "clip", 1024, max_output_len=128)
    assert lengths(fitted) == [(887, 128), (10, 128), (10, 10), (1014, 1)]
    assert (fitted.dropped, fitted.changed) == (0, 3)
    assert fitted.head(2).changed == 2


def test_clip_without_an_output_limit_leaves_one_token_of_input() -> None:
    assert lengths(fit(trace_of([(5, 5000), (5000, 5)]), "clip", 1024)) == [(1, 1014), (1010, 5)]


def test_scale_is_one_factor_that_leaves_one_in_a_hundred_out() -> None:
    pairs = [(1000, 1000)] * 99 + [(9000, 9000)]
    fitted = fit(trace_of(pairs), "scale", 1024)
    assert (len(fitted.trace), fitted.dropped, fitted.changed) == (99, 1, 99)
    assert all(480 <= input <= 508 and input + output <= 1015 for input, output in lengths(fitted))


def test_scale_leaves_what_fits_alone() -> None:
    fitted = fit(trace_of([(100, 10), (900, 100)]), "scale", 1024)
    assert (lengths(fitted), fitted.changed) == ([(100, 10), (900, 100)], 0)


def test_blocks_of_less_than_a_token_are_refused() -> None:
    with pytest.raises(UsageError, match="blocks of 16 tokens, and --fit scale would leave"):
        fit(trace_of([(20_000, 300)] * 100, block_size=16), "scale", 1024)


def test_blocks_scale_with_the_lengths() -> None:
    trace = trace_of([(1024, 100), (4096, 100), (1536, 0), (600, 100)], block_size=512)
    fitted = fit(trace, "scale", 1024)
    assert fitted.trace.block_size == 123
    assert lengths(fitted)[:2] == [(246, 24), (984, 24)]
    assert fitted.trace.blocks is not None
    assert [len(blocks) for blocks in fitted.trace.blocks] == [2, 8, 2]


def test_blocks_are_cut_with_the_input() -> None:
    fitted = fit(trace_of([(4096, 100)], block_size=512), "clip", 1024, max_output_len=100)
    assert lengths(fitted) == [(915, 100)]
    assert fitted.trace.blocks == ((0, 1),)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 3_000)), min_size=1, max_size=60),
    rule=st.sampled_from(RULES),
    context=st.integers(RESERVED_TOKENS + 2, 2_000),
    longest=st.none() | st.integers(1, 3_000),
    block_size=st.none() | st.sampled_from([16, 512]),
)
@example(pairs=[(1, 3)], rule="scale", context=RESERVED_TOKENS + 2, longest=None, block_size=None)
def test_whatever_is_kept_fits(pairs, rule, context, longest, block_size):
    trace = trace_of(pairs, block_size)
    try:
        fitted = fit(trace, rule, context, longest)
    except UsageError:
        assert rule != "clip" or not any(input and output for input, output in pairs)
        return
    kept = fitted.trace
    assert np.all(kept.input_tokens >= 1) and np.all(kept.output_tokens >= 1)
    assert np.all(kept.input_tokens + kept.output_tokens <= room(context))
    assert np.all(np.diff(fitted.rows) > 0)
    assert fitted.dropped + len(kept) == fitted.considered == len(pairs)
    original = trace.take(fitted.rows)
    np.testing.assert_array_equal(original.arrival_s, kept.arrival_s)
    different = (original.input_tokens != kept.input_tokens) | (original.output_tokens != kept.output_tokens)
    assert fitted.changed == different.sum()
    if kept.blocks is not None and kept.block_size is not None:
        assert [len(blocks) for blocks in kept.blocks] == (-(-kept.input_tokens // kept.block_size)).tolist()
    if rule == "clip" and longest is not None:
        assert kept.output_tokens.max() <= longest
    if rule == "drop":
        assert fitted.changed == 0


def test_record_names_the_trace_and_what_fitting_did() -> None:
    record = fit(trace_of([(2000, 1), (10, 10), (20, 20)]), "drop", 1024).head(1).record()
    assert (record.name, record.fit, record.requests, record.dropped) == ("t", "drop", 1, 1)
    assert (record.input_tokens, record.output_tokens) == (10, 10)


def test_no_request_left_or_no_room_is_an_error() -> None:
    with pytest.raises(UsageError, match="no request of trace t fits") as caught:
        fit(trace_of([(2000, 1)]), "drop", 1024)
    assert "--fit clip" in caught.value.hint
    with pytest.raises(UsageError, match="too short for a request"):
        room(RESERVED_TOKENS + 1)
