"""From the raw tables to one `OnlineSummary` per engine, load and repeat, and one per engine and load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

import numpy as np
import pandas as pd

from harness.metrics.costs import costs
from harness.metrics.estimates import Estimates, Point, distribution, measure, of_metric
from harness.metrics.intervals import Ends, own
from harness.metrics.notices import (
    Machines,
    cell_notices,
    inferred,
    pooled_notices,
    with_brief,
    with_order,
)
from harness.metrics.rates import NO_TIME_S, Flow, flow, peak_in_flight, requests_within, total
from harness.metrics.samples import Group, by_load, split
from harness.metrics.validity import clients_of, discredit, invalid_reasons, scored
from harness.metrics.waterfall import Reported, reported_mean, waterfall
from harness.metrics.window import Cut, scheduled
from harness.schema.facts import Fact
from harness.schema.fairness import TaskScores
from harness.schema.limits import Slo
from harness.schema.load import Load
from harness.schema.machines import Calibration
from harness.schema.metrics import LATENCIES, METRICS
from harness.schema.results import Distribution, OnlineSummary, PrefixHits, Speculation

Seen = TypeVar("Seen", PrefixHits, Speculation)


class Known(TypedDict, total=False):
    """What is known of a run's cells beside the tables."""

    #: The service level that a request of the goodput meets; without it goodput is None.
    slo: Slo | None
    #: What client processes sustain; None: not known, and not judged by.
    calibration: Calibration | None
    #: What the engines' histograms say of each cell.
    reported: Reported | None
    #: Engines whose answers are wrong, by label, and why: their cells are invalid.
    wrong: Mapping[str, Fact] | None
    #: What else the machine did during each cell.
    machines: Machines | None
    #: What a prefix cache had of each cell's prompts.
    prefixes: Sequence[PrefixHits]
    #: Seconds that a cell was to be measured.
    wanted_s: float
    #: GPUs that each engine computes on, by label.
    gpus: Mapping[str, int]
    #: What the engines score in the accuracy task.
    scores: TaskScores | None
    #: What the engines report of speculative decoding in each cell.
    drafted: Sequence[Speculation]


def summarize(
    requests: pd.DataFrame, chunks: pd.DataFrame, *, cut: Cut | None = None, **known: Unpack[Known]
) -> list[OnlineSummary]:
    """Summarize the two tables of records/columns.py.

    Args:
        requests: One row a request, of any number of cells.
        chunks: One row a token-carrying chunk of those requests.
        cut: The part of each cell that is measured; None: all.

    Returns:
        For each engine as it first appears and each load ascending: its repeats, then all of them pooled
        (`repeat` None).
    """
    points = [measure(repeats, known.get("slo")) for repeats in by_load(split(requests, chunks, cut))]
    return summarize_points(points, **known)


def summarize_points(points: Sequence[Point], **known: Unpack[Known]) -> list[OnlineSummary]:
    """`summarize` of what is estimated already."""
    summaries = []
    slo, reported, machines = known.get("slo"), known.get("reported") or {}, known.get("machines") or {}
    hits, counts = _by_cell(known.get("prefixes", ())), _by_cell(known.get("drafted", ()))
    for point in points:
        cells = zip(point.repeats, point.each, strict=True)
        each = []
        for group, found in cells:
            place = (group.label, group.load, group.repeat)
            count = None if (spoken := counts.get(place)) is None else spoken.count
            noticed = {"notices": cell_notices(group, machines, hits.get(place), count)}
            summary = _summary(group, [group], found, slo, known.get("calibration"), reported)
            each.append(summary.model_copy(update=costs([group], machines) | noticed))
        notices = pooled_notices(point.repeats, each, machines)
        if len(each) == 1:
            pooled = each[0].model_copy(update={"repeat": None, "notices": notices})
        else:
            pooled = _summary(point.pooled, point.repeats, point.found, slo, None, reported)
            judgement = {**_judgement(each), "notices": notices}
            pooled = pooled.model_copy(update=costs(point.repeats, machines) | judgement)
        summaries += [*each, pooled]
    wrong, scores = known.get("wrong") or {}, known.get("scores")
    summaries = [_per_gpu(summary, known.get("gpus") or {}) for summary in summaries]
    judged = [scored(discredit(summary, wrong.get(summary.label)), scores) for summary in summaries]
    repeats = {(point.pooled.label, point.pooled.load): point.repeats for point in points}
    return list(with_brief(with_order(judged, repeats), known.get("wanted_s", 0.0)))


def _judgement(repeats: Sequence[OnlineSummary]) -> dict[str, Any]:
    """Fields of the pooled summary that tell whether all of the repeats can be believed."""
    reasons = [reason for summary in repeats for reason in summary.invalid_reasons]
    return {
        "valid": not reasons,
        "invalid_reasons": reasons,
        "clients_needed": clients_of(reasons) or None,
    }


def _per_gpu(summary: OnlineSummary, gpus: Mapping[str, int]) -> OnlineSummary:
    count = gpus.get(summary.label, 0)
    if not count:
        return summary
    ends = summary.rates_ci.get("output_tok_per_s")
    share = {} if ends is None else {"output_tok_per_s_per_gpu": (ends[0] / count, ends[1] / count)}
    rate = {"output_tok_per_s_per_gpu": summary.output_tok_per_s / count}
    return summary.model_copy(update=rate | {"rates_ci": summary.rates_ci | share})


def _rates_ci(found: Estimates) -> dict[str, Ends]:
    rates = {metric: known for (metric, _), known in found.items() if not METRICS[metric].is_latency}
    return {metric: ends for metric, known in rates.items() if (ends := own(known)) is not None}


def _by_cell(seen: Sequence[Seen]) -> dict[tuple[str, Load, int | None], Seen]:
    return {(cell.label, cell.load, cell.repeat): cell for cell in seen}


def _summary(
    group: Group,
    repeats: Sequence[Group],
    found: Estimates,
    slo: Slo | None,
    calibration: Calibration | None,
    reported: Reported,
) -> OnlineSummary:
    requests, good = group.requests, group.good
    errors = requests["error"].dropna().astype(str).value_counts()
    passed = total([flow(group, slo) for group in repeats])
    latencies = {name: distribution(group.sample(name), of_metric(found, name)) for name in LATENCIES}
    unknown = [name for name in LATENCIES if METRICS[name].by_engine and not latencies[name].n]
    latencies |= {name: _engine_reported(good, name, reported) for name in unknown}
    if inferred(good):
        latencies["itl_ms"] = latencies["itl_ms"].model_copy(update={"source": "inferred"})
    reasons = invalid_reasons(group, calibration)
    return OnlineSummary(
        engine=group.engine,
        variant=group.variant,
        label=group.label,
        load=group.load,
        repeat=group.repeat,
        num_requests=len(requests),
        num_success=len(good),
        num_error=len(requests) - len(good),
        errors={str(kind): int(count) for kind, count in sorted(errors.items())},
        duration_s=passed.seconds,
        offered_req_per_s=_offered(repeats, passed),
        req_per_s=passed.per_s(passed.ended),
        output_tok_per_s=passed.per_s(passed.output_tokens),
        total_tok_per_s=passed.per_s(passed.prompt_tokens + passed.output_tokens),
        goodput_req_per_s=None if passed.good is None else passed.per_s(passed.good),
        slo_met=None if slo is None or requests.empty else _slo_met(repeats, slo),
        prompt_tokens=passed.prompt_tokens,
        completion_tokens=passed.output_tokens,
        chunks=int(good["chunks"].sum()),
        rates_ci=_rates_ci(found),
        peak_in_flight=max(peak_in_flight((group.whole or group).requests) for group in repeats),
        valid=not reasons,
        invalid_reasons=reasons,
        clients_needed=clients_of(reasons) or None,
        window_s=None if group.window is None else (group.window.start_s, group.window.end_s),
        left_out=sum(len((group.whole or group).requests) - len(group.requests) for group in repeats),
        later_turns=int(requests["late_s"].notna().sum()),
        late_turns=int((_late_s(requests) > 0).sum()),
        waterfall=waterfall(good, reported),
        **latencies,
    )


def _slo_met(repeats: Sequence[Group], slo: Slo) -> float:
    return float(np.concatenate([requests_within(group, slo) for group in repeats]).mean())


def _engine_reported(good: pd.DataFrame, metric: str, reported: Reported) -> Distribution:
    """Only an engine knows its queue and its prefill: without each request's, the mean by its histograms."""
    found = reported_mean(good, reported, metric)
    if found is None:
        return Distribution(source="unknown")
    return Distribution(mean=found.mean_ms, n=found.n, source="inferred")


def _late_s(requests: pd.DataFrame) -> pd.Series[float]:
    """How long each request had to wait for the turn before it; 0 for those that follow none."""
    return requests["late_s"].astype(np.float64).fillna(0.0)


def _offered(repeats: Sequence[Group], passed: Flow) -> float:
    """Arrivals a second by the schedule: intervals over their length, or requests over duration. A turn that
    had to wait arrives at its own time."""
    spans = [scheduled(group.requests) - _late_s(group.requests) for group in repeats if len(group.requests)]
    length = math.fsum(span.max() - span.min() for span in spans)
    if np.isfinite(length) and length > NO_TIME_S:
        return sum(len(span) - 1 for span in spans) / length
    return passed.per_s(sum(len(span) for span in spans))
