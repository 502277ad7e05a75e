"""Intervals over repeats against the textbook, and what must not change them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.bootstrap import RESAMPLES
from harness.metrics.intervals import ASSUMED_SPREAD, Estimate, difference, level, own, ratio


def mean_of(values, seed=0):
    """The mean of per-repeat values, resampled as `Resampling` does."""
    values = np.asarray(values, float)
    draws = np.random.default_rng(seed).multinomial(
        len(values), np.full(len(values), 1 / len(values)), RESAMPLES
    )
    return Estimate(float(values.mean()), draws @ values / len(values), len(values))


def test_the_interval_of_a_mean_is_students():
    values = [10.0, 11.0, 9.5, 10.4]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    found = own(mean_of(values))
    # On the logarithm it is not symmetric: its width is Student's to first order.
    assert found[1] - found[0] == pytest.approx(expected[1] - expected[0], rel=0.08)


def test_a_difference_of_means_is_welchs():
    a, b = [10.0, 11.0, 9.5, 10.4, 10.1], [12.0, 11.9, 12.2]
    expected = stats.ttest_ind(a, b, equal_var=False)
    found = difference(mean_of(a), mean_of(b, seed=1))
    assert found.value == pytest.approx(np.mean(a) - np.mean(b))
    assert found.p == pytest.approx(expected.pvalue, rel=0.5)
    np.testing.assert_allclose(found.ci, expected.confidence_interval(0.95), rtol=0.1)


repeats = st.lists(st.floats(50, 150), min_size=2, max_size=6)


@settings(max_examples=60)
@given(repeats, repeats, st.floats(0.01, 100))
def test_a_ratio_turns_over_and_does_not_depend_on_the_unit(a, b, unit):
    forth, back = ratio(mean_of(a), mean_of(b, 1)), ratio(mean_of(b, 1), mean_of(a))
    other = ratio(mean_of(np.multiply(a, unit)), mean_of(np.multiply(b, unit), 1))
    assert (forth.ci is None) == (back.ci is None) == (other.ci is None)
    assert other.p == pytest.approx(forth.p, rel=1e-3, abs=1e-6)
    assert back.p == pytest.approx(forth.p, rel=1e-3, abs=1e-6)
    if forth.ci is not None:
        np.testing.assert_allclose(back.ci, [1 / forth.ci[1], 1 / forth.ci[0]], rtol=1e-5)
        np.testing.assert_allclose(other.ci, forth.ci, rtol=1e-5)
        assert forth.ci[0] <= forth.value <= forth.ci[1]
        assert (forth.p < 0.05 - 1e-9) <= (not forth.ci[0] <= 1 <= forth.ci[1])


def test_fewer_repeats_mean_a_wider_interval():
    rng = np.random.default_rng(0)
    widths = []
    for count in (2, 3, 5, 10):
        found = [level(mean_of(rng.normal(100, 3, count), i)) for i in range(60)]
        widths.append(np.median([high - low for low, high in found]))
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 4 * widths[2]


def test_one_repeat_is_taken_to_differ_from_others():
    rng = np.random.default_rng(1)
    sure = Estimate(100.0, rng.normal(100, 0.01, RESAMPLES), 1)
    assert own(sure)[1] - own(sure)[0] < 0.1
    half = np.log(ratio(sure, sure).ci[1])
    assert half == pytest.approx(1.96 * ASSUMED_SPREAD * 2**0.5, rel=1e-3)
    assert sure.spread(log=True) is None
    unsure = Estimate(100.0, rng.normal(100, 20, RESAMPLES), 1)
    assert np.log(ratio(unsure, unsure).ci[1]) > half


def test_repeats_that_are_exactly_alike():
    same, other = Estimate(5.0, np.full(RESAMPLES, 5.0), 3), Estimate(6.0, np.full(RESAMPLES, 6.0), 3)
    assert (ratio(same, same).ci, ratio(same, same).p) == ((1, 1), 1)
    assert (ratio(same, other).ci, ratio(same, other).p) == ((5 / 6, 5 / 6), 0)


def test_what_has_no_logarithm_has_a_difference_and_no_ratio():
    rng = np.random.default_rng(2)
    some_zero = Estimate(1.0, np.where(rng.random(RESAMPLES) < 0.1, 0, 1.0), 3)
    whole = Estimate(2.0, rng.normal(2, 0.1, RESAMPLES), 3)
    assert ratio(some_zero, whole).ci is None and ratio(some_zero, whole).p is None
    assert difference(some_zero, whole).ci is not None
    assert level(some_zero) is not None


def test_an_unsupported_statistic_has_nothing():
    short = Estimate(1.0, np.random.default_rng(3).normal(1, 0.1, RESAMPLES), 3, missing=7)
    assert level(short) is None
    assert ratio(short, short).ci is None and difference(short, short).ci is None


def test_an_interval_beyond_all_numbers_is_none():
    wild = Estimate(1.0, np.exp(np.random.default_rng(4).choice([-200.0, 200.0], RESAMPLES)), 2)
    assert own(wild) is None


def test_two_repeats_that_differ_much_show_no_difference():
    """The plain bootstrap over two repeats would find one."""
    assert ratio(mean_of([100, 104]), mean_of([107, 111], 1)).p > 0.05
