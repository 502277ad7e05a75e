"""What a summary is made of: which requests, and the values of each metric with their requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import (
    Gaps,
    RequestTimes,
    chunk_gaps,
    request_keys,
    request_metrics,
    succeeded,
    values_of,
)
from harness.metrics.percentiles import Ordered
from harness.metrics.window import Cut, find_window, inside, scheduled
from harness.schema.load import Load, parse_load
from harness.schema.metrics import METRICS, PERCENTILES
from harness.schema.window import Window

_IDENTITY = ["engine", "variant", "label", "repeat"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Values of one metric. Equal only to itself: what is computed of it is computed once.

    Attributes:
        values: (S,) finite.
        weights: (S,) how many samples each value counts for; None: one each.
        request: (S,) position of the request it is of, below the number of successes.
    """

    values: npt.NDArray[np.float64]
    weights: npt.NDArray[np.integer] | None
    request: npt.NDArray[np.integer]

    @cached_property
    def n(self) -> int:
        """How many samples the values count for."""
        return self.values.size if self.weights is None else int(self.weights.sum())

    @cached_property
    def mean(self) -> float:
        return float(np.average(self.values, weights=self.weights))

    def ordered(self) -> Ordered:
        """The values in ascending order, which are not kept. There must be some."""
        return Ordered.of(self.values, self.weights)

    @cached_property
    def levels(self) -> dict[str, float]:
        """The percentiles that are reported, by name. There must be values."""
        found = self.ordered().percentiles(PERCENTILES)
        return {f"p{q}": float(level) for q, level in zip(PERCENTILES, found, strict=True)}


@dataclass(frozen=True)
class Group:
    """The requests of one engine at one load: one repeat, or several pooled (`repeat` is None).

    Attributes:
        requests: every request, failures included (columns of records/columns.py).
        metrics: per-request metrics of the U successes, in their order in `requests`.
        repeat_of: (U,) repeat of each success.
        gaps: of the successes, `request` below U.
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
    repeat_of: npt.NDArray[np.int64]
    gaps: Gaps
    window: Window | None = None
    whole: Group | None = None
    _samples: dict[str, Sample] = field(default_factory=dict, repr=False, compare=False)

    @property
    def first_chunks(self) -> npt.NDArray[np.int64]:
        """(U,) tokens in the first chunk of each success."""
        tokens: npt.NDArray[np.int64] = self.requests.loc[self.metrics.index, "completion_tokens"].to_numpy(
            np.int64
        )
        return tokens - np.bincount(self.gaps.request, self.gaps.tokens, len(tokens)).astype(np.int64)

    def sample(self, metric: str) -> Sample:
        """The samples of a latency: one a request, one a gap (`icl_ms`), or one a token (`itl_ms`)."""
        if metric not in self._samples:
            self._samples[metric] = self._sample(metric)
        return self._samples[metric]

    def _sample(self, metric: str) -> Sample:
        kind = METRICS[metric].sample
        if kind == "request":
            values = self.metrics[metric].to_numpy(np.float64)
            request = np.flatnonzero(np.isfinite(values))
            return Sample(values[request], None, request)
        if metric == "itl_ms" and np.all(self.gaps.tokens == 1):
            return self.sample("icl_ms")
        good = self.requests[succeeded(self.requests)]
        values = values_of(METRICS[metric], RequestTimes(good, self.gaps))
        return Sample(values, self.gaps.tokens if kind == "token" else None, self.gaps.request)


def in_order(requests: pd.DataFrame, labels: Iterable[str]) -> pd.DataFrame:
    """The requests with engines in the order of `labels`, and those of each as they were."""
    rank = {label: position for position, label in enumerate(labels)}
    return requests.sort_values("label", key=lambda given: given.astype(object).map(rank), kind="stable")


def split(requests: pd.DataFrame, chunks: pd.DataFrame, cut: Cut | None = None) -> list[Group]:
    """One group per engine, load and repeat: engines as they first appear, loads and repeats ascending.

    With a cut, of each only the requests sent in its window.
    """
    gaps = chunk_gaps(chunks)
    rank = {label: position for position, label in enumerate(requests["label"].unique())}
    groups = []
    for _, rows in requests.groupby(["label", "load", "repeat"], observed=True):
        group = _group(rows, gaps)
        if cut is not None:
            window = find_window(rows, cut)
            kept = rows[inside(rows["t_sent"].fillna(scheduled(rows)), window)]
            group = replace(_group(kept, gaps, rows), window=window, whole=group)
        groups.append(group)
    return sorted(groups, key=lambda group: (rank[group.label], group.load, group.repeat))


def _group(rows: pd.DataFrame, gaps: Gaps, named: pd.DataFrame | None = None) -> Group:
    """One repeat's requests; `named` are rows that say whose, where `rows` may be none."""
    good = rows[succeeded(rows)]
    named = rows if named is None else named
    engine, variant, label, repeat = named[_IDENTITY].iloc[0]
    own_gaps = gaps.of(request_keys(good))
    return Group(
        engine=str(engine),
        variant=None if pd.isna(variant) else str(variant),
        label=str(label),
        load=load_of(named),
        repeat=int(repeat),
        requests=rows,
        metrics=request_metrics(good, own_gaps),
        repeat_of=np.full(len(good), int(repeat), dtype=np.int64),
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
    starts = np.cumsum([0, *(len(group.metrics) for group in groups)], dtype=np.int32)
    return Group(
        engine=first.engine,
        variant=first.variant,
        label=first.label,
        load=first.load,
        repeat=None,
        requests=pd.concat([group.requests for group in groups]),
        metrics=pd.concat([group.metrics for group in groups]),
        repeat_of=np.concatenate([group.repeat_of for group in groups]),
        gaps=Gaps(
            np.concatenate(
                [group.gaps.request + start for group, start in zip(groups, starts, strict=False)]
            ),
            np.concatenate([group.gaps.gap_ms for group in groups]),
            np.concatenate([group.gaps.tokens for group in groups]),
        ),
    )
