"""The stated bounds hold for clocks that differ and drift, whatever the network does."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.ray_testbed import Offset, host_clock, offset_of

#: Seconds that a question or an answer is on its way, and between two questions.
DELAYS = st.floats(1e-5, 0.02)
TRIPS = st.lists(st.tuples(DELAYS, DELAYS, st.floats(0, 0.01)), min_size=1, max_size=20)
#: Seconds that the other clock is ahead, and how much faster it runs.
AHEAD, DRIFT = st.floats(-0.5, 0.5), st.floats(-5e-4, 5e-4)


def shown(t: float, ahead: float, drift: float) -> float:
    """What the other clock says when ours says `t`."""
    return t + ahead + drift * t


def reading(trips: list[tuple[float, float, float]], start: float, ahead: float, drift: float) -> Offset:
    """What is found by round trips that take so long there, back, and with a pause."""
    ends = accumulate((sum(trip) for trip in trips), initial=start)
    answers = [
        (begin, shown(begin + there, ahead, drift), begin + there + back)
        for begin, (there, back, _) in zip(ends, trips, strict=False)
    ]
    return offset_of(answers)


@given(TRIPS, AHEAD, DRIFT, st.floats(0, 1e3))
def test_the_offset_is_within_its_bound(trips, ahead, drift, start) -> None:
    found = reading(trips, start, ahead, drift)
    true = shown(found.at, ahead, drift) - found.at
    assert abs(found.seconds - true) <= found.bound + 1e-9
    quickest = min(there + back for there, back, _ in trips)
    assert found.bound <= quickest / 2 + 2e-3 * sum(map(sum, trips)) + 1e-9


@given(TRIPS, TRIPS, AHEAD, DRIFT, st.floats(1, 600), st.floats(0, 2))
def test_drift_and_start_are_within_their_bounds(before, after, ahead, drift, lasted, delay) -> None:
    first = reading(before, 0.0, ahead, drift)
    t0 = first.at + delay
    clock = host_clock(first, reading(after, first.at + lasted, ahead, drift), t0)
    assert abs(clock.drift_ppm - 1e6 * drift) <= clock.drift_bound_ppm + 1e-3
    began = (t0 + first.seconds - ahead) / (1 + drift)  # by our clock, when theirs says so
    assert 1e3 * abs(began - t0) <= clock.start_bound_ms * (1 + 1e-3) + 1e-6


def test_a_quick_round_trip_decides() -> None:
    found = offset_of([(0.0, 100.010, 0.030), (0.030, 100.031, 0.032)])
    assert abs(found.seconds - 100.0) <= found.bound <= 1.1e-3
    assert found.round_trip == pytest.approx(0.002)
