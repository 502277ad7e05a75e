"""Parts of the time to first token: what client and engine report, added up to the mean TTFT.

Means are taken because they add up; percentiles do not. docs/metrics.md has the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.schema.fairness import Part, ReportedMean, Source, Waterfall, WaterfallPart
from harness.schema.metric import MS

#: Means by the engine's histograms: metric by cell.
Reported = Mapping[int, Mapping[str, ReportedMean]]

Floats = npt.NDArray[np.float64]


def waterfall(good: pd.DataFrame, reported: Reported) -> Waterfall | None:
    """The mean request of `good`, U successes of any cells (columns of records/columns.py); None for U = 0,
    and where the times of first tokens are not known.

    A request's HTTP part ends with the head of the response. Some servers send the head when the request is
    with the engine already; what the engine says then bounds it: it was over before the queue began, so it is
    at most TTFT - queue - prefill. Others hold the head back until they have the first token: a head that is
    nearer to that than to the sending says nothing.
    """
    if good.empty or good["t_first"].isna().any():
        return None
    sent, first = _column(good, "t_sent"), _column(good, "t_first")
    lag, ttft = (sent - _column(good, "t_sched")) * MS, (first - sent) * MS
    queue, prefill = _column(good, "queue_wait_ms"), _column(good, "prefill_ms")
    head = _column(good, "t_head")
    http = _http_ms(sent, head, first, ttft, queue, prefill)
    queue_part, queue = _engine_part("queue", queue, good, reported, "queue_wait_ms")
    prefill_part, prefill = _engine_part("prefill", prefill, good, reported, "prefill_ms")
    delivery = ttft - http - queue - prefill
    parts = [
        _part("client lag", lag, "measured", "the client's clock"),
        _part("http", http, "measured", "the head of the response, as the client saw it"),
        queue_part,
        prefill_part,
        _part("delivery", delivery, "inferred", "what the parts before leave over, where all are known"),
    ]
    mean_ttft = float(ttft.mean())
    rest = mean_ttft - math.fsum(part.mean_ms or 0.0 for part in parts[1:])
    how = "what the other parts leave over"
    parts.append(WaterfallPart(part="unexplained", mean_ms=rest, n=len(good), source="inferred", how=how))
    total = mean_ttft + (parts[0].mean_ms or 0.0)
    return Waterfall(n=len(good), total_ms=total, ttft_ms=mean_ttft, parts=parts)


def _http_ms(
    sent: Floats, head: Floats, first: Floats, ttft: Floats, queue: Floats, prefill: Floats
) -> Floats:
    began = np.where(head - sent < first - head, (head - sent) * MS, np.nan)
    return np.clip(began, 0, np.maximum(ttft - np.nan_to_num(queue) - np.nan_to_num(prefill), 0))


def reported_mean(requests: pd.DataFrame, reported: Reported, metric: str) -> ReportedMean | None:
    """The histograms' mean over all cells of `requests`; None where no cell has one."""
    means = [reported[cell][metric] for cell in requests["cell"].unique() if metric in reported.get(cell, {})]
    count = sum(mean.n for mean in means)
    if not count:
        return None
    return ReportedMean(mean_ms=math.fsum(mean.mean_ms * mean.n for mean in means) / count, n=count)


def _engine_part(
    part: Part, values: Floats, good: pd.DataFrame, reported: Reported, metric: str
) -> tuple[WaterfallPart, Floats]:
    """From each request's own metrics, else the mean of its cell; and the values (U,) that it is made of."""
    if np.isfinite(values).any():
        return _part(part, values, "measured", "the engine, for each request"), values
    means = {cell: means[metric].mean_ms for cell, means in reported.items() if metric in means}
    of_cell: npt.NDArray[np.float64] = np.asarray(good["cell"].map(means), np.float64)
    how = "the engine's histograms, the mean of all requests of the cell"
    return _part(part, of_cell, "inferred", how), of_cell


def _part(part: Part, values: Floats, source: Source, how: str) -> WaterfallPart:
    """The mean over all, those of which nothing is known counting as 0. A part takes no less than no time."""
    n = int(np.isfinite(values).sum())
    if not n:
        return WaterfallPart(part=part, mean_ms=None, n=0, source="unknown", how="not reported")
    mean = max(float(np.nan_to_num(values).sum() / len(values)), 0.0)
    return WaterfallPart(part=part, mean_ms=mean, n=n, source=source, how=how)


def _column(table: pd.DataFrame, name: str) -> Floats:
    return table[name].to_numpy(np.float64)
