"""The built-in trace is the same everywhere, says that it is generated, and meets its statistics."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from harness.errors import UsageError
from harness.traces import builtin, catalog, csv_formats, sampling
from harness.traces.trace import Trace, describe


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
        assert [lengths.p50, lengths.p90, lengths.p99] == pytest.approx(
            [quantiles[0.5], quantiles[0.9], quantiles[0.99]], rel=0.05
        )
        assert lengths.max <= quantiles[1]


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
