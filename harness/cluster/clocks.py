"""Offset of another machine's monotonic clock from ours, with its bound.

A question that was sent at `sent_at` and answered at `answered` by our clock, with `remote_time` by the
other's, says that the other's clock is between `remote_time - answered` and `remote_time - sent_at` ahead of
ours: whatever the network did, the answer was given in between (Cristian, "Probabilistic clock
synchronization", 1989). Several questions narrow that to the intersection, of which the quickest round trips
decide most (NTP, RFC 5905).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.schema.machines import HostClock

#: Questions of a reading: enough that some pass without waiting, few enough that no clock drifts meanwhile.
ROUNDS = 20
#: Clocks that are disciplined by NTP differ in speed by at most this (`adjtimex`: 500 ppm each).
MOST_DRIFT = 1e-3


@dataclass(frozen=True)
class Offset:
    """The other clock is `seconds` ahead of ours, give or take `bound`, at `at` by our clock."""

    at: float
    seconds: float
    bound: float
    round_trip: float


def read_offset(ask: Callable[[], float]) -> Offset:
    """Ask another machine for its time again and again."""
    answers = []
    for _ in range(ROUNDS):
        sent_at = time.monotonic()
        remote_time = ask()
        answers.append((sent_at, remote_time, time.monotonic()))
    return offset_of(answers)


def offset_of(answers: Iterable[tuple[float, float, float]]) -> Offset:
    """Offset from `(sent_at, remote_time, answered)`: by our clock, by the other's, by ours.

    Between an answer and the last of them a clock may have drifted by MOST_DRIFT; the bound has that too.
    """
    answers = list(answers)
    end = answers[-1][2]
    low = max(remote_time - answered - MOST_DRIFT * (end - answered) for _, remote_time, answered in answers)
    high = min(remote_time - sent_at + MOST_DRIFT * (end - sent_at) for sent_at, remote_time, _ in answers)
    quickest = min(answered - sent_at for sent_at, _, answered in answers)
    return Offset(end, (low + high) / 2, (high - low) / 2, quickest)


def host_clock(before: Offset, after: Offset, t0: float) -> HostClock:
    """Derive offset and drift of a node's clock from readings around a cell that was to begin at `t0` of
    ours."""
    seconds = after.at - before.at
    drift, bound = (after.seconds - before.seconds) / seconds, (after.bound + before.bound) / seconds
    until_start = max(0.0, t0 - before.at)
    return HostClock(
        offset_s=before.seconds,
        bound_ms=1e3 * before.bound,
        round_trip_ms=1e3 * min(before.round_trip, after.round_trip),
        drift_ppm=1e6 * drift,
        drift_bound_ppm=1e6 * bound,
        start_bound_ms=1e3 * (before.bound + until_start * min(abs(drift) + bound, MOST_DRIFT)),
    )
