"""The search for the highest rate that holds, over clients whose limit is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibration import calibrate
from harness.calibration.calibrate import MOST_LAG_S, Trial, search, usual_p99
from harness.engines.placement import physical_cores, split
from harness.errors import BenchError


class Machine:
    """A client that takes `client` a second and a server that gives `server` a second."""

    def __init__(self, client: float, server: float = 1e9) -> None:
        self.client, self.server = client, server
        self.tried: list[float] = []

    def __call__(self, rate: float) -> Trial:
        self.tried.append(rate)
        reached = min(rate, self.server)
        if reached > self.client:
            return Trial(rate, self.client, 1.0, "client")
        return Trial(rate, reached, reached / self.client, "server" if rate > self.server else None)


@given(client=st.floats(100, 1e6), start=st.floats(100, 1e5))
def test_what_is_found_holds_and_is_near_the_limit(client: float, start: float) -> None:
    machine = Machine(client)
    best, limit = search(machine, start, refinements=4)
    assert limit == "client"
    assert 0.75 * client <= best.reached <= client
    assert len(machine.tried) <= 2 * 16


def test_where_the_server_gives_way_the_client_is_credited_with_what_came() -> None:
    best, limit = search(Machine(client=1e6, server=5e4), 2e4, refinements=3)
    assert (best.reached, limit) == (5e4, "server")


def test_a_ceiling_is_near_the_limit_however_far_the_last_step_went_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that uses little CPU until it sends late: until then the rate grows by the largest step."""

    def client(most: float) -> Callable[..., Trial]:
        def attempt(rate: float, *_: Any) -> Trial:
            return Trial(rate, min(rate, most), 0.1, "client" if rate > most else None)

        return attempt

    monkeypatch.setattr(calibrate, "try_chunks", client(119_000))
    monkeypatch.setattr(calibrate, "try_requests", client(2_990))
    cpus = split(physical_cores())
    found = calibrate.measure_ceiling(processes=1, seconds=0.5, cpus=cpus, start=(40_000, 1_000))
    assert 0.75 * 119_000 < found.chunks_per_s < 119_000
    assert 0.75 * 2_990 < found.requests_per_s < 2_990


def test_more_refinements_come_nearer() -> None:
    found = [search(Machine(1e5), 3e4, refinements)[0].reached for refinements in (0, 2, 6)]
    assert found == sorted(found) and found[-1] > 0.98e5


def test_a_trial_that_something_came_between_is_repeated() -> None:
    machine, spoilt = Machine(1e5), []

    def attempt(rate: float) -> Trial:
        if not spoilt:
            spoilt.append(rate)
            return Trial(rate, 0.0, 0.1, "client")
        return machine(rate)

    assert search(attempt, 4e4, refinements=4)[0].reached > 0.9e5


@given(begin=st.integers(0, 900), length=st.integers(1, 100))
def test_a_pause_of_the_machine_does_not_make_a_client_slow(begin: int, length: int) -> None:
    """While it lasts, each request is the later the sooner it was due."""
    lags = np.zeros(1000)
    lags[begin : begin + length] = 1e-3 * np.arange(length, 0, -1)
    assert usual_p99(lags) <= MOST_LAG_S


@given(rate=st.floats(1.02, 10))
def test_a_client_that_falls_behind_is_slow(rate: float) -> None:
    """It is to send `rate` times as many requests as it can, 1,000 a second."""
    sent, due = np.arange(1000) / 1000, np.arange(1000) / (1000 * rate)
    assert usual_p99(sent - due) > MOST_LAG_S


def test_a_client_that_keeps_up_with_nothing_is_an_error() -> None:
    with pytest.raises(BenchError, match="keeps up with no rate"):
        search(lambda rate: Trial(rate, 0.0, 1.0, "client"), 1e4, refinements=2)
