"""From the raw tables to one `OnlineSummary` per engine, load and repeat, and one per engine and load."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import prompt_tokens
from harness.metrics.estimates import Estimates, Point, distribution, measure, of_metric
from harness.metrics.intervals import CONFIDENCE, Measurement, own_interval
from harness.metrics.notices import cell_notices, pooled_notices, with_brief, with_order
from harness.metrics.rates import Machines, late_s, peak_in_flight, requests_within, total
from harness.metrics.samples import Group, by_load, in_flight
from harness.metrics.token_notices import with_less_work
from harness.metrics.validity import clients_of, discredit, invalid_reasons, scored
from harness.schema.facts import Fact, Value
from harness.schema.fairness import Part, ReportedMean, Source, TaskScores, Waterfall, WaterfallPart
from harness.schema.limits import Slo
from harness.schema.load import Load
from harness.schema.machines import Calibration
from harness.schema.metric import MS, Counts
from harness.schema.metrics import LATENCIES, METRICS
from harness.schema.results import Distribution, OnlineSummary, PrefixCount, PrefixHits, Speculation

#: Means by the engine's histograms: metric by cell.
Reported = Mapping[int, Mapping[str, ReportedMean]]

#: Requests of which slopes between all pairs are taken: at least, and at most, as they grow with the square.
LEAST_PAIRED, MOST_PAIRED = 10, 1000

Floats = npt.NDArray[np.float64]

#: Share of a KV cache from which on it is full: a request that grows may not find a block.
FULL_CACHE = 0.95
#: A page may show the state of so many seconds before: gauges are set after some steps.
STALE_S = 5.0
#: Fewest waits, or tokens, on both sides of a ratio.
MIN_UNITS = 5
#: A gap of no length lies in one of two states all the same.
_INSTANT_S = 1e-6


def waterfall(good: pd.DataFrame, reported: Reported) -> Waterfall | None:
    """The mean request of `good`, U successes of any cells (columns of records/columns.py); None for U = 0,
    and where the times of first tokens are not known.

    A request's HTTP part ends with the head of the response. Some servers send the head when the request is
    with the engine already; what the engine says then bounds it: it was over before the queue began, so it is
    at most TTFT - queue - prefill. Others hold the head back until they have the first token: a head that is
    nearer to that than to the sending says nothing.
    """
    if good.empty or good["t_first"].isna().any():
        return None
    sent, first = _column(good, "t_sent"), _column(good, "t_first")
    lag, ttft = (sent - _column(good, "t_sched")) * MS, (first - sent) * MS
    queue, prefill = _column(good, "queue_wait_ms"), _column(good, "prefill_ms")
    head = _column(good, "t_head")
    began = np.where(head - sent < first - head, (head - sent) * MS, np.nan)
    http = np.clip(began, 0, np.maximum(ttft - np.nan_to_num(queue) - np.nan_to_num(prefill), 0))
    queue_part, queue = _engine_part("queue", queue, good, reported, "queue_wait_ms")
    prefill_part, prefill = _engine_part("prefill", prefill, good, reported, "prefill_ms")
    delivery = ttft - http - queue - prefill
    parts = [
        _part("client lag", lag, "measured", "the client's clock"),
        _part("http", http, "measured", "the head of the response, as the client saw it"),
        queue_part,
        prefill_part,
        _part("delivery", delivery, "inferred", "what the parts before leave over, where all are known"),
    ]
    mean_ttft = float(ttft.mean())
    rest = mean_ttft - math.fsum(part.mean_ms or 0.0 for part in parts[1:])
    how = "what the other parts leave over"
    parts.append(WaterfallPart(part="unexplained", mean_ms=rest, n=len(good), source="inferred", how=how))
    total = mean_ttft + (parts[0].mean_ms or 0.0)
    return Waterfall(n=len(good), total_ms=total, ttft_ms=mean_ttft, parts=parts)


def reported_mean(requests: pd.DataFrame, reported: Reported, metric: str) -> ReportedMean | None:
    """The histograms' mean over all cells of `requests`; None where no cell has one."""
    means = [reported[cell][metric] for cell in requests["cell"].unique() if metric in reported.get(cell, {})]
    count = sum(mean.n for mean in means)
    if not count:
        return None
    return ReportedMean(mean_ms=math.fsum(mean.mean_ms * mean.n for mean in means) / count, n=count)


def _engine_part(
    part: Part, values: Floats, good: pd.DataFrame, reported: Reported, metric: str
) -> tuple[WaterfallPart, Floats]:
    """From each request's own metrics, else the mean of its cell; and the values (U,) that it is made of."""
    if np.isfinite(values).any():
        return _part(part, values, "measured", "the engine, for each request"), values
    means = {cell: means[metric].mean_ms for cell, means in reported.items() if metric in means}
    of_cell: npt.NDArray[np.float64] = np.asarray(good["cell"].map(means), np.float64)
    how = "the engine's histograms, the mean of all requests of the cell"
    return _part(part, of_cell, "inferred", how), of_cell


def _part(part: Part, values: Floats, source: Source, how: str) -> WaterfallPart:
    """The mean over all, those of which nothing is known counting as 0. A part takes no less than no time."""
    n = int(np.isfinite(values).sum())
    if not n:
        return WaterfallPart(part=part, mean_ms=None, n=0, source="unknown", how="not reported")
    mean = max(float(np.nan_to_num(values).sum() / len(values)), 0.0)
    return WaterfallPart(part=part, mean_ms=mean, n=n, source=source, how=how)


def _column(table: pd.DataFrame, name: str) -> Floats:
    return table[name].to_numpy(np.float64)


#: Counters of a server may grow by so many times the prompt tokens of a cell, and by so many tokens a request
#: for its template.
MOST_COUNTED, TEMPLATE_TOKENS = 1.5, 64
UNKNOWN = "unknown: the engine does not report it"
USAGE = "usage of the answers: prompt_tokens_details.cached_tokens"


def prefix_hits(
    cells: Iterable[Group], counted: Mapping[int, PrefixCount], caching: Collection[str] = ()
) -> list[PrefixHits]:
    """One entry a cell, in their order, over all requests that were sent.

    Args:
        counted: By cell, what the engine's counters said. Where the answers' usage says it, that is taken
            instead; a request without it had nothing cached, as vLLM and SGLang leave a 0 out. Counters that
            grew by far more than was sent are somebody else's too, and say nothing of the cell.
        caching: Labels of the engines that may have a prefix cache.
    """
    return [_hits(group.whole, counted, caching) for group in cells]


def _hits(group: Group, counted: Mapping[int, PrefixCount], caching: Collection[str]) -> PrefixHits:
    cell, good = group.requests, group.good
    sent = cell["reusable_tokens"].notna()
    sent_tokens = int(cell["input_tokens"][sent].sum())
    reported, source, excess = None, UNKNOWN, 0.0
    count = counted.get(group.cell)
    prompts = max(sent_tokens, float(np.nansum(prompt_tokens(cell))))
    if count and prompts and count.queries > MOST_COUNTED * prompts + TEMPLATE_TOKENS * len(cell):
        excess, count = count.queries / prompts, None
    if good["cached_tokens"].notna().any():
        reported, source = _share(good["cached_tokens"].sum(), np.nansum(prompt_tokens(good))), USAGE
        excess = 0.0
    elif count:
        reported, source = _share(count.hits, count.queries), count.source
    return PrefixHits(
        **group.identity,
        prompt_tokens=sent_tokens,
        possible=_share(cell["reusable_tokens"].sum(), sent_tokens),
        reported=reported,
        source=source,
        by_cache={cache: _share(n, count.queries) for cache, n in count.by_cache.items()} if count else {},
        excess=excess,
        missed=_missed(cell, reported or 0.0) if group.label in caching else 0.0,
    )


def cached_slope(group: Group | None) -> Measurement | None:
    """Return by how many ms TTFT grows where 10 % more of a prompt is cached, and the 95 % interval.

    The median of the slopes between all pairs of requests (Sen, Journal of the American Statistical
    Association 63, 1968). None where fewer than 10 requests say it, or all have the same share.
    """
    if group is None:
        return None
    cached = group.good["cached_tokens"].to_numpy(np.float64)
    if not np.isfinite(cached).any():
        cached = group.good["reusable_tokens"].to_numpy(np.float64)
    share = np.nan_to_num(cached)[:MOST_PAIRED] / prompt_tokens(group.good)[:MOST_PAIRED]
    ttft_ms = group.metrics["ttft_ms"].to_numpy(np.float64)[:MOST_PAIRED]
    paired = np.isfinite(share) & np.isfinite(ttft_ms)
    if paired.sum() < LEAST_PAIRED or np.ptp(share[paired]) == 0:
        return None
    from scipy.stats import theilslopes  # half a second to import

    slope = theilslopes(ttft_ms[paired], share[paired], CONFIDENCE)
    return Measurement(slope.slope, (slope.low_slope, slope.high_slope)).times(0.1)


def _missed(cell: pd.DataFrame, reported: float) -> float:
    """Return the share of the prompt tokens that a cache could have had and had not.

    Requests that were sent before the first answer began could find nothing.
    """
    after = cell["t_sent"] > cell["t_first"].min()
    return max(0.0, _share(cell["reusable_tokens"][after].sum(), cell["input_tokens"].sum()) - reported)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


Reports = TypeVar("Reports", PrefixHits, Speculation)


@dataclass(frozen=True)
class SummaryInputs:
    """Inputs of a run's summaries beside the tables."""

    #: The service level that a request of the goodput meets; without it goodput is None.
    slo: Slo | None = None
    #: The rates that client processes sustain; None: unknown, and not judged by.
    calibration: Calibration | None = None
    #: Means of each cell by the engines' histograms.
    reported: Reported = field(default_factory=dict)
    #: Engines whose answers are wrong, by label, and why: their cells are invalid.
    wrong: Mapping[str, Fact] = field(default_factory=dict)
    #: Load of the machine during each cell.
    machines: Machines = field(default_factory=dict)
    #: Share of each cell's prompts that a prefix cache had.
    prefixes: Sequence[PrefixHits] = ()
    #: Seconds that a cell was to be measured.
    wanted_s: float = 0.0
    #: Scores of the engines in the accuracy task.
    scores: TaskScores | None = None
    #: Reports of the engines on speculative decoding in each cell.
    drafted: Sequence[Speculation] = ()
    #: Readings of the servers' own pages, of all cells.
    server: pd.DataFrame | None = None


def summarize(groups: Sequence[Group], inputs: SummaryInputs) -> list[OnlineSummary]:
    """Summarize the repeats of each engine at each load, in their order, and then all of them pooled."""
    points = [measure(repeats, inputs.slo, inputs.machines) for repeats in by_load(groups)]
    return summarize_points(points, inputs)


def summarize_points(points: Sequence[Point], inputs: SummaryInputs) -> list[OnlineSummary]:
    """Summarize points that were measured with the same service level and machines."""
    summaries = []
    hits, drafted, machines = _by_cell(inputs.prefixes), _by_cell(inputs.drafted), inputs.machines
    readings = {} if inputs.server is None else dict(iter(inputs.server.groupby("cell")))
    for point in points:
        each = []
        for group, counts, estimates in zip(point.repeats, point.counts, point.each, strict=True):
            place = (group.label, group.load, group.repeat)
            draft = drafted.get(place)
            summary = _summary(group, [group], [counts], estimates, inputs)
            notices = cell_notices(group, machines, hits.get(place), draft.count if draft else None)
            notices += page_facts(group, readings[group.cell]) if group.cell in readings else []
            each.append(_with_sources(summary.model_copy(update={"notices": notices})))
        notices = pooled_notices(point.repeats, each, machines)
        if len(each) == 1:
            pooled = each[0].model_copy(update={"repeat": None, "notices": notices})
        else:
            unjudged = replace(inputs, calibration=None)  # its repeats are judged
            pooled = _summary(point.pooled, point.repeats, point.counts, point.estimates, unjudged)
            reasons = [reason for summary in each for reason in summary.invalid_reasons]
            judgement = {"valid": not reasons, "invalid_reasons": reasons, "notices": notices}
            clients = clients_of(reasons) or None
            pooled = _with_sources(pooled.model_copy(update={**judgement, "clients_needed": clients}))
        summaries += [*each, pooled]
    judged = [
        scored(discredit(summary, inputs.wrong.get(summary.label)), inputs.scores) for summary in summaries
    ]
    repeats = {(point.pooled.label, point.pooled.load): point.repeats for point in points}
    return list(with_brief(with_less_work(with_order(judged, repeats), repeats), inputs.wanted_s))


def _with_sources(summary: OnlineSummary) -> OnlineSummary:
    """Mark latencies of which the moments of tokens are inferred by its notices."""
    kinds = {fact.kind for fact in summary.notices}
    marked = {"itl_ms"} if kinds & {"inferred", "miscounted", "extra_chunk"} else set()
    marked |= {"itl_ms", "tpot_ms"} if "estimated" in kinds else set()
    if any(fact.kind == "extra_chunk" or "first" in fact.values for fact in summary.notices):
        marked.add("ttft_ms")
    return summary.model_copy(
        update={name: summary.latency(name).model_copy(update={"source": "inferred"}) for name in marked}
    )


def _rate_fields(passed: Counts, estimates: Estimates) -> dict[str, Any]:
    """Return every rate by its name, and the intervals: `NAME_ci` where a summary has such a field."""
    values = {name: metric.rate(passed) for name, metric in METRICS.items() if metric.fraction is not None}
    ends = {name: end for name in values if (end := own_interval(estimates.get((name, name)))) is not None}
    fields = {f"{name}_ci": end for name, end in ends.items() if f"{name}_ci" in OnlineSummary.model_fields}
    together = {name: end for name, end in ends.items() if f"{name}_ci" not in fields}
    return values | fields | {"rates_ci": together}


def _by_cell(reports: Sequence[Reports]) -> dict[tuple[str, Load, int | None], Reports]:
    return {(cell.label, cell.load, cell.repeat): cell for cell in reports}


def _summary(
    group: Group,
    repeats: Sequence[Group],
    each: Sequence[Counts],
    estimates: Estimates,
    inputs: SummaryInputs,
) -> OnlineSummary:
    requests, good, slo, reported = group.requests, group.good, inputs.slo, inputs.reported
    errors = requests["error"].dropna().astype(str).value_counts()
    passed = total(each)
    latencies = {name: distribution(group.sample(name), of_metric(estimates, name)) for name in LATENCIES}
    unknown = [name for name in LATENCIES if METRICS[name].by_engine and not latencies[name].n]
    latencies |= {name: _engine_reported(good, name, reported) for name in unknown}
    reasons = invalid_reasons(group, inputs.calibration)
    met = None if slo is None else np.concatenate([requests_within(repeat, slo) for repeat in repeats])
    return OnlineSummary(
        **group.identity,
        num_requests=len(requests),
        num_success=len(good),
        num_error=len(requests) - len(good),
        resent=int(requests["resent"].sum()) if "resent" in requests else 0,
        errors={str(kind): int(count) for kind, count in sorted(errors.items())},
        duration_s=passed.seconds,
        slo_met=None if met is None or requests.empty else float(met.mean()),
        prompt_tokens=passed.prompt_tokens,
        completion_tokens=passed.output_tokens,
        chunks=int(good["chunks"].sum()),
        peak_in_flight=max(peak_in_flight(group.whole.requests) for group in repeats),
        valid=not reasons,
        invalid_reasons=reasons,
        clients_needed=clients_of(reasons) or None,
        window_s=None if group.window is None else (group.window.start_s, group.window.end_s),
        left_out=sum(len(group.whole.requests) - len(group.requests) for group in repeats),
        later_turns=int(requests["late_s"].notna().sum()),
        late_turns=int((late_s(requests) > 0).sum()),
        waterfall=waterfall(good, reported),
        engine_cpu_s=passed.engine_cpu_s,
        joules=passed.joules,
        joules_above_idle=passed.joules_above_idle,
        **_rate_fields(passed, estimates),
        **latencies,
    )


def _engine_reported(good: pd.DataFrame, metric: str, reported: Reported) -> Distribution:
    """Return a latency that only an engine knows (queue, prefill) without each request's: the mean by its
    histograms."""
    mean = reported_mean(good, reported, metric)
    if mean is None:
        return Distribution(source="unknown")
    return Distribution(mean=mean.mean_ms, n=mean.n, source="inferred")


@dataclass(frozen=True)
class Waits:
    """Times that requests waited, in s since the cell's start: (n,) from and to, and the units that came."""

    begin: Floats
    end: Floats
    units: Floats

    def slower_while(self, edges: Floats, holds: npt.NDArray[np.bool_]) -> float | None:
        """Return the time of a unit while something holds over that of the rest; None: too few units.

        Args:
            edges: (k + 1,) times, ascending.
            holds: (k,) whether it holds from one to the next.
        """
        held_s = np.concatenate([[0.0], np.cumsum(np.diff(edges) * holds)])
        begin = np.minimum(self.begin, self.end - _INSTANT_S)
        lasting = self.end - begin
        during = np.interp(self.end, edges, held_s) - np.interp(begin, edges, held_s)
        inside = float(self.units @ (during / lasting))
        outside = float(self.units.sum()) - inside
        if min(inside, outside) < MIN_UNITS:
            return None
        return float((during.sum() / inside) / ((lasting - during).sum() / outside))


def waits(group: Group) -> dict[str, Waits]:
    """Return the waits for first tokens and for output tokens of a cell's successes."""
    sent, first = (group.good[name].to_numpy(np.float64) for name in ("t_sent", "t_first"))
    answered = np.isfinite(first)
    gaps = group.gaps
    lasting = gaps.gap_ms / 1e3
    so_far = np.cumsum(lasting)
    starts = np.searchsorted(gaps.request, gaps.request)  # of each gap the first of its request
    end = first[gaps.request] + so_far - (so_far - lasting)[starts]
    return {
        "ttft_times": Waits(sent[answered], first[answered], np.ones(int(answered.sum()))),
        "tpot_times": Waits(end - lasting, end, gaps.tokens.astype(np.float64)),
    }


def page_facts(group: Group, readings: pd.DataFrame) -> list[Fact]:
    """State what the readings of one cell (columns of records/columns.py) say that its latencies measure.

    Preempted requests, a full KV cache, and requests that this cell has not sent. A reading holds until the
    next one. How much slower requests were meanwhile is the mean time of a unit (to the first token, or of an
    output token) while something holds, over that in the rest of the time; a wait or a gap that is partly in
    both counts for each by its part.
    """
    requests = group.whole.requests
    begin, end = float(requests["t_sent"].min()), float(requests["t_end"].max())
    if not begin < end or not (readings["t"] < end).any():
        return []
    t = readings["t"].to_numpy(np.float64)
    values = {name: readings[name].to_numpy(np.float64) for name in ("preemptions", "kv_usage")}
    others, before = _others(requests, readings)
    preempted = np.append(np.diff(values["preemptions"]) > 0, False)
    states: list[tuple[str, npt.NDArray[np.bool_], dict[str, Value]]] = [
        ("preempted", preempted, {"preemptions": float(np.nanmax(np.append(values["preemptions"], 0)))}),
        ("full_cache", values["kv_usage"] > FULL_CACHE, {}),
        ("others_requests", others > 0, {"most": float(others.max())}),
    ]
    if before:
        states[-1][2]["before"] = before
    edges = np.clip(np.append(t, max(end, t[-1])), begin, end)
    edges[0] = begin
    facts = []
    for kind, holds, of_kind in states:
        share = float((np.diff(edges) * holds).sum()) / (end - begin)
        if share:
            times = {name: each.slower_while(edges, holds) for name, each in waits(group).items()}
            slower = {name: ratio for name, ratio in times.items() if ratio is not None}
            facts.append(Fact.of(kind, **of_kind, share=share, **slower))
    return [fact.within(group.label, group.load, group.repeat) for fact in facts]


def _others(requests: pd.DataFrame, readings: pd.DataFrame) -> tuple[Floats, float]:
    """Return (k,) for each reading the requests on the page that cannot be of this cell, and those before it.

    The page may be stale, so the most of the cell's own that were in flight shortly before are taken off. It
    may show the warm-up until it has changed, or for as long.
    """
    t, took = readings["t"].to_numpy(np.float64), readings["took_ms"].to_numpy(np.float64) / 1e3
    on_page = readings[["running", "waiting"]].sum(axis=1).to_numpy(np.float64)
    sent = np.sort(requests["t_sent"].dropna().to_numpy(np.float64))
    counts = in_flight(requests, sent)
    first, last = np.searchsorted(sent, t - STALE_S), np.searchsorted(sent, t + took, "right")
    later = [counts[a:b].max(initial=0) for a, b in zip(first, last, strict=True)]
    most_sent = np.maximum(in_flight(requests, t - STALE_S), later)
    fresh = np.maximum.accumulate((on_page != on_page[0]) | (t > sent[0] + STALE_S)) & (t >= sent[0])
    others: Floats = np.where(fresh, np.maximum(on_page - most_sent, 0), 0)
    waited = t[0] < sent[0] and fresh.any() and others[fresh][0] > 0
    return others, float(on_page[t < sent[0]][-1]) if waited else 0.0
