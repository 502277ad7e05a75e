"""Recovery from spikes, by queues that are computed request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.metrics.recovery import recoveries
from harness.metrics.samples import split
from harness.schema.load import RateSeries, Stage, load_text
from harness.workload.sources import arrival_times

from .conftest import build

TTFT_S, SERVICE_S = 0.02, 0.04


def series(*stages: tuple[float, float], arrivals: Any = "constant") -> RateSeries:
    return RateSeries(stages=tuple(Stage(req_per_s=r, seconds=s) for r, s in stages), arrivals=arrivals)


def served(load: RateSeries, seed: int = 0, failed: Sequence[int] = ()) -> tuple[Any, Any]:
    """Recoveries from a queue with one server, and the due times and TTFTs in ms."""
    times, free, rows = arrival_times(load, seed), 0.0, []
    noise = np.random.default_rng(seed).uniform(0, 1e-4, len(times))
    for place, due in enumerate(times.tolist()):
        start = max(due, free)
        free, first = start + SERVICE_S, start + TTFT_S + float(noise[place])
        row = {"load": load_text(load), "t_sched": due, "t_sent": due, "chunks": [(first, 1), (free, 1)]}
        rows.append(row if place not in failed else row | {"chunks": [], "error": "http_500"})
    first = np.array([row["chunks"][0][0] if row["chunks"] else np.inf for row in rows])
    [group] = split(*build(rows))
    return list(recoveries(group)), (times, 1e3 * (first - times))


def test_it_is_over_when_the_backlog_is():
    """(50 − 25) requests/s for 2 s wait, and 25 − 10 a second are made up."""
    [found], (times, ttft_ms) = served(series((10, 4), (50, 2), (10, 8)))
    assert found.stage == 1 and found.stage_s == 8
    assert found.seconds == pytest.approx(50 / 15, abs=0.1 + 1e-9)  # a gap between requests
    assert found.before_ms == pytest.approx(1e3 * TTFT_S, abs=0.1)
    assert found.highest_ms == pytest.approx(float(ttft_ms.max()))
    assert found.ci is not None and found.ci[0] <= found.seconds <= found.ci[1]
    slower = times[(times >= 6) & (ttft_ms > found.limit_ms + 1)]
    assert slower[-1] - 6 < found.seconds


def test_what_lasts_is_not_over():
    [found], _ = served(series((10, 4), (100, 4), (20, 2)))
    assert found.seconds is None and found.ci is None and found.stage_s == 2


def test_a_spike_that_is_not_felt_is_over_at_once():
    [found], _ = served(series((2, 20), (4, 5), (2, 20)))
    assert found.seconds == pytest.approx(0, abs=1.0)


def test_each_spike_counts_and_only_spikes():
    found, _ = served(series((5, 8), (40, 1), (5, 8), (10, 4), (15, 2), (5, 4)))
    assert [each.stage for each in found] == [1, 4]
    assert not served(series((5, 4), (10, 4), (20, 4)))[0]


def test_a_failed_request_is_slower_than_any():
    load = series((10, 4), (20, 1), (10, 4))
    [found], (times, _) = served(load, failed=[int(np.searchsorted(arrival_times(load, 0), 5.0))])
    assert found.highest_ms is None and found.seconds is not None and found.seconds > 0
    assert times.size


def test_there_is_nothing_to_return_to_where_a_tenth_failed():
    load = series((10, 4), (20, 1), (10, 4))
    [found], _ = served(load, failed=range(4))
    assert np.isfinite(found.limit_ms)
    assert not served(load, failed=range(5))[0]


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_have_an_interval(seed):
    [found], (times, ttft_ms) = served(series((8, 20), (60, 1), (8, 20), arrivals="poisson"), seed)
    assert found.seconds is not None and found.ci is not None
    assert found.ci[0] <= found.seconds <= found.ci[1]
    waits = ttft_ms[(times >= 21) & (times < 21 + found.seconds)]
    assert np.median(waits) > found.limit_ms
