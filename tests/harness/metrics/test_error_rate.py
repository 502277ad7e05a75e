"""Failed requests of repeats: as wide an interval as servers differ, and never a narrower one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.intervals import error_rate_ends

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
