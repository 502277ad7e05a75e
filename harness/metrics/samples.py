"""The requests that a summary is of, and the values of each metric with their requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import RequestTimes, request_metrics, succeeded, values_of
from harness.metrics.gaps import Gaps, chunk_gaps, pool_gaps, request_keys
from harness.metrics.percentiles import Ordered
from harness.metrics.window import Cut, find_window, inside, scheduled
from harness.schema.load import Load, parse_load
from harness.schema.metrics import METRICS, PERCENTILES
from harness.schema.setting_types import Window


@dataclass(frozen=True, eq=False)
class Sample:
    """All values of one metric of a group. It equals only itself, so that a result is kept by it.

    Attributes:
        values: (S,) finite, in the metric's unit.
        weights: (S,) how many samples each value counts for; None: one each.
        request: (S,) position of the request that a value is of, below the number of successes.
    """

    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.integer] | None
    request: npt.NDArray[np.integer]

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
        return Ordered(self.values, self.weights)

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
        whole: the repeat before it was cut to the window.
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
    whole: Group | None = None
    _samples: dict[str, Sample] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def good(self) -> pd.DataFrame:
        """The rows of the successes."""
        return self.requests[succeeded(self.requests)]

    @property
    def first_chunks(self) -> npt.NDArray[np.int64]:
        """(U,) tokens in the first chunk of each success."""
        tokens = self.good["completion_tokens"].to_numpy(np.int64)
        return tokens - np.bincount(self.gaps.request, self.gaps.tokens, tokens.size).astype(np.int64)

    def sample(self, metric: str) -> Sample:
        """Return the sample of a latency: one value a request, one a gap (`icl_ms`), or one a token
        (`itl_ms`)."""
        if metric not in self._samples:
            self._samples[metric] = self._sample(metric)
        return self._samples[metric]

    def _sample(self, metric: str) -> Sample:
        kind = METRICS[metric].sample
        if kind == "request":
            values = self.metrics[metric].to_numpy(np.float64)
            has_value = np.isfinite(values)
            return Sample(values[has_value], None, np.flatnonzero(has_value))
        if metric == "itl_ms" and self.gaps.one_token:
            return self.sample("icl_ms")
        values = values_of(METRICS[metric], RequestTimes(self.good, self.gaps))
        return Sample(values, self.gaps.tokens if kind == "token" else None, self.gaps.request)


def split(
    requests: pd.DataFrame, chunks: pd.DataFrame, cut: Cut | None = None, labels: Iterable[str] = ()
) -> list[Group]:
    """Return one group for each engine, load and repeat.

    Engines are in the order of `labels` and then as they first appear, loads and repeats ascend. With a cut,
    a group has only the requests that were sent in its window.
    """
    gaps = chunk_gaps(chunks)
    ordered = dict.fromkeys([*labels, *requests["label"].unique()])
    rank = {label: position for position, label in enumerate(ordered)}
    groups = []
    for rows in map(_as_sent, cells_of(requests, ["label", "load", "repeat"])):
        group = _group(rows, gaps)
        if cut is not None:
            window = find_window(rows, cut)
            sent_inside = rows[inside(rows["t_sent"].fillna(scheduled(rows)), window)]
            group = replace(_group(sent_inside, gaps, rows), window=window, whole=group)
        groups.append(group)
    return sorted(groups, key=lambda group: (rank[group.label], group.load, group.repeat))


def cells_of(requests: pd.DataFrame, by: list[str]) -> Iterator[pd.DataFrame]:
    """Yield the rows of each cell, which has values of its own in the columns `by`, in the table's order."""
    for _, rows in requests.groupby(by, observed=True, sort=False):
        yield rows


def _as_sent(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the requests of a cell in the order in which they were sent: turns of sessions may not be."""
    if "session" not in rows or rows["session"].isna().all():
        return rows
    return rows.iloc[np.argsort(scheduled(rows).to_numpy(np.float64), kind="stable")]


def _group(rows: pd.DataFrame, gaps: Gaps, cell: pd.DataFrame | None = None) -> Group:
    """Return the group of one repeat's requests; `cell` is the whole repeat, where `rows` may be none."""
    good = rows[succeeded(rows)]
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
    )


def load_of(rows: pd.DataFrame) -> Load:
    """Return the load of rows that all have the same."""
    return parse_load(rows["load"].iloc[0])


def by_load(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Yield the repeats of each engine at each load, from the order that `split` gives."""
    for _, repeats in groupby(groups, key=lambda group: (group.label, group.load)):
        yield list(repeats)


def pool(groups: Sequence[Group]) -> Group:
    """Return the repeats of one engine at one load as one group."""
    first = groups[0]
    if len(groups) == 1:
        return replace(first, repeat=None, window=None, whole=None)
    return Group(
        engine=first.engine,
        variant=first.variant,
        label=first.label,
        load=first.load,
        repeat=None,
        requests=pd.concat([group.requests for group in groups]),
        metrics=pd.concat([group.metrics for group in groups]),
        gaps=pool_gaps([group.gaps for group in groups], [len(group.metrics) for group in groups]),
    )
