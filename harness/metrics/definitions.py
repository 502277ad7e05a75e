"""Values of each metric: from raw times to milliseconds, one row a request or one row a gap between chunks.

The times are those of `harness/records/columns.py`, the formulas those of the registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.errors import UsageError
from harness.metrics.gaps import Gaps
from harness.schema.metric import Metric, Times
from harness.schema.metrics import LATENCIES, METRICS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer]


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
                return self.requests[column].to_numpy(np.float64)
        raise AttributeError(f"the table of requests has neither a column t_{name} nor {name}")

    @cached_property
    def tokens(self) -> Floats:
        return self.requests["completion_tokens"].to_numpy(np.float64)

    @cached_property
    def steps(self) -> Floats:
        tokens = self.tokens
        return np.where((tokens >= 2) & (self.last > self.first), tokens - 1, np.nan)

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
    """A latency's values in ms: (U,) one a request, or (S,) one a gap.

    Raises:
        UsageError: a metric of another package has another number of values.
    """
    assert metric.of is not None, metric.name
    values = np.asarray(metric.of(times), dtype=np.float64)
    shape = (len(times.first if metric.sample == "request" else times.gap_ms),)
    if values.shape != shape:
        raise UsageError(
            f"the metric {metric.name} has values of shape {values.shape} instead of {shape}",
            f"make it return one value for each {metric.sample}, NaN where there is none",
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
    return pd.DataFrame(columns, index=requests.index)


def prompt_tokens(requests: pd.DataFrame) -> Floats:
    """Return (n,) prompt tokens as the server counts them; as they were asked for where it does not."""
    reported, planned = (requests[name].to_numpy(np.float64) for name in ("prompt_tokens", "input_tokens"))
    return np.where(np.isnan(reported), planned, reported)


def succeeded(requests: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return (n,) which requests are successes: those without an error kind."""
    return requests["error"].isna().to_numpy(dtype=bool)
