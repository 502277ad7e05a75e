"""Facts of what a server's own page said during a cell, joined by time with the cell's requests.

A reading holds until the next one. How much slower requests were meanwhile is the mean time of a unit (to the
first token, or of an output token) while something holds, over that in the rest of the time; a wait or a gap
that is partly in both counts for each by its part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.samples import Group, in_flight
from harness.schema.facts import Fact, Value

Floats = npt.NDArray[np.float64]

#: Share of a KV cache from which on it is full: a request that grows may not find a block.
FULL_CACHE = 0.95
#: A page may show the state of so many seconds before: gauges are set after some steps.
STALE_S = 5.0
#: Fewest waits, or tokens, on both sides of a ratio.
MIN_UNITS = 5
#: A gap of no length lies in one of two states all the same.
_INSTANT_S = 1e-6


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

    Preempted requests, a full KV cache, and requests that this cell has not sent.
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
