"""The invariants of a trace: ascending arrivals from 0, columns of one length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traces.trace import Trace

ARRIVALS = st.lists(st.integers(0, 50), min_size=1, max_size=40)


@given(arrivals=ARRIVALS)
def test_built_sorted_stably_from_zero(arrivals: list[int]) -> None:
    trace = Trace.build("t", arrivals, range(len(arrivals)), [1] * len(arrivals))
    assert trace.arrival_s[0] == 0
    assert np.all(np.diff(trace.arrival_s) >= 0)
    assert trace.input_tokens.tolist() == sorted(range(len(arrivals)), key=lambda i: arrivals[i])


@given(arrivals=ARRIVALS, n=st.integers(0, 50))
def test_head_is_the_beginning(arrivals: list[int], n: int) -> None:
    trace = Trace.build(
        "t", arrivals, range(len(arrivals)), [1] * len(arrivals), session=[str(a) for a in arrivals]
    )
    head = trace.head(n)
    assert len(head) == min(n, len(trace))
    np.testing.assert_array_equal(head.arrival_s, trace.arrival_s[:n])
    np.testing.assert_array_equal(head.input_tokens, trace.input_tokens[:n])


def test_taken_rows_start_at_zero() -> None:
    trace = Trace.build("t", [0, 2, 5], [1, 2, 3], [4, 5, 6], blocks=((1,), (2,), (3,)), block_size=16)
    taken = trace.take(np.array([1, 2]))
    assert taken.arrival_s.tolist() == [0, 3]
    assert taken.blocks == ((2,), (3,))


def test_columns_of_different_length_are_refused() -> None:
    tokens = np.zeros(1, dtype=np.int64)
    with pytest.raises(ValueError, match="length"):
        Trace("t", np.zeros(2), tokens, tokens)
    with pytest.raises(ValueError, match="ascend"):
        Trace("t", np.ones(1), tokens, tokens)
    with pytest.raises(ValueError, match="block_size"):
        Trace("t", np.zeros(1), tokens, tokens, blocks=((1,),))
