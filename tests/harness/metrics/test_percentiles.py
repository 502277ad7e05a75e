import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.estimates import distribution
from harness.metrics.percentiles import Ordered, missing, needed, ranks
from harness.metrics.samples import Sample

finite = st.floats(0, 1e6, allow_nan=False)
weighted = st.lists(st.tuples(finite, st.integers(1, 7)), min_size=1, max_size=60)


@given(weighted, st.lists(st.floats(0, 100), min_size=1, max_size=5))
def test_weighted_percentiles_are_those_of_the_repeated_sample(pairs, qs):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    expected = np.percentile(np.repeat(values, weights), qs)
    np.testing.assert_allclose(Ordered(values, weights).percentiles(qs), expected, rtol=1e-9, atol=1e-9)


@given(
    st.lists(finite, min_size=1, max_size=300),
    st.lists(st.floats(0, 100), min_size=1, max_size=5),
    st.booleans(),
)
def test_percentiles_are_numpy_s_to_the_last_bit(values, qs, unbiased):
    sample = np.array(values)
    found = Ordered(sample, np.ones(sample.size, np.int64)).percentiles(qs, unbiased=unbiased)
    expected = np.percentile(sample, qs, method="median_unbiased" if unbiased else "linear")
    np.testing.assert_array_equal(found, expected)


@given(weighted, st.data())
def test_the_value_at_a_rank_is_that_of_the_repeated_sample(pairs, data):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    tokens = np.sort(np.repeat(values, weights))
    ranks = data.draw(st.lists(st.integers(1, tokens.size), min_size=1, max_size=3))
    assert Ordered(values, weights).at_ranks(ranks) == [tokens[rank - 1] for rank in ranks]
    assert Ordered(tokens, None).at_ranks(ranks) == [tokens[rank - 1] for rank in ranks]


@given(weighted)
def test_distribution_is_what_numpy_computes_of_every_token(pairs):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    found = distribution(Sample(values, weights, np.zeros(len(values), np.int64)))
    tokens = np.repeat(values, weights)
    assert found.n == len(tokens)
    assert found.max == tokens.max()
    assert found.mean == pytest.approx(tokens.mean())
    for q in (50, 90, 95, 99):
        assert getattr(found, f"p{q}") == pytest.approx(np.percentile(tokens, q), rel=1e-9, abs=1e-9)


def test_an_empty_sample_has_no_numbers():
    empty = Sample(np.zeros(0), None, np.zeros(0, np.int64))
    found = distribution(empty)
    assert (found.n, found.p50, found.max, found.ci) == (0, None, None, {})


@pytest.mark.parametrize(("q", "n"), [(50, 2), (90, 10), (95, 20), (99, 100), (99.9, 1000)])
def test_how_many_samples_a_percentile_needs(q, n):
    assert needed(q) == n
    assert missing(q, n) == 0
    assert missing(q, n - 1) == 1
    assert missing(q, 10 * n) == 0


@pytest.mark.parametrize("distinct", [1, 3, 50, 10_000])
@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_equal_values_share_their_mean_rank(n: int, distinct: int) -> None:
    values = np.random.default_rng(n + distinct).integers(0, distinct, n).astype(np.float64)
    assert np.array_equal(ranks(values), pd.Series(values).rank().to_numpy())


@given(st.integers(2, 40), st.integers(1, 40), st.booleans())
def test_failures_are_above_every_value(count: int, failed: int, weighted: bool) -> None:
    """As if each had taken a time beyond all others."""
    values = np.arange(1.0, count + 1)
    weights = np.ones(count, np.int64) * (2 if weighted else 1)
    ordered = Ordered(values, weights, failed)
    levels = ordered.percentiles([10, 50, 90, 99])
    beyond = np.append(np.repeat(values, weights), np.full(failed, 1e9))
    expected = np.percentile(beyond, [10, 50, 90, 99])
    np.testing.assert_allclose(levels[expected <= count], expected[expected <= count])
    assert np.all(np.isinf(levels[expected > count]))
    assert ordered.n == beyond.size and ordered.at_ranks([beyond.size]) == [np.inf]
