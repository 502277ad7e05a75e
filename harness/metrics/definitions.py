"""Values of each metric: from raw times to milliseconds, one row a request or one row a gap between chunks.

The times are those of `harness/records/columns.py`, the formulas those of the registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.errors import UsageError
from harness.schema.metric import MS, Metric, Times
from harness.schema.metrics import LATENCIES, METRICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


def request_keys(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return (n,) one integer for each (cell, request) pair of a table, ascending with the pair."""
    keys: npt.NDArray[np.int64] = (table["cell"].to_numpy(np.int64) << 32) | table["request"].to_numpy(
        np.int64
    )
    return keys


@dataclass(frozen=True)
class Gaps:
    """The gaps between consecutive token-carrying chunks of a request, S of them, ascending by request.

    The first chunk of a request ends no gap, so its tokens are in TTFT and not here.

    Attributes:
        request: (S,) the request that each gap belongs to: its key in the gaps of a table, its position in
            the gaps of some requests.
        gap_ms: (S,) milliseconds since the chunk before.
        tokens: (S,) tokens of the chunk that ends the gap, in the smallest integers that hold them.
    """

    request: Ints
    gap_ms: Floats
    tokens: Ints

    def of(self, keys: npt.NDArray[np.int64]) -> Gaps:
        """Return the gaps of the requests `keys` (U,), in any order; `request` is the position in `keys`.

        The arrays are views where the requests are neighbours in the table.
        """
        order = np.argsort(keys, kind="stable").astype(np.int32)
        ascending = keys[order]
        if not ascending.size:
            return Gaps(order, self.gap_ms[:0], self.tokens[:0])
        first, stop = np.searchsorted(self.request, (ascending[0], ascending[-1] + 1))
        gap_ms, tokens = self.gap_ms[first:stop], self.tokens[first:stop]
        starts = run_starts(self.request[first:stop])
        table_keys, counts = self.request[first:stop][starts], np.diff(starts, append=stop - first)
        position = np.searchsorted(ascending, table_keys)
        selected = ascending[position] == table_keys
        if not np.all(selected):
            rows = np.repeat(selected, counts)
            gap_ms, tokens = gap_ms[rows], tokens[rows]
        return Gaps(np.repeat(order[position[selected]], counts[selected]), gap_ms, tokens)

    @property
    def one_token(self) -> bool:
        """Tell whether each chunk that ends a gap carries one token."""
        return bool(np.all(self.tokens == 1))


def pool_gaps(groups: Sequence[Gaps], sizes: Sequence[int]) -> Gaps:
    """Return the gaps of several groups of requests as those of one.

    Args:
        groups: the gaps of each group.
        sizes: the number of requests of each group.
    """
    starts = np.cumsum([0, *sizes], dtype=np.int32)[:-1]
    return Gaps(
        np.concatenate([gaps.request + start for gaps, start in zip(groups, starts, strict=True)]),
        np.concatenate([gaps.gap_ms for gaps in groups]),
        np.concatenate([gaps.tokens for gaps in groups]),
    )


def run_starts(values: Ints | Floats) -> npt.NDArray[np.int64]:
    """Return the positions in `values` (n,) at which a value differs from the one before it."""
    differs = np.ones(values.size, dtype=bool)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return np.flatnonzero(differs)


def chunk_gaps(chunks: pd.DataFrame) -> Gaps:
    """Return all gaps of a table of chunks, which may be in any order; `request` is its `request_keys`."""
    keys, t = request_keys(chunks), chunks["t"].to_numpy(np.float64)
    tokens = chunks["tokens"].to_numpy()
    tokens = tokens.astype(np.min_scalar_type(tokens.max(initial=0)))
    same_request = keys[1:] == keys[:-1]
    if np.any(keys[1:] < keys[:-1]) or np.any(same_request & (t[1:] < t[:-1])):
        order = np.lexsort((t, keys))
        keys, t, tokens = keys[order], t[order], tokens[order]
        same_request = keys[1:] == keys[:-1]
    return Gaps(keys[1:][same_request], np.diff(t)[same_request] * MS, tokens[1:][same_request])


@dataclass(frozen=True)
class RequestTimes:
    """The times of U successful requests, as `harness.schema.metric.Times` says.

    Attributes:
        requests: one row for each of them (columns of records/columns.py).
        gaps: their gaps, `request` below U.
    """

    requests: pd.DataFrame
    gaps: Gaps

    def __getattr__(self, name: str) -> Floats:
        for column in (f"t_{name}", name):
            if column in self.requests:
                values = self.__dict__[name] = self.requests[column].to_numpy(np.float64)
                return values
        raise AttributeError(f"the table of requests has neither a column t_{name} nor {name}")

    @cached_property
    def tokens(self) -> Floats:
        return self.requests["completion_tokens"].to_numpy(np.float64)

    @cached_property
    def steps(self) -> Floats:
        after_first = np.bincount(self.gaps.request, self.gaps.tokens, len(self.requests))
        return np.where((after_first > 0) & (self.last > self.first), after_first, np.nan)

    @property
    def connecting(self) -> Floats:
        waits: Floats = np.zeros(len(self.requests))
        if "connecting_s" in self.requests:
            waits += np.nan_to_num(self.requests["connecting_s"].to_numpy(np.float64))
        return waits

    @property
    def gap_ms(self) -> Floats:
        return self.gaps.gap_ms

    @property
    def gap_tokens(self) -> Ints:
        return self.gaps.tokens

    @property
    def gap_request(self) -> Ints:
        return self.gaps.request


def values_of(metric: Metric, times: Times) -> Floats:
    """A latency's values in ms, or what a rate counts: (U,) one a request, or (S,) one a gap.

    Raises:
        UsageError: a metric of another package has another number of values.
    """
    assert metric.of is not None, metric.name
    values = np.asarray(metric.of(times), dtype=np.float64)
    shape = (len(times.gap_ms if metric.sample in ("token", "chunk") else times.first),)
    if values.shape != shape:
        raise UsageError(
            f"the metric {metric.name} has values of shape {values.shape} instead of {shape}",
            "make it return one value for each request, token or chunk, NaN where there is none",
        )
    return values


def request_metrics(requests: pd.DataFrame, gaps: Gaps) -> pd.DataFrame:
    """Return the per-request metrics of U successful requests: (U, metrics), with the index of `requests`.

    A value is NaN where a request has none.
    """
    times = RequestTimes(requests, gaps)
    columns = {
        name: values_of(METRICS[name], times) for name in LATENCIES if METRICS[name].sample == "request"
    }
    metrics = pd.DataFrame(columns, index=requests.index)
    metrics.columns = metrics.columns.astype(object)
    return metrics


def prompt_tokens(requests: pd.DataFrame) -> Floats:
    """Return (n,) prompt tokens as the server counts them; as they were asked for where it does not."""
    reported, planned = (requests[name].to_numpy(np.float64) for name in ("prompt_tokens", "input_tokens"))
    return np.where(np.isnan(reported), planned, reported)


def succeeded(requests: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return (n,) which requests are successes: those without an error kind."""
    return requests["error"].isna().to_numpy(dtype=bool)


def successes(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the successes: the table itself where nothing failed, which is not copied."""
    good = succeeded(requests)
    return requests if good.all() else requests[good]
