"""Drift, engines that fall behind, disturbed machines: found where they are, rarely where they are not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from harness.metrics.samples import in_flight
from harness.metrics.stability import (
    behind_or_stalled,
    clocks_differ,
    disturbed,
    drift,
    find_change,
    growing,
    repeats_disagree,
)
from harness.schema.facts import DISTURBING, FELL_BEHIND, Fact
from harness.schema.machines import GpuLoad, MachineLoad

Floats = npt.NDArray[np.float64]


def autocorrelated(rng: np.random.Generator, n: int, rho: float) -> Floats:
    """(n,) log-normal values whose logarithms are AR(1) with a standard deviation of 0.3."""
    noise = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    values = np.empty(n)
    values[0] = rng.standard_normal()
    for i in range(1, n):
        values[i] = rho * values[i - 1] + noise[i]
    return np.exp(0.3 * values)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("n", [40, 200, 1000])
def test_a_steady_series_has_no_change(n: int, rho: float) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(find_change(autocorrelated(rng, n, rho)) is not None for _ in range(150))
    assert alarms <= 3


@pytest.mark.parametrize("share", [0.15, 0.5, 0.9])
def test_a_step_is_found_where_it_is(share: float) -> None:
    rng, n = np.random.default_rng(2), 200
    values = autocorrelated(rng, n, 0.3)
    values[int(share * n) :] *= 2.5
    change = find_change(values)
    assert change is not None
    assert abs(change.at - share * n) <= 8
    assert change.after / change.before == pytest.approx(2.5, rel=0.3)


def test_a_slow_rise_is_found_and_few_or_equal_values_have_no_change() -> None:
    values = np.linspace(40, 800, 200) * np.exp(0.2 * np.random.default_rng(3).standard_normal(200))
    assert find_change(values) is not None
    assert find_change(np.array([1.0, 100.0] * 5)) is None
    assert find_change(np.ones(100)) is None


def queue(rate: float, service_s: float, n: int, seed: int = 4, stall_s: float = 0.0) -> pd.DataFrame:
    """Poisson arrivals at one server that takes `service_s` on average, and does nothing for `stall_s`."""
    rng = np.random.default_rng(seed)
    arrivals, end, starts, ends = np.cumsum(rng.exponential(1 / rate, n)), stall_s, [], []
    for arrival, service in zip(arrivals, rng.gamma(4, service_s / 4, n), strict=True):
        starts.append(max(end, arrival))
        end = starts[-1] + service
        ends.append(end)
    times = {"t_sched": arrivals, "t_sent": arrivals, "t_first": starts, "t_end": ends}
    return pd.DataFrame(times | {"error": None})


def timed_out(requests: pd.DataFrame, timeout_s: float) -> pd.DataFrame:
    """The same requests as a client that waits for so long has them."""
    late = requests["t_end"] > requests["t_sent"] + timeout_s
    requests.loc[late, "error"] = "timeout"
    requests["t_end"] = np.minimum(requests["t_end"], requests["t_sent"] + timeout_s)
    return requests


@pytest.mark.parametrize("load", [1.2, 1.5, 4.0, 20.0, 1000.0])
def test_a_saturated_engine_fell_behind(load: float) -> None:
    notice = behind_or_stalled(queue(20.0, load / 20, 300))
    assert notice is not None and notice.kind == "behind"
    offered, answered = notice.values["offered"], notice.values["answered"]
    assert offered == pytest.approx(20, rel=0.15)
    assert answered == pytest.approx(20 / load, rel=0.15)


@pytest.mark.parametrize("n", [30, 40, 200])
def test_an_engine_below_its_limit_keeps_up(n: int) -> None:
    alarms = sum(behind_or_stalled(queue(20.0, 0.7 / 20, n, seed)) is not None for seed in range(100))
    assert alarms <= 2


@pytest.mark.parametrize("n", [30, 40])
def test_few_requests_show_an_engine_far_beyond_its_limit(n: int) -> None:
    found = sum(behind_or_stalled(queue(20.0, 2 / 20, n, seed)) is not None for seed in range(50))
    assert found >= 45


def test_an_engine_fell_behind_whose_answers_end_together() -> None:
    """Prompts queue, and no answer ends before all of them are computed."""
    requests = queue(20.0, 3 / 20, 40)
    requests["t_first"], requests["t_end"] = requests["t_end"], requests["t_end"].max() + 1.0
    assert (notice := behind_or_stalled(requests)) is not None and notice.kind == "behind"
    alarms = 0
    for seed in range(100):
        below = queue(20.0, 0.7 / 20, 40, seed)
        below["t_first"], below["t_end"] = below["t_end"], below["t_end"].max() + 1.0
        alarms += behind_or_stalled(below) is not None
    assert alarms <= 2


def test_answers_that_all_take_long_or_fail_at_once_are_no_queue() -> None:
    requests = queue(20.0, 0.01, 100)
    assert behind_or_stalled(requests.assign(t_end=requests["t_sched"] + 60.0)) is None
    assert behind_or_stalled(requests.assign(error="http_429")) is None


@pytest.mark.parametrize("spread_s", [0.1, 1.0, 10.0])
def test_first_tokens_that_all_take_long_are_no_queue(spread_s: float) -> None:
    alarms = 0
    for seed in range(100):
        requests = queue(20.0, 0.01, 60, seed)
        wait = 60.0 + np.random.default_rng(seed).normal(0, spread_s, 60)
        requests["t_first"] = requests["t_sched"] + wait
        requests["t_end"] = requests["t_first"] + 1.0
        alarms += behind_or_stalled(requests) is not None
    assert alarms <= 2


@pytest.mark.parametrize("service_s", [0.001, 0.02, 0.1])
@pytest.mark.parametrize("stall_s", [6.0, 20.0, 500.0])
def test_an_engine_that_stalls_until_all_requests_are_there_fell_behind(stall_s, service_s):
    notice = behind_or_stalled(queue(20.0, service_s, 100, stall_s=stall_s))
    assert notice is not None and notice.kind in FELL_BEHIND
    if stall_s == 500.0:
        assert notice.kind == "stalled" and notice.values["stalled_s"] == pytest.approx(stall_s, abs=1)


@pytest.mark.parametrize("service_s", [0.3, 2.0, 1000.0])
def test_an_engine_fell_behind_whose_requests_time_out(service_s: float) -> None:
    """Of a hundred requests few or none are answered."""
    requests = timed_out(queue(20.0, service_s, 100), 4.0)
    assert requests["error"].isna().sum() < 20
    notice = behind_or_stalled(requests)
    assert notice is not None and notice.kind == "behind"
    answered = notice.values["answered"]
    assert answered == pytest.approx(1 / service_s, rel=0.3, abs=0.05)


def test_single_answers_that_hang_are_no_queue() -> None:
    alarms = 0
    for seed in range(100):
        requests = queue(20.0, 0.01, 100, seed)
        requests.loc[::6, "t_end"] = np.inf
        alarms += behind_or_stalled(timed_out(requests, 4.0)) is not None
    assert alarms <= 4


def test_requests_in_flight_are_counted_when_each_is_sent() -> None:
    times = [(0.0, 4.0), (3.0, 3.5), (1.0, 3.0), (np.nan, np.nan), (3.2, np.nan)]
    requests = pd.DataFrame(times, columns=["t_sent", "t_end"])
    sent = requests["t_sent"].dropna().to_numpy()
    assert in_flight(requests, sent).tolist() == [1, 2, 2, 3]


def flight_drift(requests: pd.DataFrame) -> list[Fact]:
    """The notices of a change of the requests in flight."""
    sent = requests["t_sent"].to_numpy()
    return growing(sent, in_flight(requests, sent).astype(np.float64))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_queue_that_is_stable_keeps_its_length(load: float) -> None:
    queues = [queue(20.0, load / 20, 200, seed) for seed in range(100)]
    alarms = sum(bool(flight_drift(q)) for q in queues)
    assert alarms <= 4


def test_a_queue_that_gets_longer_has_more_in_flight() -> None:
    """The server takes three times as long after the first hundred."""
    quick, slow = queue(20.0, 0.3 / 20, 100), queue(20.0, 0.9 / 20, 100)
    slow[["t_sched", "t_sent", "t_end"]] += quick["t_end"].max()
    requests = pd.concat([quick, slow], ignore_index=True)
    [notice] = flight_drift(requests)
    assert notice.kind == "growing"
    assert float(notice.values["before"]) == 1 < float(notice.values["after"])


def test_drift_names_metric_and_moment() -> None:
    n = 120
    sent = np.arange(n) / 10
    ttft = np.where(np.arange(n) < 60, 40.0, 90.0) + np.random.default_rng(5).uniform(0, 9, n)
    [notice] = drift(sent, {"TTFT": ttft, "TPOT": np.full(n, np.nan)})
    assert notice.values["metric"] == "TTFT"
    assert notice.values["moment_s"] == pytest.approx(6)
    mixed = np.random.default_rng(6).permutation(n)
    assert drift(sent[mixed], {"TTFT": ttft[mixed]}) == [notice]


def machine(**seen: object) -> MachineLoad:
    fields = {"seconds": 10.0, "samples": 11, "cpus": 2, "own_cpu_s": 12.0}
    quiet = {"foreign_cores_mean": 0.02, "foreign_cores_max": 0.1, "steal_share": 0.0}
    return MachineLoad.model_validate(fields | quiet | seen)


@pytest.mark.parametrize(
    ("seen", "kind", "values"),
    [
        ({"foreign_cores_mean": 0.9}, "foreign_load", {"cores": 0.9, "most": 0.9, "of": 2}),
        ({"foreign_cores_max": 0.8}, "foreign_load", {"cores": 0.02, "most": 0.8, "of": 2}),
        ({"steal_share": 0.2}, "stolen_time", {"share": 0.2}),
        ({"gpus_busy_before": [0.0, 0.63]}, "gpu_in_use", {"gpu": "1", "share": 0.63}),
    ],
)
def test_a_disturbed_machine_is_reported(seen, kind, values):
    assert disturbed(machine(**seen)) == [Fact(kind=kind, values=values)]
    assert kind in DISTURBING
    assert disturbed(machine(gpus=[GpuLoad(throttled={"power cap": 0.05})], gpus_busy_before=[0.01])) == []


def test_clocks_of_gpus_that_were_held_down_are_not_the_doing_of_others() -> None:
    [notice] = disturbed(machine(gpus=[GpuLoad(throttled={"thermal (hardware)": 0.5})]))
    values = {"gpu": "0", "reason": "thermal (hardware)", "share": 0.5}
    assert notice == Fact(kind="throttled", values=values)
    [capped] = disturbed(machine(gpus=[GpuLoad(throttled={"power cap": 0.5})]))
    assert capped == Fact(kind="power_capped", values={"gpu": "0", "share": 0.5})


def test_a_server_that_is_not_ours_does_not_disturb_itself() -> None:
    theirs = machine(foreign_cores_mean=1.5, gpus_busy_before=[0.63])
    assert disturbed(theirs, engine_is_ours=False) == []


def test_clocks_of_cpus_that_differ_between_repeats() -> None:
    clocks = [machine(cpu_mhz_median=mhz) for mhz in (3000.0, 2980.0, None, 2100.0)]
    [notice] = clocks_differ(clocks)
    assert notice == Fact(kind="slower_clock", values={"low_mhz": 2100, "high_mhz": 3000})
    assert clocks_differ(clocks[:3]) == clocks_differ([]) == []
    beside_a_gpu = [load.model_copy(update={"gpus": [GpuLoad()]}) for load in clocks]
    assert clocks_differ(beside_a_gpu) == []


def test_repeats_that_disagree() -> None:
    assert repeats_disagree({"TTFT": [40, 41, 39, 42]}) == []
    [notice] = repeats_disagree({"TTFT": [40, 20, 41, 21], "TPOT": [5.0, 5.1, 5.0, 5.1]})
    assert notice.values == {"metric": "TTFT", "low": 20, "high": 41}
