"""Facts of a cell that was not the same all the way through: drift, a growing queue, a disturbed machine.

The cell stays valid: its numbers are right, and mean something else than they seem to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, floor, inf, log, pi, sqrt

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.percentiles import ranks
from harness.metrics.samples import scheduled
from harness.schema.facts import Fact, FactKind
from harness.schema.machines import MachineLoad

Floats = npt.NDArray[np.float64]

#: Fewer requests than this say nothing about a change over time.
MIN_REQUESTS = 30
#: A change is reported at this p-value, and where medians before and after it differ by this factor.
CHANGE_P, CHANGE_FACTOR = 1e-3, 1.3
#: No change is looked for in this share of the series at either end.
EDGE = 0.1

#: An engine fell behind where it answered less than this share of what arrived in the same time, and so many
#: requests fewer, and the requests sent last waited or took longer than those sent first by this factor. The
#: count is for short cells: in a simulation of one server at 0.7 of its capacity, 18 % of the cells with 30
#: requests have a notice without it and none with it; at 1.5 times its capacity 70 % have one.
KEPT_UP, BACKLOG, SLOWED_FACTOR = 0.9, 8, 1.5
#: First tokens did not follow the arrivals where the wait changed by this share of the time between the
#: requests sent first and those sent last, and nine tenths of the ones waited longer than nine tenths of the
#: others.
STALLED_SHARE = 0.5

#: Other processes disturb a cell from these shares of the CPUs on, but not below so many cores.
FOREIGN_MEAN, FOREIGN_MEAN_CORES = 0.05, 0.1
FOREIGN_PEAK, FOREIGN_PEAK_CORES = 0.25, 0.5
STEAL_SHARE = 0.02
#: Of a GPU's samples with clocks held down.
THROTTLED_SHARE = 0.1
#: What a GPU gives as its reason where it keeps to its power limit.
POWER_CAP = "power cap"
#: Of the time in which a GPU computed before its engine was started.
GPU_BUSY_SHARE = 0.05
#: Repeats disagree where the standard deviation of the logarithm of their medians is above this.
REPEATS_SPREAD = 0.2
#: CPUs were slowed down where their median clock in a repeat is below this share of that in another.
SLOWED_CLOCK = 0.85


@dataclass(frozen=True)
class Change:
    """The likeliest moment at which a series changed: before item `at` its median was `before`."""

    at: int
    before: float
    after: float
    p: float


def find_change(values: npt.NDArray[np.float64]) -> Change | None:
    """The change point of a series in time order; None where there is no sure one.

    The largest standardised rank sum (Wilcoxon) over all ways to split the series in two, with the p-value of
    a maximum by Miller and Siegmund, "Maximally selected chi square statistics", Biometrics 38 (1982).
    Neighbours resemble each other where requests queue, so the series counts as so many independent values as
    the autocorrelation within the two parts leaves (Bayley and Hammersley, 1946).

    Args:
        values: (n,) finite.
    """
    n = values.size
    if n < MIN_REQUESTS:
        return None
    places, first = ranks(values), ceil(EDGE * n)
    split = np.arange(first, floor((1 - EDGE) * n) + 1, dtype=np.float64)
    rank_sums = np.cumsum(places)[first - 1 : first - 1 + split.size]
    z = np.abs(rank_sums - split * (n + 1) / 2) / np.sqrt(split * (n - split) * (n + 1) / 12)
    best = int(np.argmax(z))
    at = first + best
    # a slow rise is no noise
    residual = np.concatenate([_without_line(places[:at]), _without_line(places[at:])])
    variance = float(residual @ residual)
    rho = min(0.95, max(0.0, float(residual[1:] @ residual[:-1]) / variance)) if variance else 0.0
    p = _p_of_maximum(float(z[best]) * sqrt((1 - rho) / (1 + rho)))
    before, after = float(np.median(values[:at])), float(np.median(values[at:]))
    low, high = sorted((before, after))
    if p > CHANGE_P or low < 0 or high <= CHANGE_FACTOR * low:
        return None
    return Change(at, before, after, p)


def _without_line(series: Floats) -> Floats:
    """Return a series (n,) without its line of least squares."""
    place = np.arange(series.size) - (series.size - 1) / 2
    slope = float(place @ series) / float(place @ place) if series.size > 1 else 0.0
    level: npt.NDArray[np.float64] = series - series.mean()
    return level - slope * place


def _p_of_maximum(z: float) -> float:
    """Two-sided p-value of the largest |z| over splits from EDGE to 1 - EDGE."""
    if z < 1.5:
        return 1.0
    density = exp(-z * z / 2) / sqrt(2 * pi)
    return min(1.0, 4 * density / z + density * (z - 1 / z) * 2 * log((1 - EDGE) / EDGE))


def drift(sent: Floats, values_by_metric: Mapping[str, Floats]) -> list[Fact]:
    """State each metric that changed within the cell.

    Args:
        sent: (n,) when the successes of one cell that count were sent, in s, without a ramp-up.
        values_by_metric: by name, (n,) values of the same requests, NaN where there is none.
    """
    return [
        Fact.of("drift", metric=name, **change)
        for name, values in values_by_metric.items()
        if (change := _changed(sent, values)) is not None
    ]


def growing(sent: Floats, in_flight: Floats) -> list[Fact]:
    """State that the requests in flight changed within the cell; that they grew is a kind of its own.

    Args:
        sent: (n,) as of `drift`.
        in_flight: (n,) requests in flight at those times.
    """
    change = _changed(sent, in_flight)
    if change is None:
        return []
    kind: FactKind = "growing" if change["after"] > change["before"] else "drift"
    return [Fact.of(kind, **change)]


def _changed(sent: Floats, values: Floats) -> dict[str, float] | None:
    """Medians before and after the change point of a series, and its moment in s; None without one."""
    order = np.argsort(sent, kind="stable")
    in_order = values[order]
    finite = np.isfinite(in_order)
    change = find_change(in_order[finite])
    if change is None:
        return None
    moment = float(sent[order[finite][change.at]])
    return {"before": change.before, "after": change.after, "moment_s": moment}


def behind_or_stalled(requests: pd.DataFrame) -> Fact | None:
    """State that an open loop's requests arrived faster than they were answered, so that a queue grew.

    Arrivals and ends are counted from when the first answers could be there to the last arrival; where almost
    all had been sent by then, over the whole cell. A request that timed out was never answered.

    Args:
        requests: all of one cell, failures included (columns of records/columns.py).
    """
    due, good = scheduled(requests).to_numpy(np.float64), requests["error"].isna().to_numpy()
    waited = good | requests["error"].isin(["timeout"]).to_numpy()
    if np.count_nonzero(waited) < MIN_REQUESTS:
        return None
    arrivals, good = np.sort(due), good[waited]
    due, closed = due[waited], requests["t_end"].to_numpy(np.float64)[waited]
    ends = np.where(good, closed, inf)
    order = np.argsort(due, kind="stable")
    took = ends[order] - due[order]
    first, stop = float(arrivals[0]), float(arrivals[-1])
    span = stop - first
    if span <= 0:
        return None
    start = first + min(float(took.min()), span)
    if stop - start < span / 4:
        offered = (arrivals.size - 1) / span
        achieved = np.count_nonzero(good) / (float(closed.max()) - first)
    else:
        arrived = np.count_nonzero((arrivals >= start) & (arrivals <= stop))
        answered = np.count_nonzero((ends >= start) & (ends <= stop))
        if arrived < answered + BACKLOG:
            return None
        offered, achieved = arrived / (stop - start), answered / (stop - start)
    if achieved >= KEPT_UP * offered:
        return None
    before, after = (float(np.median(part)) for part in _outer_quarters(np.asarray(took, np.float64)))
    slowed = after == inf or after >= SLOWED_FACTOR * max(before, 1e-9)
    stalled_s = 0.0 if slowed else _stalled_s(requests)
    if stalled_s is None:
        return None
    rates = {"offered": float(offered), "answered": float(achieved)}
    return Fact.of("stalled", **rates, stalled_s=stalled_s) if stalled_s else Fact.of("behind", **rates)


def _stalled_s(requests: pd.DataFrame) -> float | None:
    """Return the wait for the first token of an open loop, in s, where it came after the last arrival.

    It is 0 where first tokens came ever later, as before answers that end together; None where they followed
    the arrivals.

    Where all requests wait equally long, answers take long, and none has to queue.
    """
    due, first = scheduled(requests), requests["t_first"]
    answered = (requests["error"].isna() & first.notna()).to_numpy()
    if np.count_nonzero(answered) < MIN_REQUESTS:
        return None
    arrived, came = due.to_numpy(np.float64)[answered], first.to_numpy(np.float64)[answered]
    order = np.argsort(arrived, kind="stable")
    early, late = _outer_quarters(np.asarray(came - arrived, np.float64)[order])
    begin, end = (np.median(part) for part in _outer_quarters(np.asarray(arrived, np.float64)[order]))
    followed = abs(np.median(late) - np.median(early)) < STALLED_SHARE * (end - begin)
    few = early.size // 10
    apart = early[few] > late[-1 - few] or late[few] > early[-1 - few]
    if not apart or followed:
        return None
    if first.min() > due.max():
        return float(first.min() - due.min())
    return 0.0 if np.median(late) > np.median(early) else None


def _outer_quarters(values: Floats) -> tuple[Floats, Floats]:
    """The first and the last quarter of some values, each in ascending order."""
    quarter = values.size // 4
    return np.sort(values[:quarter]), np.sort(values[-quarter:])


def disturbed(load: MachineLoad, engine_is_ours: bool = True) -> list[Fact]:
    """State what else used the machine, or slowed it down, during a cell.

    Args:
        engine_is_ours: False for a server that ran already: its own work looks like that of others, unless
            its processes are known.
    """
    facts = []
    if (engine_is_ours or load.engine_cpu_s is not None) and is_busy(load):
        most = max(load.foreign_cores_max, load.foreign_cores_mean)
        facts.append(Fact.of("foreign_load", cores=load.foreign_cores_mean, most=most, of=load.cpus))
    if load.steal_share > STEAL_SHARE:
        facts.append(Fact.of("stolen_time", share=load.steal_share))
    for index, share in enumerate(load.gpus_busy_before if engine_is_ours else ()):
        if share is not None and share > GPU_BUSY_SHARE:
            facts.append(Fact.of("gpu_in_use", gpu=str(index), share=share))
    for index, gpu in enumerate(load.gpus):
        for reason, share in gpu.throttled.items():
            if share <= THROTTLED_SHARE:
                continue
            if reason == POWER_CAP:
                facts.append(Fact.of("power_capped", gpu=str(index), share=share))
            else:
                facts.append(Fact.of("throttled", gpu=str(index), share=share, reason=reason))
    return facts


def is_busy(load: MachineLoad) -> bool:
    """Tell whether other processes used so many cores that they disturb a cell."""
    mean_limit = max(FOREIGN_MEAN * load.cpus, FOREIGN_MEAN_CORES)
    peak_limit = max(FOREIGN_PEAK * load.cpus, FOREIGN_PEAK_CORES)
    return load.foreign_cores_mean > mean_limit or load.foreign_cores_max > peak_limit


def clocks_differ(repeats: Sequence[MachineLoad]) -> list[Fact]:
    """State that the CPUs of an engine that computes on them ran slower in one repeat than in another.

    Beside a GPU most CPUs are idle, and idle ones lower their clocks.
    """
    clocks = [load.cpu_mhz_median for load in repeats if load.cpu_mhz_median is not None and not load.gpus]
    if not clocks or min(clocks) >= SLOWED_CLOCK * max(clocks):
        return []
    return [Fact.of("slower_clock", low_mhz=min(clocks), high_mhz=max(clocks))]


def repeats_disagree(medians: Mapping[str, Sequence[float]]) -> list[Fact]:
    """State each metric whose repeats differ by far more than their requests explain.

    Args:
        medians: by the metric's name, the median of each repeat in ms.
    """
    facts = []
    for name, values in medians.items():
        positive = [value for value in values if value > 0]
        if len(positive) < 2 or float(np.std([log(value) for value in positive], ddof=1)) <= REPEATS_SPREAD:
            continue
        facts.append(Fact.of("repeats_differ", metric=name, low=min(positive), high=max(positive)))
    return facts
