"""The kernel's stamps on the wall clock as times of the monotonic clock, while the wall clock is set."""

from __future__ import annotations

import struct
from time import monotonic, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen import arrival
from harness.loadgen.arrival import ArrivalClock


def note(epoch_s: float) -> bytes:
    return struct.pack("qq", *divmod(round(epoch_s * 1e9), 10**9))


def test_a_stamp_is_the_time_of_arrival() -> None:
    clock, before = ArrivalClock(), monotonic()
    stamp = clock.stamp(note(time()), before)
    assert before - 1e-4 <= stamp <= monotonic()


@given(
    step_s=st.floats(-100, 100).filter(lambda step: abs(step) > 1e-3),
    is_stamped_before=st.booleans(),
)
def test_a_step_of_the_wall_clock_moves_no_stamp(step_s: float, is_stamped_before: bool) -> None:
    """The request was sent so long ago that a stamp which moved by the step would not be too early."""
    with pytest.MonkeyPatch.context() as patch:
        clock, begin, arrived = ArrivalClock(), monotonic(), time()
        patch.setattr(arrival, "time", lambda: time() + step_s)
        stamp = clock.stamp(note(arrived if is_stamped_before else time() + step_s), begin - 200)
        assert begin <= stamp <= monotonic()


@given(early_s=st.floats(1e-3, 1e6))
def test_no_stamp_is_before_what_it_answers(early_s: float) -> None:
    clock, sent = ArrivalClock(), monotonic()
    assert sent <= clock.stamp(note(time() - early_s), sent) <= monotonic()
