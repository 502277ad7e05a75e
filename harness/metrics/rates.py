"""Sums of an engine's repeats, and the rates and costs made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import RequestTimes, prompt_tokens, run_starts, succeeded, values_of
from harness.metrics.intervals import Estimate
from harness.metrics.samples import Group, in_flight, inside, scheduled
from harness.schema.limits import Slo
from harness.schema.machines import MachineLoad, sum_known
from harness.schema.metric import MS, NO_TIME_S, Counts, Metric
from harness.schema.metrics import METRICS
from harness.schema.setting_types import Window

#: Load of the machine during each cell, by the cell's number.
Machines = Mapping[int, MachineLoad]

_NONE: Mapping[Any, Any] = MappingProxyType({})


def count(
    group: Group, slo: Slo | None, machines: Machines = _NONE, gpus: Mapping[str, int] = _NONE
) -> Counts:
    """Return the sums of one repeat.

    With a window, requests and tokens count when they end or arrive inside it, whenever they were sent: a
    server that falls behind does not look as fast as its load. Costs are of the whole cell.

    Args:
        gpus: GPUs that each engine computes on, by label.
    """
    whole = group.whole
    good = whole.good
    ended = np.ones(len(good), dtype=bool)
    cell_tokens, seconds = int(good["completion_tokens"].sum()), duration_s(whole.requests)
    tokens = cell_tokens
    if group.window is not None:
        seconds = group.window.end_s - group.window.start_s
        ended = inside(good["t_end"], group.window).to_numpy(dtype=bool)
        tokens = _arrived(whole, good, group.window)
    arrival = scheduled(group.requests) - late_s(group.requests)
    cells = [machines.get(int(cell)) for cell in whole.requests["cell"].unique()]
    times = RequestTimes(good, whole.gaps)
    counted = [metric for metric in METRICS.values() if metric.fraction and metric.of]

    def cost(value: Callable[[MachineLoad], float | None]) -> float | None:
        return sum_known([None if machine is None else value(machine) for machine in cells])

    return Counts(
        seconds=seconds,
        ended=int(ended.sum()),
        good=None if slo is None else int((meets(whole, slo) & ended).sum()),
        prompt_tokens=int(prompt_tokens(good)[ended].sum()),
        output_tokens=tokens,
        arrivals=len(arrival),
        arrival_gaps=max(0, len(arrival) - 1),
        arrival_s=float(arrival.max() - arrival.min()) if len(arrival) else 0.0,
        gpu_s=seconds * gpus[group.label] if gpus.get(group.label) else None,
        cell_successes=len(good),
        cell_tokens=cell_tokens,
        engine_cpu_s=cost(lambda machine: machine.engine_cpu_s),
        joules=cost(lambda machine: machine.joules),
        joules_above_idle=cost(lambda machine: machine.joules_above_idle),
        sums={metric.name: float(np.nansum(values_of(metric, times)[ended])) for metric in counted},
    )


def total(each: Sequence[Counts]) -> Counts:
    """Return the sums of several repeats; one that is not known of each is not known."""
    names = [field.name for field in fields(Counts) if field.name != "sums"]
    totals: dict[str, Any] = {name: sum_known([getattr(counts, name) for counts in each]) for name in names}
    sums = {name: math.fsum(counts.sums[name] for counts in each) for name in each[0].sums}
    return Counts(**totals, sums=sums)


def rate_estimate(metric: Metric, each: Sequence[Counts], work: tuple[str, ...] = ()) -> Estimate | None:
    """Estimate a rate of all repeats together; None where it is unknown, or no time passed in one.

    With `work`, the prompts of each repeat, it is the mean of the repeats: none counts for more.
    """
    fractions = [metric.fraction(counts) for counts in each] if metric.fraction is not None else []
    pairs = np.array([fraction for fraction in fractions if fraction is not None and fraction[1] > NO_TIME_S])
    if len(pairs) < len(each):
        return None
    numerators, denominators = pairs.astype(np.float64).T
    rates = numerators / denominators
    value = rates.mean() if work else numerators.sum() / denominators.sum()
    return Estimate(float(value), rates, work=work)


def duration_s(requests: pd.DataFrame) -> float:
    """Return the time from the first scheduled arrival (first send without a schedule) to the last end of a
    stream, in s; 0 without one."""
    end, start = requests["t_end"].max(), scheduled(requests).min()
    return max(0.0, float(end - start)) if np.isfinite(end) and np.isfinite(start) else 0.0


def late_s(requests: pd.DataFrame) -> pd.Series[float]:
    """Return how long each request had to wait for the turn before it, in s; 0 for those that follow none."""
    return requests["late_s"].astype(np.float64).fillna(0.0)


def peak_in_flight(requests: pd.DataFrame) -> int:
    """Return the most requests of one cell that were sent and not ended at once: one that ends as another is
    sent makes room for it."""
    return int(in_flight(requests, requests["t_sent"].dropna().to_numpy(np.float64)).max(initial=0))


def meets(group: Group, slo: Slo) -> npt.NDArray[np.bool_]:
    """Return (U,) which successes meet every limit; `itl_ms` limits every token.

    An answer of one token has no time between tokens, and meets a limit on it. Any other without a value was
    not seen to: all of it came at one moment, or nothing but reasoning did.
    """
    requests = group.good
    one_token = requests["completion_tokens"].to_numpy(np.float64) < 2
    good = np.ones(len(requests), dtype=bool)
    for name, limit in slo.model_dump(exclude_none=True).items():
        sample = group.sample(name)
        met = one_token & (name != "ttfo_ms")
        met[sample.request] = True
        met[sample.request[sample.values > limit]] = False
        good &= met
    return good


def requests_within(group: Group, slo: Slo) -> npt.NDArray[np.float64]:
    """Return (requests,) 1 where a request met every limit, in the table's order; one that failed did not."""
    within = np.zeros(len(group.requests))
    within[succeeded(group.requests)] = meets(group, slo)
    return within


def _arrived(group: Group, good: pd.DataFrame, window: Window) -> int:
    """Return the tokens of the successes that came in the window. Rounding in the sum of the gaps puts no
    chunk after the last one."""
    first, last = (good[name].to_numpy(np.float64) for name in ("t_first", "t_last"))
    gaps = group.gaps
    elapsed = np.cumsum(gaps.gap_ms)
    starts = run_starts(gaps.request)
    before = np.repeat(elapsed[starts] - gaps.gap_ms[starts], np.diff(starts, append=gaps.request.size))
    later = np.minimum(first[gaps.request] + (elapsed - before) / MS, last[gaps.request])
    in_first = group.first_chunks[inside(pd.Series(first), window)].sum()
    return int(in_first) + int(gaps.tokens[inside(pd.Series(later), window)].sum())
