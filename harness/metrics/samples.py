"""What a summary is made of: which requests, and the values of each metric with their requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics import on_disk
from harness.metrics.chunk_parts import Chunks
from harness.metrics.definitions import RequestTimes, request_metrics, succeeded, values_of
from harness.metrics.gaps import (
    Gaps,
    GroupGaps,
    TableGaps,
    pooled_gaps,
    request_keys,
    run_starts,
    table_gaps,
)
from harness.metrics.long_frames import argsort, compress, concat, flatnonzero, select_rows
from harness.metrics.percentiles import Ordered
from harness.metrics.window import Cut, find_window, inside, scheduled
from harness.schema.load import Load, TraceLoad, parse_load
from harness.schema.metrics import METRICS, PERCENTILES
from harness.schema.setting_types import Window

_IDENTITY = ("engine", "variant", "label", "repeat")


class Values(NamedTuple):
    """Some values of a metric, all of each request that has one.

    Attributes:
        values: (S,) finite.
        weights: (S,) how many samples each value counts for; None: one each.
        request: (S,) position of the request it is of, below the number of successes.
    """

    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.integer] | None
    request: npt.NDArray[np.integer]


class Sample:
    """Values of one metric, as of `Values`. Equal only to itself: what is computed of it is computed once."""

    def __init__(
        self,
        values: npt.NDArray[np.float64],
        weights: npt.NDArray[np.integer] | None,
        request: npt.NDArray[np.integer],
    ) -> None:
        self.values, self.weights, self.request = values, weights, request

    def parts(self) -> Iterator[Values]:
        """All values."""
        yield Values(self.values, self.weights, self.request)

    def ordered(self) -> Ordered:
        """The values in ascending order. There must be some."""
        return Ordered.of(self.values, self.weights)

    @cached_property
    def _totals(self) -> tuple[int, int, float, float, float]:
        """Values, samples, their sum, the smallest and the largest value."""
        size, n, total, least, most = 0, 0, 0.0, np.inf, -np.inf
        for values, weights, _ in self.parts():
            size += values.size
            n += values.size if weights is None else int(weights.sum())
            total += float((values if weights is None else values * weights).sum())
            least = min(least, float(values.min(initial=np.inf)))
            most = max(most, float(values.max(initial=-np.inf)))
        return size, n, total, least, most

    @property
    def size(self) -> int:
        """How many values there are."""
        return self._totals[0]

    @property
    def n(self) -> int:
        """How many samples the values count for."""
        return self._totals[1]

    @property
    def mean(self) -> float:
        """There must be values."""
        return self._totals[2] / self.n

    @property
    def least(self) -> float:
        """The smallest value; there must be some."""
        return self._totals[3]

    @property
    def most(self) -> float:
        """The largest value; there must be some."""
        return self._totals[4]

    @cached_property
    def levels(self) -> dict[str, float]:
        """The percentiles that are reported, by name. There must be values."""
        found = self.ordered().percentiles(PERCENTILES)
        return {f"p{q}": float(level) for q, level in zip(PERCENTILES, found, strict=True)}


class LongSample(Sample):
    """Values that are too many to be held, as those of chunks can be: only `parts` has them, each time anew.

    Args:
        make: gives the parts.
        of: the samples whose values these are, if any.
    """

    def __init__(self, make: Callable[[], Iterator[Values]], of: Sequence[Sample]) -> None:
        self._make, self._of = make, of

    def parts(self) -> Iterator[Values]:
        return self._make()

    def ordered(self) -> Ordered:
        return self._ordered

    @cached_property
    def _ordered(self) -> Ordered:
        """On the disk, and so kept."""
        if self._of and all(isinstance(sample, LongSample) for sample in self._of):
            return Ordered.together([sample.ordered() for sample in self._of if sample.size])
        return Ordered.of_parts((part.values, part.weights) for part in self.parts())


@dataclass(frozen=True)
class Group:
    """The requests of one engine at one load: one repeat, or several pooled (`repeat` is None).

    Attributes:
        requests: every request, failures included (columns of records/columns.py).
        metrics: per-request metrics of the U successes, in their order in `requests`.
        gaps: of the successes, `request` below U.
        window: the time measured, of one repeat; None: all. The requests are those sent in it.
        whole: the repeat before it was cut to the window.
        pooled: the repeats that it is, if any.
    """

    engine: str
    variant: str | None
    label: str
    load: Load
    repeat: int | None
    requests: pd.DataFrame
    metrics: pd.DataFrame
    gaps: GroupGaps
    window: Window | None = None
    whole: Group | None = None
    pooled: Sequence[Group] = ()
    _samples: dict[str, Sample] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def good(self) -> pd.DataFrame:
        """The rows of the successes."""
        return select_rows(self.requests, succeeded(self.requests))

    @property
    def first_chunks(self) -> npt.NDArray[np.int64]:
        """(U,) tokens in the first chunk of each success."""
        tokens = on_disk.array(len(self.metrics), np.int64)
        tokens[:] = self.good["completion_tokens"].to_numpy()
        for part in self.gaps.parts():
            which = slice(None) if part.requests is None else part.requests
            count = len(tokens) if part.requests is None else part.requests.size
            tokens[which] -= np.bincount(part.gaps.request, part.gaps.tokens, count).astype(np.int64)
        return tokens

    def sample(self, metric: str) -> Sample:
        """The samples of a latency: one a request, one a gap (`icl_ms`), or one a token (`itl_ms`)."""
        if metric not in self._samples:
            self._samples[metric] = self._sample(metric)
        return self._samples[metric]

    def _sample(self, metric: str) -> Sample:
        kind = METRICS[metric].sample
        if kind == "request":
            values = self.metrics[metric].to_numpy(np.float64)
            known = np.isfinite(values)
            return Sample(compress(known, values), None, flatnonzero(known))
        if metric == "itl_ms" and self.gaps.one_token:
            return self.sample("icl_ms")
        good = self.good

        def parts() -> Iterator[Values]:
            for part in self.gaps.parts():
                values = values_of(METRICS[metric], RequestTimes(good, part.gaps, part.requests))
                yield Values(values, part.gaps.tokens if kind == "token" else None, part.request)

        if isinstance(self.gaps, Gaps):
            return Sample(*next(parts()))
        return LongSample(parts, [group.sample(metric) for group in self.pooled])


def split(
    requests: pd.DataFrame, chunks: Chunks, cut: Cut | None = None, labels: Iterable[str] = ()
) -> list[Group]:
    """One group per engine, load and repeat: engines in the order of `labels` and then as they first appear,
    loads and repeats ascending.

    With a cut, of each only the requests sent in its window.
    """
    gaps = table_gaps(chunks)
    ordered = dict.fromkeys([*labels, *requests["label"].unique()])
    rank = {label: position for position, label in enumerate(ordered)}
    groups = []
    for rows in map(_as_sent, cells_of(requests, ["label", "load", "repeat"])):
        group = _group(rows, gaps)
        if cut is not None:
            window = find_window(rows, cut)
            kept = select_rows(rows, inside(rows["t_sent"].fillna(scheduled(rows)), window).to_numpy())
            group = replace(_group(kept, gaps, rows), window=window, whole=group)
        groups.append(group)
    return sorted(groups, key=lambda group: (rank[group.label], group.load, group.repeat))


def cells_of(requests: pd.DataFrame, by: list[str]) -> Iterator[pd.DataFrame]:
    """The rows of each cell, which has values of its own in the columns `by`, in the order of the table."""
    if len(requests) <= on_disk.HELD_REQUESTS:
        yield from (rows for _, rows in requests.groupby(by, observed=True, sort=False))
        return
    starts = run_starts(requests["cell"].to_numpy())
    for begin, end in pairwise([*starts, len(requests)]):
        yield requests.iloc[begin:end]


def _as_sent(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests of a cell in the order in which they were sent, as far as turns of sessions are not; too
    many to be held, of a trace, have their turns by their times."""
    long_trace = len(rows) > on_disk.HELD_REQUESTS and isinstance(load_of(rows), TraceLoad)
    if "session" not in rows or long_trace or rows["session"].isna().all():
        return rows
    return rows.iloc[argsort(scheduled(rows).to_numpy(np.float64))]


def _group(rows: pd.DataFrame, gaps: TableGaps, named: pd.DataFrame | None = None) -> Group:
    """One repeat's requests; `named` are rows that say whose, where `rows` may be none."""
    good = select_rows(rows, succeeded(rows))
    named = rows if named is None else named
    engine, variant, label, repeat = (named[column].iloc[0] for column in _IDENTITY)
    own_gaps = gaps.of(request_keys(good))
    return Group(
        engine=str(engine),
        variant=None if pd.isna(variant) else str(variant),
        label=str(label),
        load=load_of(named),
        repeat=int(repeat),
        requests=rows,
        metrics=request_metrics(good, own_gaps),
        gaps=own_gaps,
    )


def load_of(rows: pd.DataFrame) -> Load:
    """That of the first of them, where all have the same."""
    return parse_load(rows["load"].iloc[0])


def by_load(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """The repeats of each engine at each load, from the order that `split` gives."""
    for _, repeats in groupby(groups, key=lambda group: (group.label, group.load)):
        yield list(repeats)


def pool(groups: Sequence[Group]) -> Group:
    """The repeats of one engine at one load as one group."""
    first = groups[0]
    if len(groups) == 1:
        return replace(first, repeat=None, window=None, whole=None)
    return Group(
        engine=first.engine,
        variant=first.variant,
        label=first.label,
        load=first.load,
        repeat=None,
        requests=concat([group.requests for group in groups]),
        metrics=concat([group.metrics for group in groups]),
        gaps=pooled_gaps([group.gaps for group in groups], [len(group.metrics) for group in groups]),
        pooled=groups,
    )
