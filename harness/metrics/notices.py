"""Facts of cells that stay valid, which a reader must know before believing their numbers.

Facts that make a cell invalid are in `validity.py`, the words of both in `harness/report/wording.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import succeeded
from harness.metrics.rates import Machines
from harness.metrics.samples import Group, in_flight, waiting
from harness.metrics.stability import (
    behind_or_stalled,
    clocks_differ,
    disturbed,
    drift,
    growing,
    repeats_disagree,
)
from harness.metrics.validity import few_rounds, one_late, too_brief
from harness.schema.facts import Fact, Scope, Value
from harness.schema.load import Batch, ClosedLoop, Load, Ramp, RequestRate, from_light_to_heavy
from harness.schema.machines import MachineLoad
from harness.schema.metrics import latencies
from harness.schema.results import PREFIX_BLOCK_TOKENS, OnlineSummary, PrefixHits, SpeculationCount
from harness.schema.setting_types import RUNNING_SERVER

#: A lighter load is slower than a heavier one where its median is above the heavier one's by this factor.
SLOWER_FACTOR = 1.5
#: Prompt tokens beside those of a load that a cache may have: one that begins each sequence, and part of a
#: block where prompts share some.
BEGIN_TOKENS, PART_OF_A_BLOCK = 1, PREFIX_BLOCK_TOKENS
#: A chunk is large from more than so many steps' tokens on. A server that waits for the rest of a character
#: or for a stop string, or whose front end is behind for a moment, sends two to four together.
LARGE_STEPS = 4


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
    facts: list[Fact | None] = [*_inferred(group), *_hidden(group), *one_late(group)]
    facts.append(_large_chunks(group, drafted.tokens_per_step if drafted is not None else 1.0))
    whole = group.whole or group
    if isinstance(group.load, ClosedLoop):
        settled = _after(group.requests["t_sent"].to_numpy(np.float64), group.load.concurrency)
    else:
        facts.append(behind_or_stalled(whole.requests))
        settled = np.ones(len(group.requests), dtype=bool)
    kept = settled[succeeded(group.requests)]
    sent = group.good["t_sent"].to_numpy(np.float64)[kept]
    values = {name: group.metrics[name].to_numpy()[kept] for name in _drifting(group)}
    if not isinstance(group.load, Ramp):  # what changes with it is the load
        facts += drift(sent, values)
    if isinstance(group.load, RequestRate) and group.load.arrivals != "clients":  # it comes at one rate
        counts = in_flight(whole.requests, sent)
        facts += growing(sent, counts.astype(np.float64))
    facts += machine_notices(group, machines)
    if prefixes is not None:
        facts.append(_cached(group, prefixes))
    return [fact.within(group.label, group.load, group.repeat) for fact in facts if fact is not None]


def _large_chunks(group: Group, tokens_per_step: float = 1.0) -> Fact | None:
    """State that half of the tokens came in large chunks, or half of the answers began with one.

    Args:
        tokens_per_step: What the engine reports that it decodes in one step of a request.
    """
    first = group.first_chunks
    if not first.size:
        return None
    sizes, counts = np.unique(np.concatenate([first, group.gaps.tokens]), return_counts=True)
    so_far = np.cumsum(sizes * counts)
    usual = int(sizes[np.searchsorted(so_far, so_far[-1] / 2)])  # half of the tokens came in such or larger
    begin = int(np.median(first))
    most = LARGE_STEPS * tokens_per_step
    values: dict[str, Value] = {}
    if usual > most:
        values["usual"] = usual
    if begin > most:
        values["first"] = begin
    if not values:
        return None
    values["tokens_per_step"] = tokens_per_step
    icl = group.sample("icl_ms")
    if icl.n:
        values["icl_ms"] = icl.levels["p50"]
    return Fact(kind="large_chunks", values=values)


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
    cells = (group.whole or group).requests["cell"].unique()
    return [machines[int(cell)] for cell in cells if int(cell) in machines]


def begun(group: Group) -> int:
    """Number of requests of a group, or of sessions where it has those."""
    requests = (group.whole or group).requests
    return int(requests["session"].dropna().nunique()) or len(requests)


def pooled_notices(repeats: Sequence[Group], each: Sequence[OnlineSummary], machines: Machines) -> list[Fact]:
    """State what was noticed of one engine at one load: of its repeats, and between them."""
    first = repeats[0]
    facts = few_rounds(first.load, min(map(begun, repeats)))
    if len(each) > 1:
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
    return Fact(kind="slower_when_lighter", scope=Scope(engine=light.label, load=light.load), values=values)


def _others_waiting(repeats: Sequence[Group]) -> int:
    """Number of requests that waited for their first token while the median request did."""
    waits = [waiting((group.whole or group).requests) for group in repeats]
    return round(float(np.median(np.concatenate(waits)))) - 1


def _cached(group: Group, prefixes: PrefixHits) -> Fact | None:
    """State that prompts were answered from a cache that had them before, or were not and could have been, or
    that nobody reports it."""
    if prefixes.excess:
        return Fact(kind="foreign_counters", values={"excess": prefixes.excess})
    if prefixes.reported is None:
        return Fact(kind="unreported") if group.engine == RUNNING_SERVER else None
    if not prefixes.prompt_tokens:  # texts without a tokenizer
        return Fact(kind="cached", values={"share": prefixes.reported}) if prefixes.reported else None
    requests = (group.whole or group).requests
    sent = requests["reusable_tokens"].dropna()
    slack = max(BEGIN_TOKENS, _of_template(requests)) * len(sent) + PART_OF_A_BLOCK * int((sent > 0).sum())
    if prefixes.missed * prefixes.prompt_tokens > slack and prefixes.missed > prefixes.possible / 2:
        return Fact(kind="few_hits", values={"share": prefixes.reported, "possible": prefixes.possible})
    if (prefixes.reported - prefixes.possible) * prefixes.prompt_tokens <= slack:
        return None
    return Fact(kind="cached", values={"share": prefixes.reported, "possible": prefixes.possible})


def _of_template(requests: pd.DataFrame) -> int:
    """Tokens before the messages of a chat, which a server knows after the first: cached in every answer, and
    not most of a prompt."""
    cached, prompts = requests["cached_tokens"].fillna(0).min(), requests["prompt_tokens"].min()
    return int(cached) if 2 * cached <= prompts else 0


def _inferred(group: Group) -> list[Fact]:
    """State that token counts were dealt out by the length of the text."""
    sources = group.good["token_source"]
    share = float((sources == "inferred").mean()) if len(sources) else 0.0
    return [Fact(kind="inferred", values={"share": share})] if share else []


def _hidden(group: Group) -> list[Fact]:
    """State that a server counts reasoning and does not send it."""
    hidden, sent = (int(group.good[name].sum()) for name in ("hidden_tokens", "completion_tokens"))
    return [Fact(kind="hidden", values={"hidden": hidden, "tokens": hidden + sent})] if hidden else []


def inferred(good: pd.DataFrame) -> bool:
    """Tell whether the tokens of some successes were dealt out and not counted."""
    return bool((good["token_source"] == "inferred").any())


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


def _drifting(group: Group) -> list[str]:
    """Headline latencies with one value a request."""
    return [name for name in latencies("headline") if name in group.metrics.columns]


def _median(summary: OnlineSummary, metric: str) -> float:
    value = summary.latency(metric).p50
    return 0.0 if value is None or not np.isfinite(value) else value
