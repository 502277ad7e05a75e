"""Traces, their statistics, and the built-in one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.traces import builtin, catalog, csv_formats, sampling
from harness.traces.trace import Trace, describe

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


def test_the_same_everywhere() -> None:
    trace = catalog.load("builtin")
    assert trace.sha256 == "412d17585060f66e11fd1b18f6eb24cdc084a95beb7ec0a61e58c9d611de40bf"
    assert trace.sha256 == hashlib.sha256(csv_formats.dump(builtin.builtin())).hexdigest()


def test_says_that_it_is_generated() -> None:
    trace = builtin.builtin()
    assert "generated" in trace.origin and "generated" in (trace.note or "")
    assert "Splitwise" in (trace.citation or "")


def test_meets_its_statistics() -> None:
    found = describe(builtin.builtin())
    assert found.requests == 1_000
    assert found.rate == pytest.approx(builtin.RATE, rel=0.02)
    assert found.gap_cv == pytest.approx(builtin.GAP_CV, rel=0.02)
    for lengths, quantiles in (
        (found.input, builtin.INPUT_QUANTILES),
        (found.output, builtin.OUTPUT_QUANTILES),
    ):
        assert [lengths[name] for name in ("p50", "p90", "p99")] == pytest.approx(
            [quantiles[0.5], quantiles[0.9], quantiles[0.99]], rel=0.05
        )
        assert lengths["max"] <= quantiles[1]


def test_its_statistics_are_those_of_the_public_trace() -> None:
    try:
        public = catalog.load("azure-2023-conv-busy")
    except UsageError as error:
        pytest.skip(error.message)
    found = describe(public)
    assert found.rate == pytest.approx(builtin.RATE, rel=1e-3)
    assert found.gap_cv == pytest.approx(builtin.GAP_CV, rel=5e-3)
    for column, quantiles in (
        (public.input_tokens, builtin.INPUT_QUANTILES),
        (public.output_tokens, builtin.OUTPUT_QUANTILES),
    ):
        actual = np.percentile(column, [100 * q for q in quantiles])
        np.testing.assert_allclose(list(quantiles.values()), actual, rtol=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_variation_asked_for(cv: float) -> None:
    gaps = sampling.gamma_gaps(200_000, rate=4.0, cv=cv, seed=1)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_reuse_counts_whole_prefixes_only() -> None:
    trace = Trace.build(
        "t", [0, 1, 2], [48, 48, 48], [1, 1, 1], blocks=((1, 2, 3), (1, 9, 3), (1, 2, 3)), block_size=16
    )
    assert describe(trace).reuse == pytest.approx(4 / 9)


def test_one_request_has_no_rate() -> None:
    found = describe(Trace.build("t", [5], [1], [1]))
    assert (found.rate, found.gap_cv, found.span_s) == (None, None, 0.0)
