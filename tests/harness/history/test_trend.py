"""Change points in series of known levels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.history.trend import change_points, steps


def series(rng: np.random.Generator, levels: list[tuple[float, int]], noise: float) -> list[float]:
    return [level * float(np.exp(rng.normal(0, noise))) for level, count in levels for _ in range(count)]


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_few_steady_series_have_a_change(noise: float) -> None:
    rng = np.random.default_rng(3)
    found = [bool(change_points(series(rng, [(100, 20)], noise))) for _ in range(60)]
    assert sum(found) <= 6


def test_a_change_of_ten_per_cent_is_found_where_it_is() -> None:
    rng = np.random.default_rng(4)
    found = [change_points(series(rng, [(100, 10), (110, 10)], 0.015)) for _ in range(40)]
    assert sum(places in ([9], [10], [11]) for places in found) >= 34
    factors = [step for _ in range(30) for step in steps(series(rng, [(9, 6), (18, 6)], 0.01)).values()]
    assert np.median(factors) == pytest.approx(2, rel=0.01)


def test_one_run_alone_is_an_outlier() -> None:
    assert change_points([1, 1.01, 0.99, 1, 1.7, 1, 1.01, 0.99, 1.0]) == []


def test_equal_runs_and_their_first_change() -> None:
    assert steps([5.0] * 8) == {}
    assert steps([5.0] * 4 + [6.0] * 4) == {4: pytest.approx(1.2)}


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_levels_hold_two_runs_at_least(values: list[float]) -> None:
    places = [0, *change_points(values), len(values)]
    assert places == [0, len(values)] or all(b - a >= 2 for a, b in pairwise(places))
