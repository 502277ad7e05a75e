"""What each metric is: from raw times to milliseconds, one row a request or one row a gap between chunks.

The times are those of `harness/records/columns.py`, the formulas those of the registry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.schema.metric import MS, Metric, Times
from harness.schema.metrics import LATENCIES, METRICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RequestTimes:
    """The times of U successful requests, as `harness.schema.metric.Times` says.

    Attributes:
        requests: one row a request.
        gaps: theirs, `request` below U.
    """

    requests: pd.DataFrame
    gaps: Gaps

    @property
    def sched(self) -> Floats:
        return _floats(self.requests, "t_sched")

    @property
    def sent(self) -> Floats:
        return _floats(self.requests, "t_sent")

    @property
    def first(self) -> Floats:
        return _floats(self.requests, "t_first")

    @property
    def answer(self) -> Floats:
        return _floats(self.requests, "t_answer")

    @property
    def last(self) -> Floats:
        return _floats(self.requests, "t_last")

    @property
    def session_start(self) -> Floats:
        return _floats(self.requests, "session_start")

    @property
    def tokens(self) -> Floats:
        return _floats(self.requests, "completion_tokens")

    @property
    def steps(self) -> Floats:
        tokens = self.tokens
        return np.where((tokens >= 2) & (self.last > self.first), tokens - 1, np.nan)

    @property
    def queue_wait_ms(self) -> Floats:
        return _floats(self.requests, "queue_wait_ms")

    @property
    def prefill_ms(self) -> Floats:
        return _floats(self.requests, "prefill_ms")

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
    """A latency's values in ms: (U,) one a request, or (S,) one a gap."""
    assert metric.of is not None, metric.name
    return np.asarray(metric.of(times), dtype=np.float64)


def request_metrics(requests: pd.DataFrame, gaps: Gaps) -> pd.DataFrame:
    """The per-request metrics of U successful requests, NaN where a request has none. Index as given."""
    times = RequestTimes(requests, gaps)
    columns = {
        name: values_of(METRICS[name], times) for name in LATENCIES if METRICS[name].sample == "request"
    }
    return pd.DataFrame(columns, index=requests.index)


def succeeded(requests: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which requests are successes: those without an error kind."""
    return requests["error"].isna().to_numpy(dtype=bool)


def request_keys(table: pd.DataFrame) -> npt.NDArray[np.int64]:
    """One integer for each (cell, request) pair, ascending with the pair."""
    keys: npt.NDArray[np.int64] = (table["cell"].to_numpy(np.int64) << 32) | table["request"].to_numpy(
        np.int64
    )
    return keys


@dataclass(frozen=True)
class Gaps:
    """The gaps between consecutive token-carrying chunks of a request, S of them, ascending by request.

    The first chunk of a request ends no gap, so its tokens are in TTFT and not here.

    Attributes:
        request: (S,) whose gap it is.
        gap_ms: (S,) since the chunk before.
        tokens: (S,) tokens of the chunk that ends the gap, of the smallest integers that hold them.
    """

    request: Ints
    gap_ms: Floats
    tokens: Ints

    def of(self, keys: npt.NDArray[np.int64]) -> Gaps:
        """The gaps of the requests `keys` (any order), `request` being the position in `keys`. What can be
        shared with these gaps is no copy."""
        order = np.argsort(keys, kind="stable").astype(np.int32)
        ascending = keys[order]
        if not ascending.size:
            return Gaps(order, self.gap_ms[:0], self.tokens[:0])
        lo, hi = np.searchsorted(self.request, (ascending[0], ascending[-1] + 1))
        gap_ms, tokens = self.gap_ms[lo:hi], self.tokens[lo:hi]
        starts = run_starts(self.request[lo:hi])
        near, counts = self.request[lo:hi][starts], np.diff(starts, append=hi - lo)
        position = np.searchsorted(ascending, near)
        mine = ascending[position] == near
        if not np.all(mine):
            kept = np.repeat(mine, counts)
            gap_ms, tokens = gap_ms[kept], tokens[kept]
        return Gaps(np.repeat(order[position[mine]], counts[mine]), gap_ms, tokens)


def run_starts(values: Ints) -> npt.NDArray[np.int64]:
    """Positions at which a value is not that before it."""
    differs = np.ones(values.size, dtype=bool)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return np.flatnonzero(differs).astype(np.int64, copy=False)


def chunk_gaps(chunks: pd.DataFrame) -> Gaps:
    """All gaps of a chunk table, `request` being `request_keys`. The table may be in any order."""
    keys, t = request_keys(chunks), chunks["t"].to_numpy(np.float64)
    tokens = chunks["tokens"].to_numpy()
    tokens = tokens.astype(np.min_scalar_type(tokens.max(initial=0)))
    inside = keys[1:] == keys[:-1]
    if np.any(keys[1:] < keys[:-1]) or np.any(inside & (t[1:] < t[:-1])):
        order = np.lexsort((t, keys))
        keys, t, tokens = keys[order], t[order], tokens[order]
        inside = keys[1:] == keys[:-1]
    keys = keys[1:][inside]
    gap_ms = np.diff(t)[inside]
    gap_ms *= MS
    return Gaps(keys, gap_ms, tokens[1:][inside])


def _floats(table: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    return table[column].to_numpy(dtype=np.float64, na_value=np.nan)
