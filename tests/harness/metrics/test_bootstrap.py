"""The fast resampling against a plain one, and what must widen an interval."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics import bootstrap
from harness.metrics.bootstrap import RESAMPLES, Resampling
from harness.metrics.intervals import Estimate, own
from harness.metrics.percentiles import percentiles
from harness.metrics.samples import Sample


def sample(values, weights=None, request=None):
    values = np.asarray(values, float)
    request = np.arange(len(values)) if request is None else np.asarray(request)
    return Sample(values, weights, request)


def plan(repeat_of, seed=0):
    return Resampling.plan(np.asarray(repeat_of), np.random.default_rng(seed))


def intervals(given, resampling, qs):
    rows = resampling.replicates(given, qs)
    values = percentiles(given.values, given.weights, qs)
    return {
        f"p{q}": own(Estimate(v, row, resampling.repeats)) for q, v, row in zip(qs, values, rows, strict=True)
    }


def width(ends):
    return ends[1] - ends[0]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=40))
def test_every_replicate_is_the_percentile_of_the_tokens_it_drew(rows):
    values, weights, request = (np.array(column) for column in zip(*rows, strict=True))
    resampling = plan(np.zeros(6, int))
    found = resampling.replicates(Sample(values, weights, request), (50, 90))
    means = resampling.means(Sample(values, weights, request))
    for row in range(0, RESAMPLES, 97):
        times = resampling.draws[row, resampling.unit].astype(int)[request]
        tokens = np.repeat(values, weights * times)
        if not tokens.size:
            assert np.isnan(found[:, row]).all()
            continue
        np.testing.assert_allclose(found[:, row], np.percentile(tokens, (50, 90)), rtol=1e-9, atol=1e-9)
        assert means[row] == pytest.approx(tokens.mean())


def test_a_resample_holds_as_many_requests_as_there_are():
    assert (plan([0] * 90).draws.sum(axis=1) == 90).all()


def test_the_interval_is_that_of_a_plain_bootstrap_over_requests():
    rng = np.random.default_rng(1)
    values = rng.lognormal(3, 0.5, 300)
    found = intervals(sample(values), plan(np.zeros(300, int)), (50, 90))
    plain = np.percentile(rng.choice(values, (4000, 300)), (50, 90), axis=1)
    for name, row in zip(("p50", "p90"), plain, strict=True):
        np.testing.assert_allclose(found[name], np.percentile(row, (2.5, 97.5)), rtol=0.05)


def test_intervals_hold_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(5)
    held = 0
    for trial in range(200):
        values = rng.exponential(1, 120)
        low, high = intervals(sample(values), plan(np.zeros(120, int), trial), (50,))["p50"]
        held += low <= np.log(2) <= high
    assert 180 <= held <= 199


def test_tokens_of_a_request_are_drawn_together():
    rng = np.random.default_rng(2)
    level = rng.lognormal(2, 0.5, 60)
    alike = np.repeat(level, 20)
    request = np.repeat(np.arange(60), 20)
    together = intervals(sample(alike, request=request), plan(np.zeros(60, int)), (50,))["p50"]
    apart = intervals(sample(alike), plan(np.zeros(1200, int)), (50,))["p50"]
    assert width(together) > 2.5 * width(apart)


def test_of_several_repeats_whole_ones_are_drawn():
    resampling = plan(np.repeat([3, 7], [10, 20]))
    assert resampling.repeats == 2
    assert resampling.draws.shape == (RESAMPLES, 2)
    assert (resampling.draws.sum(axis=1) == 2).all()
    assert list(resampling.unit) == [0] * 10 + [1] * 20


def test_repeats_that_differ_widen_the_interval():
    rng = np.random.default_rng(3)
    repeat_of = np.repeat([0, 1, 2, 3], 100)
    values = rng.normal(100, 5, 400) + np.array([0, 20, -20, 10])[repeat_of]
    within = intervals(sample(values), plan(np.zeros(400, int)), (50,))["p50"]
    between = intervals(sample(values), plan(repeat_of), (50,))["p50"]
    assert width(between) > 1.5 * width(within)


def test_many_requests_and_values_give_the_same_interval_as_a_plain_bootstrap():
    rng = np.random.default_rng(4)
    values = rng.lognormal(3, 0.6, 20_000)
    assert len(np.unique(values)) > bootstrap.MAX_LEVELS and len(values) > bootstrap.MAX_UNITS
    resampling = plan(np.zeros(len(values), int))
    assert resampling.draws.shape == (RESAMPLES, bootstrap.MAX_UNITS)
    found = intervals(sample(values), resampling, (50, 99))
    plain = np.percentile(rng.choice(values, (400, len(values))), (50, 99), axis=1)
    for name, row in zip(("p50", "p99"), plain, strict=True):
        expected = np.percentile(row, (2.5, 97.5))
        assert width(found[name]) == pytest.approx(width(expected), rel=0.25)
        assert found[name][0] < percentiles(values, None, (float(name[1:]),))[0] < found[name][1]


def test_the_seed_decides():
    values = np.random.default_rng(6).lognormal(0, 1, 50)
    first, again, other = (
        intervals(sample(values), plan(np.zeros(50, int), seed), (90,)) for seed in (0, 0, 1)
    )
    assert first == again != other


def test_no_interval_from_replicates_that_are_not_finite():
    for bad in (np.nan, np.inf):
        assert own(Estimate(1.0, np.array([1.0, bad]), 1)) is None
        assert own(Estimate(1.0, np.array([1.0, bad]), 3)) is None
