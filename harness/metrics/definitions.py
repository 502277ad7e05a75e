"""What each metric is: from raw times to milliseconds, one row a request or one row a gap between chunks.

The times are those of `harness/records/schema.py`; the definitions stand in docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

MS = 1e3

#: Metrics with one value a request.
REQUEST_METRICS = (
    "ttft_ms",
    "tpot_ms",
    "e2e_ms",
    "submit_lag_ms",
    "ttft_from_schedule_ms",
    "e2e_from_schedule_ms",
    "queue_wait_ms",
    "prefill_ms",
)


def request_metrics(requests: pd.DataFrame) -> pd.DataFrame:
    """The per-request metrics of every request, in ms, NaN where the request has none. Index as given.

    TPOT needs two output tokens: it is NaN for a request of one.
    """
    sent, sched = _floats(requests, "t_sent"), _floats(requests, "t_sched")
    first, last = _floats(requests, "t_first"), _floats(requests, "t_last")
    tokens = _floats(requests, "completion_tokens")
    steps = np.where(tokens >= 2, tokens - 1, np.nan)
    columns = {
        "ttft_ms": (first - sent) * MS,
        "tpot_ms": (last - first) * MS / steps,
        "e2e_ms": (last - sent) * MS,
        "submit_lag_ms": (sent - sched) * MS,
        "ttft_from_schedule_ms": (first - sched) * MS,
        "e2e_from_schedule_ms": (last - sched) * MS,
        "queue_wait_ms": _floats(requests, "queue_wait_ms"),
        "prefill_ms": _floats(requests, "prefill_ms"),
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
        tokens: (S,) tokens of the chunk that ends the gap.
    """

    request: npt.NDArray[np.int64]
    gap_ms: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]

    def of(self, keys: npt.NDArray[np.int64]) -> Gaps:
        """The gaps of the requests `keys` (any order), `request` being the position in `keys`."""
        order = np.argsort(keys, kind="stable")
        ascending = keys[order]
        if not ascending.size:
            return Gaps(self.request[:0], self.gap_ms[:0], self.tokens[:0])
        lo, hi = np.searchsorted(self.request, (ascending[0], ascending[-1] + 1))
        near = self.request[lo:hi]
        position = np.searchsorted(ascending, near)
        mine = ascending[position] == near
        return Gaps(order[position[mine]], self.gap_ms[lo:hi][mine], self.tokens[lo:hi][mine])


def chunk_gaps(chunks: pd.DataFrame) -> Gaps:
    """All gaps of a chunk table, `request` being `request_keys`. The table may be in any order."""
    keys, t = request_keys(chunks), chunks["t"].to_numpy(np.float64)
    tokens = chunks["tokens"].to_numpy(np.int64)
    step, gap = np.diff(keys), np.diff(t)
    if np.any(step < 0) or np.any((step == 0) & (gap < 0)):
        order = np.lexsort((t, keys))
        keys, t, tokens = keys[order], t[order], tokens[order]
        step, gap = np.diff(keys), np.diff(t)
    inside = step == 0
    return Gaps(keys[1:][inside], gap[inside] * MS, tokens[1:][inside])


def _floats(table: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    return table[column].to_numpy(dtype=np.float64, na_value=np.nan)
