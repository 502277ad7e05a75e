"""Times of arrivals: the distribution that is asked for, the same for the same seed, and nothing shared."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.schema.load import Ramp, RateSeries, RequestRate, Stage
from harness.workload.sources import arrival_times

MANY = 20_000
SEEDS = st.integers(0, 2**64 - 1)
RATES = st.floats(0.01, 1e4)
PROCESSES = st.sampled_from([("poisson", None), ("constant", None), ("gamma", 0.5), ("gamma", 2.0)])


@pytest.mark.parametrize(
    ("arrivals", "cv", "spread"),
    [("poisson", None, 1.0), ("constant", None, 0.0), ("gamma", 0.25, 0.25), ("gamma", 3.0, 3.0)],
)
@pytest.mark.parametrize("rate", [0.5, 40.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(arrivals, cv, spread, rate):
    gaps = np.diff(arrival_times(RequestRate(req_per_s=rate, arrivals=arrivals, cv=cv), seed=11, n=MANY))
    # Five standard errors: of the mean, and of the variation of a gamma distribution.
    assert gaps.mean() * rate == pytest.approx(1, abs=5 * spread / sqrt(MANY) + 1e-9)
    error = spread * (1 + 2 * spread) / sqrt(MANY)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, abs=5 * error + 1e-9)
    if spread:  # as a renewal process has it: the gaps do not know of each other
        assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / sqrt(MANY)


@given(SEEDS, RATES, PROCESSES, st.integers(1, 300), st.integers(0, 300))
def test_the_same_seed_gives_the_same_times_and_more_of_them_begin_alike(seed, rate, process, n, more):
    load = RequestRate(req_per_s=rate, arrivals=process[0], cv=process[1])
    times = arrival_times(load, seed, n)
    assert len(times) == n and times[0] == 0.0 and np.all(np.diff(times) >= 0)
    np.testing.assert_array_equal(arrival_times(load, seed, n + more)[:n], times)


@given(SEEDS, SEEDS, RATES)
def test_seeds_share_nothing(first: int, second: int, rate: float) -> None:
    assume(first != second)
    load = RequestRate(req_per_s=rate)
    a, b = (np.diff(arrival_times(load, seed, 50)) for seed in (first, second))
    assert len(np.intersect1d(a, b)) == 0


@given(SEEDS, st.floats(0.1, 200), PROCESSES, st.integers(1, 20), st.floats(0.5, 20))
def test_a_rate_lasts_as_long_as_asked(seed, rate, process, n, seconds):
    times = arrival_times(RequestRate(req_per_s=rate, arrivals=process[0], cv=process[1]), seed, n, seconds)
    assert len(times) >= n and times[-1] >= seconds
    assert len(times) == n or times[-2] < seconds


@given(SEEDS, st.floats(0.5, 50), st.floats(0.5, 50), st.floats(1, 30), PROCESSES)
def test_a_ramp_keeps_to_its_time(seed, begin, end, seconds, process):
    load = Ramp(from_req_per_s=begin, to_req_per_s=end, seconds=seconds, arrivals=process[0], cv=process[1])
    times = arrival_times(load, seed)
    assert times[0] == 0.0 and np.all(np.diff(times) >= 0)
    assert times[-1] <= seconds * (1 + 1e-9)
    np.testing.assert_array_equal(times, arrival_times(load, seed))


@pytest.mark.parametrize(("begin", "end"), [(10.0, 100.0), (100.0, 10.0), (50.0, 50.0)])
@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_a_ramp_has_its_rate_at_every_moment(begin: float, end: float, arrivals: str) -> None:
    """Arrivals of each tenth of it, against the integral of the rate."""
    seconds, tenths = 200.0, 10
    times = arrival_times(
        Ramp(from_req_per_s=begin, to_req_per_s=end, seconds=seconds, arrivals=arrivals), seed=3
    )
    counted, edges = np.histogram(times, bins=tenths, range=(0, seconds))
    moved: Callable[[np.ndarray], np.ndarray] = lambda t: begin * t + (end - begin) * t**2 / (2 * seconds)  # noqa: E731
    expected = np.diff(moved(edges))
    tolerance = 5 * np.sqrt(expected) if arrivals == "poisson" else 2
    assert np.all(np.abs(counted - expected) <= tolerance)


def test_more_requests_than_fit_the_memory_are_refused() -> None:
    with pytest.raises(UsageError, match=r"for 100 s would be 100,000,000,000 requests"):
        arrival_times(RequestRate(req_per_s=1e9), seed=0, seconds=100)
    with pytest.raises(UsageError, match=r"in 100 s would be 50,000,000,050 requests"):
        arrival_times(Ramp(from_req_per_s=1, to_req_per_s=1e9, seconds=100), seed=0)


STAGES = st.lists(
    st.builds(Stage, req_per_s=st.one_of(st.just(0.0), st.floats(0.1, 200)), seconds=st.floats(0.05, 20)),
    min_size=1,
    max_size=5,
).filter(lambda stages: sum(stage.req_per_s * stage.seconds for stage in stages) > 1)


@given(SEEDS, STAGES, PROCESSES)
def test_each_stage_of_a_series_has_its_requests(seed, stages, process):
    series = RateSeries(stages=tuple(stages), arrivals=process[0], cv=process[1])
    times = arrival_times(series, seed)
    assert np.all(np.diff(times) >= 0) and times[0] >= 0 and times[-1] <= series.ends_s[-1]
    spread = {"poisson": 1.0, "constant": 0.0}.get(process[0], process[1])
    begin = 0.0
    for stage, end in zip(stages, series.ends_s, strict=True):
        expected, count = stage.req_per_s * stage.seconds, int(np.sum((times >= begin) & (times < end)))
        if spread in (0.0, 1.0):  # six standard errors of a Poisson count, and the tail of a small one
            assert abs(count - expected) <= 1 + 1e-6 + spread * (8 + 6 * sqrt(expected))
        if not stage.req_per_s:
            assert count <= 1  # at the very edge
        begin = end


@given(SEEDS, st.floats(0.5, 100), PROCESSES, st.floats(1, 20))
def test_a_series_of_one_rate_is_that_rate(seed, rate, process, seconds):
    assume(rate * seconds > 2)
    of_series = arrival_times(
        RateSeries(stages=(Stage(req_per_s=rate, seconds=seconds),), arrivals=process[0], cv=process[1]), seed
    )
    of_rate = arrival_times(
        RequestRate(req_per_s=rate, arrivals=process[0], cv=process[1]), seed, seconds=seconds
    )
    np.testing.assert_allclose(of_series, of_rate[: len(of_series)])
    assert len(of_rate) - len(of_series) in (0, 1)  # one more ends the time


@given(SEEDS, st.floats(0.5, 50), PROCESSES, st.floats(2, 20), st.floats(0.1, 0.9))
def test_where_a_stage_is_cut_makes_no_difference(seed, rate, process, seconds, share):
    assume(rate * seconds > 2)

    def times(*each: float) -> np.ndarray:
        stages = tuple(Stage(req_per_s=rate, seconds=part) for part in each)
        return arrival_times(RateSeries(stages=stages, arrivals=process[0], cv=process[1]), seed)

    whole, cut = times(seconds), times(seconds * share, seconds * (1 - share))
    assert abs(len(whole) - len(cut)) <= 1
    both = min(len(whole), len(cut))
    np.testing.assert_allclose(whole[:both], cut[:both], atol=1e-9)
