"""The notices of cells: everything that a reader must know before believing their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.chunk_sizes import large_chunks
from harness.metrics.definitions import succeeded
from harness.metrics.digits import digits, per_cent
from harness.metrics.samples import Group
from harness.metrics.stability import (
    clocks_differ,
    disturbed,
    drift,
    growing_queue,
    repeats_disagree,
)
from harness.metrics.validity import few_rounds, one_late, too_brief
from harness.metrics.window import in_flight, waiting
from harness.schema.cell_notice import CellNotice
from harness.schema.engine_ref import RUNNING_SERVER
from harness.schema.load import Batch, ClosedLoop, Load, Ramp, RequestRate, from_light_to_heavy
from harness.schema.machines import MachineLoad
from harness.schema.metrics import METRICS, latencies
from harness.schema.online_summary import OnlineSummary
from harness.schema.repeat_number import repeat_text
from harness.schema.results import PREFIX_BLOCK_TOKENS, PrefixHits
from harness.schema.speculation import SpeculationCount

#: What the machine did during each cell, by cell.
Machines = Mapping[int, MachineLoad]

#: A lighter load is slower than a heavier one where its median is above the heavier one's by this factor.
SLOWER_FACTOR = 1.5
#: Prompt tokens beside those of a load that a cache may have: one that begins each sequence, and part of a
#: block where prompts share some.
BEGIN_TOKENS, PART_OF_A_BLOCK = 1, PREFIX_BLOCK_TOKENS


def cell_notices(
    group: Group,
    machines: Machines,
    prefixes: PrefixHits | None = None,
    drafted: SpeculationCount | None = None,
) -> list[CellNotice]:
    """What was noticed of one cell. Its load is judged as a whole, whatever part of it is measured.

    Args:
        prefixes: what a prefix cache had of its prompts; None: not known.
        drafted: what the engine reports of speculative decoding; None: nothing.
    """
    if isinstance(group.load, Batch):
        return machine_notices(group, machines)
    found: list[CellNotice | None] = [*_inferred(group), *_hidden(group), *one_late(group)]
    found.append(large_chunks(group, drafted.tokens_per_step if drafted is not None else 1.0))
    whole = group.whole or group
    if isinstance(group.load, ClosedLoop):
        settled = _after(group.requests["t_sent"].to_numpy(np.float64), group.load.concurrency)
    else:
        found.append(growing_queue(whole.requests))
        settled = np.ones(len(group.requests), dtype=bool)
    kept = settled[succeeded(group.requests)]
    sent = group.good["t_sent"].to_numpy(np.float64)[kept]
    values = {METRICS[name].label: group.metrics[name].to_numpy()[kept] for name in _drifting(group)}
    if not isinstance(group.load, Ramp):  # what changes with it is the load
        found += drift(sent, values)
    if isinstance(group.load, RequestRate) and group.load.arrivals != "clients":  # it comes at one rate
        counts = in_flight(whole.requests, sent).astype(np.float64)
        found += drift(sent, {"requests in flight": counts}, unit="", rising="growing")
    found += machine_notices(group, machines)
    if prefixes is not None:
        found.append(_cached(group, prefixes))
    return [notice for notice in found if notice is not None]


def machine_notices(group: Group, machines: Machines) -> list[CellNotice]:
    """What else used the machine, or slowed it down, in the cells of a group."""
    ours = group.engine != RUNNING_SERVER
    return [
        notice
        for machine in machine_loads(group, machines)
        for notice in disturbed(machine, engine_is_ours=ours)
    ]


def machine_loads(group: Group, machines: Machines) -> list[MachineLoad]:
    """What the machine did in the cells of a group, where it was watched."""
    cells = (group.whole or group).requests["cell"].unique()
    return [machines[int(cell)] for cell in cells if int(cell) in machines]


def begun(group: Group) -> int:
    """The requests of a group, or the sessions where it has those."""
    requests = (group.whole or group).requests
    return int(requests["session"].dropna().nunique()) or len(requests)


def pooled_notices(
    repeats: Sequence[Group], each: Sequence[OnlineSummary], machines: Machines
) -> list[CellNotice]:
    """What was noticed of one engine at one load: of its repeats, and between them."""
    short = few_rounds(repeats[0].load, min(map(begun, repeats)))
    if len(each) == 1:
        noticed = each[0].notices
    else:
        medians = {
            METRICS[name].label: [_median(summary, name) for summary in each]
            for name in latencies("headline")
        }
        noticed = [] if isinstance(repeats[0].load, Batch) else repeats_disagree(medians)
        noticed += [
            CellNotice(kind=notice.kind, text=f"{repeat_text(summary.repeat)}: {notice.text}")
            for summary in each
            for notice in summary.notices
        ]
        if repeats[0].engine != RUNNING_SERVER:
            noticed += clocks_differ([load for group in repeats for load in machine_loads(group, machines)])
    return [notice for notice in (short, *noticed) if notice is not None]


def with_order(
    summaries: Sequence[OnlineSummary], repeats: Mapping[tuple[str, Load], Sequence[Group]]
) -> Iterator[OnlineSummary]:
    """The summaries; those of a load that was slower than a heavier one of the same engine say so.

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
        mine = [load for label, load in pooled if label == summary.label]
        loads = from_light_to_heavy(load for load in mine if load.kind == summary.load.kind)
        if summary.repeat is None and summary.load in loads:
            heavier = (pooled[summary.label, load] for load in loads[loads.index(summary.load) + 1 :])
            slower = (found for heavy in heavier if (found := _slower(summary, heavy, repeats)) is not None)
            notices += islice(slower, 1)
        yield summary.model_copy(update={"notices": notices})


def with_brief(summaries: Iterable[OnlineSummary], wanted_s: float) -> Iterator[OnlineSummary]:
    """The summaries; those of all repeats say so where one was measured for too short a time."""
    shortest: dict[tuple[str, Load], float] = {}
    for summary in summaries:
        cell, notices = (summary.label, summary.load), list(summary.notices)
        if summary.repeat is not None:
            shortest[cell] = min(summary.duration_s, shortest.get(cell, summary.duration_s))
        elif (brief := too_brief(shortest[cell], wanted_s)) is not None:
            notices.append(brief)
        yield summary.model_copy(update={"notices": notices})


def _slower(
    light: OnlineSummary, heavy: OnlineSummary, repeats: Mapping[tuple[str, Load], Sequence[Group]]
) -> CellNotice | None:
    a, b = _median(light, "ttft_ms"), _median(heavy, "ttft_ms")
    if not b or a <= SLOWER_FACTOR * b:
        return None
    text = f"TTFT p50 is {digits(a)} ms, and {digits(b)} ms at a heavier load ({heavy.load})"
    mine, its = (_others_waiting(repeats[summary.label, summary.load]) for summary in (light, heavy))
    if mine > its:
        text += (
            f"; a prompt waited for its first token together with {mine} others, there with {its} (medians)"
        )
    return CellNotice(kind="order", text=text)


def _others_waiting(repeats: Sequence[Group]) -> int:
    """Of the median request: how many others waited for their first token at some time while it did."""
    return (
        round(np.median(np.concatenate([waiting((group.whole or group).requests) for group in repeats]))) - 1
    )


def _cached(group: Group, prefixes: PrefixHits) -> CellNotice | None:
    """Whether prompts were answered from a cache that had them before, or nobody says."""
    if prefixes.reported is None:
        if group.engine != RUNNING_SERVER:
            return None
        text = (
            "the server does not report prompt tokens from a cache, so it is not known whether it had "
            "seen some of the prompts before"
        )
        return CellNotice(kind="unreported", text=text)
    if not prefixes.prompt_tokens:  # texts without a tokenizer
        if not prefixes.reported:
            return None
        text = (
            f"{per_cent(prefixes.reported)} of the prompt tokens came from a cache; without a tokenizer it "
            "is not known how many of them were sent before in this cell, and TTFT may be too short"
        )
        return CellNotice(kind="cached", text=text)
    requests = (group.whole or group).requests
    sent = requests["reusable_tokens"].dropna()
    slack = max(BEGIN_TOKENS, _of_template(requests)) * len(sent) + PART_OF_A_BLOCK * int((sent > 0).sum())
    if (prefixes.reported - prefixes.possible) * prefixes.prompt_tokens <= slack:
        return None
    text = (
        f"{per_cent(prefixes.reported)} of the prompt tokens came from a cache, and only "
        f"{per_cent(prefixes.possible)} were sent before in this cell: "
        "the server knew the prompts from elsewhere, and TTFT is too short"
    )
    return CellNotice(kind="cached", text=text)


def _of_template(requests: pd.DataFrame) -> int:
    """Tokens before the messages of a chat, which a server knows after the first: cached in every answer, and
    not most of a prompt."""
    cached, prompts = requests["cached_tokens"].fillna(0).min(), requests["prompt_tokens"].min()
    return int(cached) if 2 * cached <= prompts else 0


def _inferred(group: Group) -> Iterator[CellNotice]:
    """Token counts that were dealt out by the length of the text."""
    sources = group.good["token_source"]
    share = float((sources == "inferred").mean()) if len(sources) else 0.0
    if share:
        text = (
            f"ITL is inferred from the length of the text: in {per_cent(share)} of the answers "
            "several tokens come in a chunk, and the server does not report how many"
        )
        yield CellNotice(kind="inferred", text=text)


def _hidden(group: Group) -> Iterator[CellNotice]:
    """Reasoning that a server counts and keeps to itself."""
    hidden, sent = (int(group.good[name].sum()) for name in ("hidden_tokens", "completion_tokens"))
    if hidden:
        text = (
            f"{hidden:,} of {hidden + sent:,} output tokens ({per_cent(hidden / (hidden + sent))}) were "
            "reasoning that the server counted and did not send: they are in no rate, TPOT or ITL, and TTFT "
            "includes the time that they took"
        )
        yield CellNotice(kind="hidden", text=text)


def inferred(good: pd.DataFrame) -> bool:
    """Whether the tokens of some successes were dealt out and not counted."""
    return bool((good["token_source"] == "inferred").any())


def _after(sent: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.bool_]:
    """Which requests were sent after the first `count`; of those sent at once, the first in the table are."""
    held = np.sort(sent[np.isfinite(sent)])
    if held.size <= count:
        return np.zeros(sent.size, dtype=bool)
    last = held[count - 1]
    later = sent > last
    later[np.flatnonzero(sent == last)[count - int(np.searchsorted(held, last)) :]] = True
    return np.asarray(later, dtype=bool)


def _drifting(group: Group) -> list[str]:
    """Headline latencies with one value a request."""
    return [name for name in latencies("headline") if name in group.metrics.columns]


def _median(summary: OnlineSummary, metric: str) -> float:
    value = summary.latency(metric).p50
    return 0.0 if value is None or not np.isfinite(value) else value
