"""Facts of cells that stay valid, which a reader must know before believing their numbers.

Facts that make a cell invalid are in `validity.py`, the words of both in `harness/report/wording.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import gammaln

from harness.metrics.definitions import succeeded
from harness.metrics.percentiles import Ordered, missing
from harness.metrics.rates import Machines
from harness.metrics.samples import Group, column, in_flight, waiting
from harness.metrics.stability import (
    behind_or_stalled,
    clocks_differ,
    disturbed,
    drift,
    growing,
    repeats_disagree,
)
from harness.metrics.token_notices import count_notices, other_models
from harness.metrics.validity import few_rounds, lag_limit_ms, one_late, too_brief, wrong_calls
from harness.schema.facts import Fact, Value
from harness.schema.load import Batch, ClosedLoop, Load, Ramp, RateSeries, RequestRate, from_light_to_heavy
from harness.schema.machines import MachineLoad
from harness.schema.metric import MS
from harness.schema.metrics import latencies
from harness.schema.results import PREFIX_BLOCK_TOKENS, OnlineSummary, PrefixHits, SpeculationCount
from harness.schema.setting_types import RUNNING_SERVER

#: A lighter load is slower than a heavier one where its median is above the heavier one's by this factor.
SLOWER_FACTOR = 1.5
#: The first requests of a closed loop are stated at this p-value, by so many of the slowest at least, and
#: where p99 with them is above that without by this factor.
OPENING_P, OPENING_LEAST, OPENING_FACTOR = 1e-3, 3, 1.1
#: A server knows a prompt again where its TTFT is below this share of that of a new one.
KNOWN_AGAIN = 0.7
#: Prompt tokens beside those of a load that a cache may have: one that begins each sequence, and part of a
#: block where prompts share some.
BEGIN_TOKENS, PART_OF_A_BLOCK = 1, PREFIX_BLOCK_TOKENS
#: With speculative decoding, a chunk is large from more than so many steps' tokens on: a front end that is
#: behind for a moment sends those of two to four steps together.
LARGE_STEPS = 4
#: A response ends late where it goes on after its last token for longer than both, by their medians.
LATE_END_MS, LATE_END_SHARE = 1.0, 0.05


def cell_notices(
    group: Group,
    machines: Machines,
    prefixes: PrefixHits | None = None,
    drafted: SpeculationCount | None = None,
) -> list[Fact]:
    """State what was noticed of one cell. Its load is judged as a whole, whatever part of it is measured.

    Args:
        prefixes: what a prefix cache had of its prompts; None: not known.
        drafted: what the engine reports of speculative decoding; None: nothing.
    """
    if isinstance(group.load, Batch):
        return machine_notices(group, machines)
    facts: list[Fact | None] = [*count_notices(group), *one_late(group), *_connections(group)]
    facts += _turns_waited(whole := group.whole)
    facts += _late_end(group)
    facts += [fact for fact in wrong_calls(group) if fact.kind == "some_invalid_calls"]
    facts.append(_large_chunks(group, drafted.tokens_per_step if drafted is not None else None))
    if isinstance(group.load, ClosedLoop):
        settled = _after(group.requests["t_sent"].to_numpy(np.float64), group.load.concurrency)
        if group.uncut is None:
            facts += _opening(group, settled[succeeded(group.requests)])
    else:
        facts.append(behind_or_stalled(whole.requests))
        settled = np.ones(len(group.requests), dtype=bool)
    kept = settled[succeeded(group.requests)]
    sent = group.good["t_sent"].to_numpy(np.float64)[kept]
    names = [name for name in latencies("headline") if name in group.metrics.columns]
    values = {name: group.metrics[name].to_numpy()[kept] for name in names}
    if not isinstance(group.load, Ramp | RateSeries):  # what changes with it is the load
        facts += drift(sent, values)
    if isinstance(group.load, RequestRate) and group.load.arrivals != "clients":  # it comes at one rate
        counts = in_flight(whole.requests, sent)
        facts += growing(sent, counts.astype(np.float64))
    facts += machine_notices(group, machines)
    if prefixes is not None:
        facts.append(_cached(group, prefixes))
    return [fact.within(group.label, group.load, group.repeat) for fact in facts if fact is not None]


def _opening(group: Group, is_later: npt.NDArray[np.bool_]) -> list[Fact]:
    """State that the first requests of a closed loop, sent at once, have most of the slowest TTFTs.

    As many as are in flight are the first. If they were like the others, how many of them are among the m
    slowest, a quarter of their number and at least 3, would be hypergeometric: Fisher's exact test (Journal
    of the Royal Statistical Society 98, 1935) at OPENING_P. And p99 is OPENING_FACTOR times the others'.

    Args:
        is_later: (U,) which successes were sent after the first.
    """
    ttft_ms = group.metrics["ttft_ms"].to_numpy(np.float64)
    is_later, ttft_ms = is_later[np.isfinite(ttft_ms)], ttft_ms[np.isfinite(ttft_ms)]
    first = int(np.count_nonzero(~is_later))
    if not 0 < first < ttft_ms.size:
        return []
    slowest = np.argsort(-ttft_ms, kind="stable")[: max(OPENING_LEAST, first // 4)]
    among = int(np.count_nonzero(~is_later[slowest]))
    if at_least_by_chance(among, ttft_ms.size, first, slowest.size) >= OPENING_P:
        return []
    p90, p99 = (float(level) for level in Ordered(ttft_ms, None).percentiles([90, 99]))
    later_p90, later_p99 = (float(level) for level in Ordered(ttft_ms[is_later], None).percentiles([90, 99]))
    if p99 < OPENING_FACTOR * later_p99:
        return []
    later = {"later_p90_ms": later_p90, "later_p99_ms": later_p99}
    return [Fact.of("opening", requests=first, ttft_p90_ms=p90, ttft_p99_ms=p99, **later)]


def at_least_by_chance(least: int, total: int, first: int, drawn: int) -> float:
    """Return the probability that `least` or more of `drawn` out of `total` are among the first `first`."""
    among = np.arange(max(least, first + drawn - total), min(first, drawn) + 1)
    ways = _log_ways(first, among) + _log_ways(total - first, drawn - among)
    return float(np.exp(ways - _log_ways(total, drawn)).sum())


def _log_ways(total: int, drawn: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the logarithm of how many ways there are to draw so many of `total`."""
    return gammaln(total + 1) - gammaln(np.add(drawn, 1)) - gammaln(np.subtract(total + 1, drawn))  # type: ignore[no-any-return]


def _turns_waited(group: Group) -> list[Fact]:
    """State that turns with times of their own were sent late, as those before them had not ended."""
    late_s = group.requests["late_s"]
    turns, late = int(late_s.notna().sum()), int((late_s > 0).sum())
    return [Fact.of("turns_waited", late=late, turns=turns)] if 2 * late > turns else []


def _large_chunks(group: Group, tokens_per_step: float | None = None) -> Fact | None:
    """State that half of the tokens came in chunks of several steps, or half of the answers began with one.

    TTFT is then an interval: the first token was there at most as long before its chunk as the others of the
    chunk take, by the request's TPOT.

    Args:
        tokens_per_step: What the engine reports that it decodes in one step of a request; None: one.
    """
    first = group.first_chunks
    if not first.size:
        return None
    sizes, counts = np.unique(np.concatenate([first, group.gaps.tokens]), return_counts=True)
    so_far = np.cumsum(sizes * counts)
    usual = int(sizes[np.searchsorted(so_far, so_far[-1] / 2)])  # half of the tokens came in such or larger
    begin = int(np.median(first))
    most = 1.0 if tokens_per_step is None else LARGE_STEPS * tokens_per_step
    values: dict[str, Value] = {}
    if usual > most:
        values["usual"] = usual
    if begin > most:
        values["first"] = begin
        before_ms = (first - (tokens_per_step or 1.0)).clip(0) * group.metrics["tpot_ms"].to_numpy()
        ttft_ms = group.metrics["ttft_ms"].to_numpy()
        if np.isfinite(before_ms).any():
            values["ttft_ms"] = float(np.nanmedian(ttft_ms))
            values["ttft_low_ms"] = float(np.nanmedian((ttft_ms - before_ms).clip(0)))
    if not values:
        return None
    if tokens_per_step is not None:
        values["tokens_per_step"] = tokens_per_step
    icl = group.sample("icl_ms")
    if icl.n:
        values["icl_ms"] = icl.levels["p50"]
    return Fact.of("large_chunks", **values)


def _late_end(group: Group) -> Iterator[Fact]:
    """State that responses went on after their last token, which is in the rates and not in E2E."""
    end_s, e2e_ms = (group.good["t_end"] - group.good["t_last"]).median(), group.metrics["e2e_ms"].median()
    if end_s * MS > max(LATE_END_MS, LATE_END_SHARE * e2e_ms):
        yield Fact.of("late_end", end_ms=float(end_s * MS), e2e_ms=float(e2e_ms))


def machine_notices(group: Group, machines: Machines) -> list[Fact]:
    """State what else used the machine, or slowed it down, in the cells of a group."""
    ours = group.engine != RUNNING_SERVER
    return [
        fact.within(group.label, group.load, group.repeat)
        for machine in machine_loads(group, machines)
        for fact in disturbed(machine, engine_is_ours=ours)
    ]


def machine_loads(group: Group, machines: Machines) -> list[MachineLoad]:
    """Load of the machine in the cells of a group, where it was watched."""
    cells = group.whole.requests["cell"].unique()
    return [machines[int(cell)] for cell in cells if int(cell) in machines]


def begun(group: Group) -> int:
    """Number of requests of a group, or of sessions where it has those."""
    requests = group.whole.requests
    return int(requests["session"].dropna().nunique()) or len(requests)


def pooled_notices(repeats: Sequence[Group], each: Sequence[OnlineSummary], machines: Machines) -> list[Fact]:
    """State what was noticed of one engine at one load: of its repeats, and between them."""
    first = repeats[0]
    facts = few_rounds(first.load, min(map(begun, repeats)))
    if len(each) > 1:
        named = [group.good.reindex(columns=["other_models", "adapter"]) for group in repeats]
        facts += [fact for fact in other_models(pd.concat(named)) if fact.kind == "other_model"]
        facts += repeats_disagree(
            {name: [_median(summary, name) for summary in each] for name in latencies("headline")}
        )
        if first.engine != RUNNING_SERVER:
            facts += clocks_differ([load for group in repeats for load in machine_loads(group, machines)])
    of_all = [fact.within(first.label, first.load) for fact in facts]
    return [*of_all, *(fact for summary in each for fact in summary.notices)]


def with_order(
    summaries: Sequence[OnlineSummary], repeats: Mapping[tuple[str, Load], Sequence[Group]]
) -> Iterator[OnlineSummary]:
    """Add a fact to the summaries of a load that was slower than a heavier one of the same engine.

    Args:
        repeats: The cells of each label and load.
    """
    pooled = {
        (summary.label, summary.load): summary
        for summary in summaries
        if summary.repeat is None and summary.valid
    }
    for summary in summaries:
        notices = list(summary.notices)
        pooled_loads = [load for label, load in pooled if label == summary.label]
        loads = from_light_to_heavy(load for load in pooled_loads if load.kind == summary.load.kind)
        if summary.repeat is None and summary.load in loads:
            heavier = (pooled[summary.label, load] for load in loads[loads.index(summary.load) + 1 :])
            slower = (
                slower_fact
                for heavy in heavier
                if (slower_fact := _slower(summary, heavy, repeats)) is not None
            )
            notices += islice(slower, 1)
        yield summary.model_copy(update={"notices": notices})


def with_brief(summaries: Iterable[OnlineSummary], wanted_s: float) -> Iterator[OnlineSummary]:
    """Add a fact to the summaries of all repeats where one was measured for too short a time."""
    shortest: dict[tuple[str, Load], float] = {}
    for summary in summaries:
        cell, notices = (summary.label, summary.load), list(summary.notices)
        if summary.repeat is not None:
            shortest[cell] = min(summary.duration_s, shortest.get(cell, summary.duration_s))
        elif (brief := too_brief(shortest[cell], wanted_s)) is not None:
            notices.append(brief.within(summary.label, summary.load))
        yield summary.model_copy(update={"notices": notices})


def _slower(
    light: OnlineSummary, heavy: OnlineSummary, repeats: Mapping[tuple[str, Load], Sequence[Group]]
) -> Fact | None:
    a, b = _median(light, "ttft_ms"), _median(heavy, "ttft_ms")
    if not b or a <= SLOWER_FACTOR * b:
        return None
    values: dict[str, Value] = {"heavier": str(heavy.load), "ttft_ms": a, "heavier_ttft_ms": b}
    waiting, fewer = (_others_waiting(repeats[summary.label, summary.load]) for summary in (light, heavy))
    if waiting > fewer:
        values |= {"waiting": waiting, "heavier_waiting": fewer}
    return Fact.of("slower_when_lighter", light.label, **values).within(load=light.load)


def _others_waiting(repeats: Sequence[Group]) -> int:
    """Number of requests that waited for their first token while the median request did."""
    waits = [waiting(group.whole.requests) for group in repeats]
    return round(float(np.median(np.concatenate(waits)))) - 1


def _cached(group: Group, prefixes: PrefixHits) -> Fact | None:
    """State that prompts were answered from a cache that had them before, or were not and could have been, or
    that nobody reports it."""
    if prefixes.excess:
        return Fact.of("foreign_counters", excess=prefixes.excess)
    if prefixes.reported is None:
        return Fact.of("unreported") if group.engine == RUNNING_SERVER else None
    requests = group.whole.requests
    if not prefixes.prompt_tokens:  # texts without a tokenizer
        of_template = 0 < requests["cached_tokens"].sum() <= _of_template(requests) * len(requests)
        is_expected = not prefixes.reported or of_template or requests["session"].notna().any()
        return None if is_expected else Fact.of("cached", share=prefixes.reported)
    sent = requests["reusable_tokens"].dropna()
    slack = max(BEGIN_TOKENS, _of_template(requests)) * len(sent) + PART_OF_A_BLOCK * int((sent > 0).sum())
    if prefixes.missed * prefixes.prompt_tokens > slack and prefixes.missed > prefixes.possible / 2:
        return Fact.of("few_hits", share=prefixes.reported, possible=prefixes.possible)
    if (prefixes.reported - prefixes.possible) * prefixes.prompt_tokens <= slack:
        return None
    return Fact.of("cached", share=prefixes.reported, possible=prefixes.possible)


def hidden_cache(first_ms: Sequence[float], again_ms: Sequence[float], cached_tokens: int) -> Iterator[Fact]:
    """State that prompts had their first token sooner when they came again, unreported.

    All of the second times are below all of the first, which chance does once in 252 times with five of each,
    and their median is below KNOWN_AGAIN of the first ones'.

    Args:
        first_ms: (n,) TTFT of prompts that are new.
        again_ms: (n,) TTFT of the same ones, right after their first answers.
        cached_tokens: Tokens that the server reports as cached meanwhile.
    """
    first, again = float(np.median(first_ms)), float(np.median(again_ms))
    if not cached_tokens and max(again_ms) < min(first_ms) and again < KNOWN_AGAIN * first:
        yield Fact.of("hidden_cache", first_ms=first, again_ms=again, prompts=len(first_ms))


def _of_template(requests: pd.DataFrame) -> int:
    """Tokens before the messages of a chat, which a server knows after the first, or each of its slots does:
    cached in most answers, and not most of a prompt."""
    cached = requests["cached_tokens"][requests["cached_tokens"] > 0]
    is_in_most = 2 * len(cached) > len(requests)
    return int(cached.min()) if is_in_most and 2 * cached.min() <= requests["prompt_tokens"].min() else 0


def _connections(group: Group) -> Iterator[Fact]:
    """State that requests were sent again, or waited for a connection longer than a client may be late."""
    requests = group.whole.requests
    if resent := int((column(requests, "resent") > 0).sum()):
        yield Fact.of("resent", resent=resent, requests=len(requests))
    if failed := int(np.nansum(column(requests, "tolerated"))):
        yield Fact.of("tolerated", failed=failed, requests=len(requests))
    yield from _retried(group)
    waits_ms = column(group.requests, "connecting_s") * MS
    if not group.sample("ttft_ms").size:
        return
    limit_ms = lag_limit_ms(group)
    slow = int((waits_ms > limit_ms).sum())
    if slow > max(1, len(waits_ms) // 100):
        most_ms = float(np.nanmax(waits_ms))
        yield Fact.of("slow_connect", slow=slow, requests=len(waits_ms), limit_ms=limit_ms, most_ms=most_ms)


def _retried(group: Group) -> Iterator[Fact]:
    """State that requests were sent again, with TTFT from the first and from the last time."""
    tries = column(group.requests, "retries")
    if not np.nansum(tries):
        return
    values: dict[str, Value] = {"retried": int((tries > 0).sum()), "requests": len(tries)}
    values["tries"] = int(np.nansum(tries))
    sample = group.sample("ttft_ms")
    if sample.size:
        again, sent = (column(group.good, name)[sample.request] for name in ("t_retry", "t_sent"))
        last_ms = sample.values - np.nan_to_num(again - sent) * MS
        for name, ordered in (("", sample.ordered), ("last_", Ordered(last_ms, None, sample.censored))):
            shown = [50] if missing(99, ordered.n) else [50, 99]
            levels = zip(shown, ordered.percentiles(shown), strict=True)
            values |= {f"{name}p{q}_ms": float(level) for q, level in levels if np.isfinite(level)}
    yield Fact.of("retried", **values)


def _after(sent: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.bool_]:
    """Return (n,) which requests were sent after the first `count`.

    Of requests sent at once, the first in the table are among these.
    """
    in_order = np.sort(sent[np.isfinite(sent)])
    if in_order.size <= count:
        return np.zeros(sent.size, dtype=bool)
    last = in_order[count - 1]
    later = sent > last
    later[np.flatnonzero(sent == last)[count - int(np.searchsorted(in_order, last)) :]] = True
    return np.asarray(later, dtype=bool)


def _median(summary: OnlineSummary, metric: str) -> float:
    value = summary.latency(metric).p50
    return 0.0 if value is None or not np.isfinite(value) else value
