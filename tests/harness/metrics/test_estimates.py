"""What a sample of dependent observations is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from harness.metrics.estimates import Dependence, estimates_of
from harness.metrics.samples import Sample, by_unit, split
from tests.harness.metrics.conftest import build

Floats = npt.NDArray[np.float64]


def series(rng: np.random.Generator, n: int, rho: float) -> Floats:
    """(n,) log-normal values with an autocorrelation of `rho` between neighbours on the logarithm."""
    noise = rng.standard_normal(n)
    values = noise.copy()
    for i in range(1, n):
        values[i] = rho * values[i - 1] + np.sqrt(1 - rho**2) * noise[i]
    return np.exp(0.5 * values)


def sample(values: Floats, weights: npt.NDArray[np.int64] | None = None, each: int = 1) -> Sample:
    return Sample(values, weights, np.arange(values.size) // each)


def test_independent_requests_count_one_each() -> None:
    worth = [Dependence(sample(series(np.random.default_rng(i), 200, 0))).requests for i in range(40)]
    assert np.median(worth) == 200


def test_turns_of_a_job_count_as_that_job() -> None:
    """Turns that resemble those of their job are worth one observation each job, whatever their number."""
    rng = np.random.default_rng(3)
    jobs, turns = 60, 20
    of_job = np.repeat(rng.standard_normal(jobs), turns)
    values = np.exp(of_job + 0.05 * rng.standard_normal(jobs * turns))
    order = rng.permutation(jobs * turns)  # as they were sent: jobs beside each other
    unit = np.repeat(np.arange(jobs), turns)[order].astype(float)
    dependence = Dependence(by_unit(sample(values[order]), unit))
    assert dependence.requests == pytest.approx(jobs, rel=0.3)
    assert dependence.below(float(np.median(values)), 0.5) == pytest.approx(jobs, rel=0.3)
    mean = float(values.mean())
    assert dependence.error_of_mean(mean) == pytest.approx(np.exp(of_job).std() / jobs**0.5, rel=0.2)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_neighbours_that_resemble_each_other_count_less(rho: float) -> None:
    rng = np.random.default_rng(1)
    worth = [Dependence(sample(series(rng, 2000, rho))).requests for _ in range(20)]
    assert np.median(worth) == pytest.approx(2000 * (1 - rho) / (1 + rho), rel=0.2)


def test_tokens_of_a_request_that_are_alike_count_as_one() -> None:
    latencies = np.random.default_rng(2).lognormal(0, 0.5, 300)
    alike = sample(np.repeat(latencies, 20), each=20)
    assert Dependence(alike).below(float(np.median(latencies)), 0.5) == pytest.approx(300, rel=0.1)
    weighted = sample(latencies, np.full(300, 20))
    assert Dependence(weighted).below(float(np.median(latencies)), 0.5) == pytest.approx(300, rel=0.1)
    apart = sample(np.random.default_rng(3).lognormal(0, 0.5, 6000), each=20)
    assert Dependence(apart).below(1.0, 0.5) > 4000


def test_turns_of_sessions_are_neighbours_by_when_they_were_sent() -> None:
    sessions, turns = 40, 5
    ttft = series(np.random.default_rng(6), sessions * turns, 0.8)  # in the order of sending
    rows = [
        {"session": s, "turn": k, "t_sched": t, "t_sent": t, "chunks": [(t + ttft[k * sessions + s], 1)]}
        for s in range(sessions)
        for k in range(turns)
        for t in [100.0 * (k * sessions + s)]
    ]
    [group] = split(*build(rows))
    by_request = Dependence(replace(group.sample("ttft_ms"), unit=None))
    assert by_request.inflation == pytest.approx(Dependence(sample(ttft)).inflation)
    assert Dependence(group.sample("ttft_ms")).requests <= by_request.requests
    assert list(group.requests["t_sent"]) == sorted(group.requests["t_sent"])


def test_equal_values_are_no_error() -> None:
    same = Dependence(sample(np.ones(50)))
    assert (same.requests, same.error_of_mean(1.0)) == (50, 0)


@pytest.mark.parametrize(("n", "rho"), [(100, 0.0), (300, 0.5), (300, 0.9)])
@pytest.mark.parametrize("q", [50, 90])
def test_the_interval_of_one_repeat_holds_the_truth(n: int, rho: float, q: int) -> None:
    rng, truth, trials = np.random.default_rng(n), float(np.exp(0.5 * norm.ppf(q / 100))), 300
    found = [estimates_of([sample(series(rng, n, rho))])[f"p{q}"].within for _ in range(trials)]
    ends = [end for end in found if end is not None]
    assert len(ends) > 0.9 * trials
    assert sum(low <= truth <= high for low, high in ends) / len(ends) >= 0.93


def test_p99_of_a_repeat_needs_some_hundred_requests_for_an_upper_end() -> None:
    rng = np.random.default_rng(4)
    assert estimates_of([sample(series(rng, 200, 0))])["p99"].within is None
    assert estimates_of([sample(series(rng, 600, 0))])["p99"].within is not None


def test_repeats_count_by_unbiased_percentiles_and_the_shown_one_is_the_usual() -> None:
    """The usual p99 of 100 requests is too low in 73 % of samples, in every repeat alike."""
    rng = np.random.default_rng(5)
    repeats = [series(rng, 100, 0) for _ in range(3)]
    found = estimates_of([sample(values) for values in repeats], sample(np.concatenate(repeats)))["p99"]
    assert found.each == pytest.approx(
        [np.percentile(values, 99, method="median_unbiased") for values in repeats]
    )
    assert found.value == pytest.approx(np.percentile(np.concatenate(repeats), 99))
