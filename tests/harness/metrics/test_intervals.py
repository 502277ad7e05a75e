"""Intervals of values, of ratios and of shares of failures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.intervals import (
    ASSUMED_OF_RATES,
    Estimate,
    bounded,
    difference,
    error_rate_ends,
    level,
    order_statistics,
    own_interval,
    ratio,
)


def estimate(*each: float, missing: int = 0, within: tuple[float, float] | None = None) -> Estimate:
    values = np.array(each, float)
    return Estimate(float(values.mean()), values, within, missing)


def test_the_interval_of_repeats_is_students_on_the_logarithm() -> None:
    values = np.log([10.0, 11.0, 9.5, 10.4])
    expected = np.exp(stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values)))
    assert own_interval(estimate(10.0, 11.0, 9.5, 10.4)) == pytest.approx(tuple(expected))


def test_a_ratio_is_welchs_on_the_logarithm_and_a_difference_is_welchs() -> None:
    a, b = [10.0, 11.0, 9.5, 10.4, 10.1], [12.0, 11.9, 12.2]
    expected = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    effect = ratio(estimate(*a), estimate(*b))
    assert effect.value == pytest.approx(np.mean(a) / np.mean(b))  # of the values shown
    assert effect.p == pytest.approx(expected.pvalue)
    assert effect.ci == pytest.approx(tuple(np.exp(expected.confidence_interval(0.95))))
    expected = stats.ttest_ind(a, b, equal_var=False)
    effect = difference(estimate(*a), estimate(*b))
    assert effect.p == pytest.approx(expected.pvalue)
    assert effect.ci == pytest.approx(tuple(expected.confidence_interval(0.95)))


repeats = st.lists(st.floats(50, 150), min_size=2, max_size=6)


@given(repeats, repeats, st.floats(0.01, 100))
def test_a_ratio_turns_over_and_does_not_depend_on_the_unit(a, b, unit):
    forth, back = ratio(estimate(*a), estimate(*b)), ratio(estimate(*b), estimate(*a))
    other = ratio(estimate(*np.multiply(a, unit)), estimate(*np.multiply(b, unit)))
    assert (forth.ci is None) == (back.ci is None) == (other.ci is None)
    assert other.p == pytest.approx(forth.p, rel=1e-3, abs=1e-6)
    assert back.p == pytest.approx(forth.p, rel=1e-3, abs=1e-6)
    if forth.ci is not None and forth.p is not None:
        np.testing.assert_allclose(other.ci, forth.ci, rtol=1e-5)  # type: ignore[arg-type]
        assert forth.ci[0] <= forth.value <= forth.ci[1]
        if (forth.value - 1) * (stats.gmean(a) / stats.gmean(b) - 1) > 0:
            assert (forth.p < 0.05 - 1e-9) <= (not forth.ci[0] <= 1 <= forth.ci[1])


@given(repeats, repeats)
def test_intervals_hold_what_is_shown(each: list[float], others: list[float]) -> None:
    """Also where the value of all repeats together is beyond those of each."""
    shown, other = Estimate(2 * max(each), np.array(each)), Estimate(min(others), np.array(others))
    for found, value in (
        (own_interval(shown), shown.value),
        (ratio(shown, other).ci, shown.value / other.value),
        (difference(shown, other).ci, shown.value - other.value),
    ):
        assert found is None or found[0] <= value <= found[1]


def test_one_repeat_is_taken_to_differ_from_others() -> None:
    sure = estimate(100.0, within=(99.99, 100.01))
    assert own_interval(sure) == (99.99, 100.01)
    found = ratio(sure, sure)
    assert found.ci is not None
    half = np.log(found.ci[1])
    assert half == pytest.approx(1.96 * ASSUMED_OF_RATES * 2**0.5, rel=1e-3)
    assert sure.spread(log=True) is None
    unsure = ratio(estimate(100.0, within=(60, 160)), sure)
    assert unsure.ci is not None and np.log(unsure.ci[1]) > half


def test_repeats_that_are_exactly_alike() -> None:
    same, other = estimate(5.0, 5.0, 5.0), estimate(6.0, 6.0, 6.0)
    assert ratio(same, same).ci == pytest.approx((1, 1)) and ratio(same, same).p == 1
    assert ratio(same, other).ci == pytest.approx((5 / 6, 5 / 6)) and ratio(same, other).p == 0


def test_what_has_no_logarithm_has_a_difference_and_no_ratio() -> None:
    some_zero, whole = estimate(1.0, 0.0, 1.0), estimate(2.0, 2.1, 1.9)
    assert ratio(some_zero, whole).ci is None and ratio(some_zero, whole).p is None
    assert difference(some_zero, whole).ci is not None
    assert level(some_zero) is not None


def test_statistics_without_an_interval() -> None:
    """An unsupported one has nothing; one of dependent requests has a ratio; none is beyond all numbers."""
    short = estimate(1.0, 1.1, 0.9, missing=7)
    dependent = Estimate(1.0, np.array([0.9, 1.0, 1.1]), dependent=True)
    assert all(level(it) is None and own_interval(it) is None for it in (short, dependent))
    assert ratio(short, short).ci is None and difference(short, short).ci is None
    assert ratio(dependent, dependent).ci is not None
    assert own_interval(Estimate(1.0, np.exp([-200.0, 200.0]))) is None


@pytest.mark.parametrize(("n", "share"), [(40, 0.5), (100, 0.9), (1000, 0.99)])
def test_order_statistics_hold_a_quantile_in_19_of_20_samples(n: int, share: float) -> None:
    ranks = order_statistics(share, n, n)
    assert ranks is not None
    below = stats.binom(n, share)  # how many of the sample lie below the quantile
    outside = below.cdf(ranks[0] - 1) + below.sf(ranks[1] - 1)
    assert 0.005 < outside <= 0.05


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_a_sample_of_bounded_size_is_the_smallest_with_both_ends(share: float) -> None:
    n = bounded(share)
    assert order_statistics(share, n, n) is not None and order_statistics(share, n - 1, n - 1) is None


def coverage(repeats: int, rng: np.random.Generator, spread: float) -> tuple[float, float]:
    """Shares of 2,000 intervals with the true value: of an engine, and of the ratio of two equal ones."""
    engines: npt.NDArray[np.float64] = rng.lognormal(0, spread, (2, 2000, repeats))
    alone = together = 0
    for a, b in zip(*engines, strict=True):
        found, effect = own_interval(estimate(*a)), ratio(estimate(*a), estimate(*b))
        assert found is not None and effect.ci is not None
        alone += found[0] <= 1 <= found[1]
        together += effect.ci[0] <= 1 <= effect.ci[1]
    return alone / 2000, together / 2000


@pytest.mark.parametrize("repeats", [2, 5])
def test_intervals_over_repeats_hold_the_truth(repeats: int) -> None:
    alone, together = coverage(repeats, np.random.default_rng(7), 0.1)
    assert 0.93 <= alone <= 0.97
    assert 0.93 <= together <= 0.99


REPEATS = st.lists(
    st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=6
)


def exact(failed: Sequence[int], counts: Sequence[int]) -> tuple[float, float]:
    found = stats.binomtest(sum(failed), sum(counts)).proportion_ci(0.95, "exact")
    return float(found.low), float(found.high)


@given(REPEATS)
def test_it_is_never_narrower_than_that_of_independent_requests(repeats: list[tuple[int, int]]) -> None:
    failed, counts = zip(*repeats, strict=True)
    low, high = error_rate_ends(failed, counts)
    of_all = exact(failed, counts)
    assert 0 <= low <= of_all[0] + 1e-9 and of_all[1] - 1e-9 <= high <= 1
    assert error_rate_ends(failed[::-1], counts[::-1]) == pytest.approx((low, high))
    if len(repeats) == 1:
        assert (low, high) == pytest.approx(of_all)


def test_of_repeats_that_differ_it_is_that_of_students_t() -> None:
    failed = (1, 40, 25, 60)
    low, high = error_rate_ends(failed, (100,) * 4)
    ends = stats.ttest_1samp(np.array(failed) / 100, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((max(0, ends.low), ends.high))


def test_repeats_that_are_alike_are_judged_as_all_their_requests() -> None:
    assert error_rate_ends((0, 0, 0), (50, 50, 50)) == pytest.approx((0, 1 - 0.025 ** (1 / 150)))
    assert error_rate_ends((50, 50), (50, 50)) == pytest.approx((0.025 ** (1 / 100), 1))
    assert error_rate_ends((30, 30), (60, 60)) == pytest.approx(exact((60,), (120,)))


@pytest.mark.parametrize("repeats", [3, 5])
def test_it_contains_the_rate_of_all_servers_though_they_differ(repeats: int) -> None:
    """Servers fail 10 % of their requests in the mean, and more or fewer each: with a correlation of 0.02."""
    draws = np.random.default_rng(repeats)
    runs = draws.binomial(100, draws.beta(0.1 * 49, 0.9 * 49, (1000, repeats)))
    counts = (100,) * repeats
    held = [low <= 0.1 <= high for low, high in (error_rate_ends(failed, counts) for failed in runs.tolist())]
    of_all = [low <= 0.1 <= high for low, high in (exact(failed, counts) for failed in runs[:200].tolist())]
    assert np.mean(held) > 0.93 and np.mean(of_all) < 0.85
