"""The requests that a summary is of, and the values of each metric with their requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import (
    Gaps,
    RequestTimes,
    chunk_gaps,
    pool_gaps,
    request_keys,
    request_metrics,
    successes,
    values_of,
)
from harness.metrics.percentiles import Ordered
from harness.schema.load import Load, parse_load
from harness.schema.metric import MS
from harness.schema.metrics import LATENCIES, METRICS, PERCENTILES
from harness.schema.setting_types import Window

#: Columns with times of a request that its engine measured, all of them parts of TTFT.
ENGINE_TIMES = ("queue_wait_ms", "prefill_ms")
#: A part may seem longer than the whole by so much, as two clocks differ, and so may this share of all parts.
CLOCK_FACTOR, CLOCK_MS, MOST_IMPOSSIBLE = 1.05, 1.0, 0.01

#: A given window, or that of the steady state, found in each cell by itself.
Cut = Window | Literal["steady"]


def find_window(requests: pd.DataFrame, cut: Cut) -> Window:
    """The window of one cell, within the time from its first scheduled arrival to its last end of a stream.

    The steady state begins when as many requests are in flight as in the middle of the cell, and ends when
    they were for the last time: before is the ramp-up, after it the ramp-down. That level is the median over
    the middle half of the cell's time. Of sessions these are counted: the long ones that are left at the end
    set no rate.
    """
    was_sent = requests[requests["t_sent"].notna()]
    sent, ended = (was_sent[name].dropna().to_numpy(np.float64) for name in ("t_sent", "t_end"))
    if cut == "steady" and (unit := units(was_sent)) is not None:
        spans = was_sent.groupby(unit).agg({"t_sent": "min", "t_end": "max"}).dropna()
        sent, ended = (spans[name].to_numpy(np.float64) for name in ("t_sent", "t_end"))
    if not (sent.size and ended.size):
        return Window(start_s=0, end_s=0)
    first, last = max(0.0, float(scheduled(requests).min())), float(ended.max())
    if isinstance(cut, Window):
        return Window(start_s=cut.start_s, end_s=max(cut.start_s, min(cut.end_s, last)))
    times = np.concatenate([sent, ended])
    order = np.lexsort((np.repeat([0, 1], [sent.size, ended.size]), times))
    at, count = times[order], np.cumsum(np.repeat([1, -1], [sent.size, ended.size])[order])
    lasting = np.diff(np.append(at, at[-1]))
    quarter = (last - first) / 4
    begins, ends = (np.clip(edge, first + quarter, last - quarter) for edge in (at, at + lasting))
    level = _median(count, ends - begins)
    reached = np.flatnonzero((count >= level) & (lasting > 0))
    if level == 0 or not reached.size:
        return Window(start_s=first, end_s=last)
    begin, end = at[reached[0]], at[reached[-1]] + lasting[reached[-1]]
    return Window(start_s=max(0.0, float(begin)), end_s=float(end))


def inside(times: pd.Series[float], window: Window) -> pd.Series[bool]:
    """Return which times are in the window; its end, where the cell ends, belongs to it."""
    return (times >= window.start_s) & (times <= window.end_s)


def scheduled(requests: pd.DataFrame) -> pd.Series[float]:
    """When each request was to be sent, or without a schedule was."""
    due = requests["t_sched"]
    return due.fillna(requests["t_sent"]) if due.hasnans else due


def in_flight(requests: pd.DataFrame, times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return (k,) the requests of one cell in flight at each of `times`, (k,) in s. One that is sent then is;
    one that ends then makes room for it."""
    sent, ended = requests["t_sent"].to_numpy(np.float64), requests["t_end"].to_numpy(np.float64)
    was_sent = np.isfinite(sent)
    sent, ended = (np.sort(t[was_sent & np.isfinite(t)]) for t in (sent, ended))
    return np.searchsorted(sent, times, "right") - np.searchsorted(ended, times, "right")


def waiting(requests: pd.DataFrame) -> npt.NDArray[np.int64]:
    """(k,) for each request of one cell that got a first token: how many waited for theirs at some time while
    it did, itself among them."""
    sent, first = requests["t_sent"].to_numpy(np.float64), requests["t_first"].to_numpy(np.float64)
    answered = np.isfinite(sent) & np.isfinite(first)
    sent, first = sent[answered], first[answered]
    others: npt.NDArray[np.int64] = np.searchsorted(np.sort(sent), first)
    others -= np.searchsorted(np.sort(first), sent, "right")
    return others


def _median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])


@dataclass(frozen=True, eq=False)
class Sample:
    """All values of one metric of a group. It equals only itself, so that a result is kept by it.

    Attributes:
        values: (S,) finite, in the metric's unit.
        weights: (S,) how many samples each value counts for; None: one each.
        request: (S,) position of the request that a value is of, below the number of successes.
        censored: samples of tolerated failures, which count as above all values.
        unit: (S,) the session of the request, ascending: requests of one depend on each other. None: each
            request is a unit.
    """

    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.integer] | None
    request: npt.NDArray[np.integer]
    censored: int = 0
    unit: npt.NDArray[np.float64] | None = None

    @property
    def size(self) -> int:
        """Number of values."""
        return self.values.size

    @cached_property
    def n(self) -> int:
        """Number of samples that the values count for."""
        return self.size if self.weights is None else int(self.weights.sum())

    @cached_property
    def mean(self) -> float:
        """Mean of the samples, of which there is one at least."""
        total = self.values if self.weights is None else self.values * self.weights
        return float(total.sum()) / self.n

    @cached_property
    def ordered(self) -> Ordered:
        """The samples in ascending order, of which there is one at least."""
        return Ordered(self.values, self.weights, self.censored)

    @cached_property
    def levels(self) -> dict[str, float]:
        """The percentiles that are reported, by name, of one sample at least."""
        levels = self.ordered.percentiles(PERCENTILES)
        return {f"p{q}": float(level) for q, level in zip(PERCENTILES, levels, strict=True)}


@dataclass(frozen=True)
class Group:
    """The requests of one engine at one load: one repeat, or several pooled (`repeat` is None).

    Attributes:
        requests: every request, failures included (columns of records/columns.py).
        metrics: per-request metrics of the U successes, in their order in `requests`.
        gaps: gaps of the successes, `request` below U.
        window: the time measured, of one repeat; None: all. The requests are those sent in it.
        uncut: the repeat before it was cut to the window; None: it was not.
        impossible: share of the successes for which the engine says that a part took longer than the whole
            TTFT; then no time of the engine's is left in `requests`.
    """

    engine: str
    variant: str | None
    label: str
    load: Load
    repeat: int | None
    requests: pd.DataFrame
    metrics: pd.DataFrame
    gaps: Gaps
    window: Window | None = None
    uncut: Group | None = None
    impossible: float = 0.0
    _samples: dict[str, Sample] = field(default_factory=dict, repr=False, compare=False)

    @property
    def whole(self) -> Group:
        """The group with all requests of its cells, whatever part of them is measured."""
        return self.uncut or self

    @property
    def identity(self) -> dict[str, Any]:
        """Engine, load and repeat that it is of, by the names of the fields of records."""
        return {name: getattr(self, name) for name in ("engine", "variant", "label", "load", "repeat")}

    @property
    def cell(self) -> int:
        """Number of its cell, of several the first."""
        return int(self.whole.requests["cell"].iloc[0])

    @cached_property
    def good(self) -> pd.DataFrame:
        """The rows of the successes."""
        return successes(self.requests)

    @property
    def first_chunks(self) -> npt.NDArray[np.int64]:
        """(U,) tokens in the first chunk of each success."""
        tokens = self.good["completion_tokens"].to_numpy(np.int64)
        return tokens - np.bincount(self.gaps.request, self.gaps.tokens, tokens.size).astype(np.int64)

    @cached_property
    def _tolerated(self) -> pd.DataFrame:
        """The rows of the failures that are tolerated."""
        is_tolerated = self.requests.get("tolerated", pd.Series(False, self.requests.index))
        return self.requests[is_tolerated.eq(True)]

    @cached_property
    def _units(self) -> npt.NDArray[np.float64] | None:
        """(U,) the session of each success; None without any."""
        return units(self.good)

    def _censored(self, metric: str) -> int:
        """Number of samples that the failures which are tolerated would have."""
        if METRICS[metric].by_engine or metric == "submit_lag_ms" or (failed := self._tolerated).empty:
            return 0
        if METRICS[metric].by_session:
            return int(failed["session"].nunique())
        if METRICS[metric].sample == "request":
            return len(failed)
        return int((failed["output_tokens"] - 1).clip(0).sum())

    def sample(self, metric: str) -> Sample:
        """Return the sample of a latency: one value a request, one a gap (`icl_ms`), or one a token
        (`itl_ms`)."""
        if metric not in self._samples:
            source = self.whole if METRICS[metric].by_session else self
            self._samples[metric] = by_unit(source._sample(metric), source._units)
        return self._samples[metric]

    def _sample(self, metric: str) -> Sample:
        kind = METRICS[metric].sample
        if kind == "request":
            values = self.metrics[metric].to_numpy(np.float64)
            has_value = np.isfinite(values)
            optional = METRICS[metric].like and not has_value.any()  # as a tool call, which none makes
            censored = 0 if optional else self._censored(metric)
            return Sample(values[has_value], None, np.flatnonzero(has_value), censored)
        if metric == "itl_ms" and self.gaps.one_token:
            return self.sample("icl_ms")
        values = values_of(METRICS[metric], RequestTimes(self.good, self.gaps))
        weights = self.gaps.tokens if kind == "token" else None
        return Sample(values, weights, self.gaps.request, self._censored(metric))


def split(
    requests: pd.DataFrame, chunks: pd.DataFrame, cut: Cut | None = None, labels: Iterable[str] = ()
) -> list[Group]:
    """Return one group for each engine, load and repeat.

    Engines are in the order of `labels` and then as they first appear, loads and repeats ascend. With a cut,
    a group has only the requests that were sent in its window.
    """
    gaps = chunk_gaps(chunks)
    # Columns that are Python's strings, not Arrow's, are found four times as quickly.
    requests = requests.set_axis(requests.columns.astype(object), axis="columns")
    ordered = dict.fromkeys([*labels, *requests["label"].unique()])
    rank = {label: position for position, label in enumerate(ordered)}
    groups = []
    for _, cell in requests.groupby(["label", "load", "repeat"], observed=True, sort=False):
        rows = _as_sent(cell)
        group = _group(rows, gaps)
        if cut is not None:
            window = find_window(rows, cut)
            sent_inside = rows[inside(rows["t_sent"].fillna(scheduled(rows)), window)]
            group = replace(_group(sent_inside, gaps, rows), window=window, uncut=group)
        groups.append(group)
    return sorted(groups, key=lambda group: (rank[group.label], group.load, group.repeat))


def _as_sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the requests of a cell in the order in which they were sent: turns of sessions may not be."""
    if "session" not in rows or rows["session"].isna().all():
        return rows
    return rows.iloc[np.argsort(scheduled(rows).to_numpy(np.float64), kind="stable")]


def _group(rows: pd.DataFrame, gaps: Gaps, cell: pd.DataFrame | None = None) -> Group:
    """Return the group of one repeat's requests; `cell` is the whole repeat, where `rows` may be none."""
    impossible = _impossible(successes(rows))
    if impossible > MOST_IMPOSSIBLE:
        rows = rows.assign(queue_wait_ms=np.nan, prefill_ms=np.nan)
    good = successes(rows)
    first = (rows if cell is None else cell).iloc[0]
    group_gaps = gaps.of(request_keys(good))
    return Group(
        engine=str(first["engine"]),
        variant=None if pd.isna(first["variant"]) else str(first["variant"]),
        label=str(first["label"]),
        load=parse_load(first["load"]),
        repeat=int(first["repeat"]),
        requests=rows,
        metrics=request_metrics(good, group_gaps),
        gaps=group_gaps,
        impossible=impossible if impossible > MOST_IMPOSSIBLE else 0.0,
    )


def _impossible(good: pd.DataFrame) -> float:
    """Return the share of answers of which a part of TTFT, as the engine times it, is longer than TTFT."""
    names = [name for name in ENGINE_TIMES if name in good]
    if good.empty or not names:
        return 0.0
    first, sent = (good[name].to_numpy(np.float64) for name in ("t_first", "t_sent"))
    ttft_ms = (first - sent) * MS
    longest = np.fmax.reduce([good[name].to_numpy(np.float64) for name in names])
    return float((longest > CLOCK_FACTOR * ttft_ms + CLOCK_MS).mean())


def by_load(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield the repeats of each engine at each load, from the order that `split` gives."""
    for _, repeats in groupby(groups, key=lambda group: (group.label, group.load)):
        yield list(repeats)


def pool(groups: Sequence[Group]) -> Group:
    """Return the repeats of one engine at one load as one group."""
    first = groups[0]
    of_sessions = {
        name: _joined([group.sample(name) for group in groups])
        for name in LATENCIES
        if METRICS[name].by_session and first.uncut is not None
    }
    samples = of_sessions if len(groups) > 1 else first._samples | of_sessions
    pooled = replace(first, repeat=None, window=None, uncut=None, _samples=samples)
    if len(groups) == 1:
        return pooled
    return replace(
        pooled,
        impossible=0.0,
        requests=pd.concat([group.requests for group in groups]),
        metrics=pd.concat([group.metrics for group in groups]),
        gaps=pool_gaps([group.gaps for group in groups], [len(group.metrics) for group in groups]),
    )


def units(requests: pd.DataFrame) -> npt.NDArray[np.float64] | None:
    """Return (n,) the session of each request, one of none having a number of its own; None without any."""
    if "session" not in requests or requests["session"].isna().all():
        return None
    sessions = requests["session"].to_numpy(np.float64)
    return np.where(np.isnan(sessions), -1.0 - np.arange(sessions.size), sessions)


def by_unit(sample: Sample, unit: npt.NDArray[np.float64] | None) -> Sample:
    """Return the sample with its values ordered by unit."""
    if unit is None:
        return sample
    of_values = unit[sample.request]
    order = np.argsort(of_values, kind="stable")
    weights = None if sample.weights is None else sample.weights[order]
    request, ordered = sample.request[order], of_values[order]
    return replace(sample, values=sample.values[order], weights=weights, request=request, unit=ordered)


def _joined(samples: Sequence[Sample]) -> Sample:
    """Return the values of several groups, each of a request of its own, as one sample."""
    values = np.concatenate([sample.values for sample in samples])
    return Sample(values, None, np.arange(values.size), sum(sample.censored for sample in samples))


def column(table: pd.DataFrame, name: str) -> npt.NDArray[np.float64]:
    """Return a column as floats, NaN where it is null or the table has none."""
    return table[name].to_numpy(np.float64) if name in table else np.full(len(table), np.nan)
