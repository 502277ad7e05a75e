"""What servers say of themselves over one load, on the time axis of the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from harness.metrics.samples import Group
from harness.report.charts.chart import Axis, Chart, Series, View
from harness.report.charts.overtime import SECONDS
from harness.report.text.load_words import load_file_name, where

Column = Callable[[pd.DataFrame], "pd.Series[float]"]


def server_charts(groups: Sequence[Group], readings: pd.DataFrame) -> list[Chart]:
    """Requests in the servers, shares of their caches and tokens a step, as far as they say them.

    Args:
        groups: One repeat of each engine at one load.
        readings: Rows of `records.columns.SERVER`, of any cells.
    """
    if readings.empty:
        return []
    load = groups[0].load
    at, name = where(load), load_file_name(load)
    made = (
        Chart(
            name=f"server_requests_{name}",
            title=f"Requests in the server, {at}",
            x=Axis(SECONDS, "s"),
            y=Axis("requests"),
            series=(requests := _series(groups, readings, _REQUESTS)),
            views=_views(requests),
            note="by the servers' own metrics",
        ),
        Chart(
            name=f"server_caches_{name}",
            title=f"Use of the caches, {at}",
            x=Axis(SECONDS, "s"),
            y=Axis("%", "%", ends=(0.0, 100.0)),
            series=(shares := _series(groups, readings, _SHARES)),
            views=_views(shares),
            note="by the servers' own metrics",
        ),
        Chart(
            name=f"server_steps_{name}",
            title=f"Tokens of a step, {at}",
            x=Axis(SECONDS, "s"),
            y=Axis("tokens a step"),
            series=_series(groups, readings, {"tokens a step": _tokens_per_step}),
            note="between two readings",
        ),
    )
    return [chart for chart in made if chart.series]


def _series(groups: Sequence[Group], readings: pd.DataFrame, parts: Mapping[str, Column]) -> list[Series]:
    found = []
    for group in groups:
        own = readings[readings["cell"].isin(group.requests["cell"].unique())]
        for part, column in parts.items():
            values = column(own)
            known = values.notna()
            if known.any():
                x, y = (numbers[known].to_numpy(np.float64).tolist() for numbers in (own["t"], values))
                found.append(Series(group.label, "line", x, y, part=part, markers=False))
    return found


def _views(series: Sequence[Series]) -> list[View]:
    """A view a part."""
    parts = dict.fromkeys(point.part for point in series)
    return [View(part, [part]) for part in parts] if len(parts) > 1 else []


def _prefix_hits(readings: pd.DataFrame) -> pd.Series[float]:
    """Share of prompt tokens since the reading before or, where that is not counted, as the server averages
    it. Nothing where none was ever found.
    """
    queries, hits = readings["prefix_queries"].diff(), readings["prefix_hits"].diff()
    rate = (hits / queries.where(queries > 0)).fillna(readings["prefix_hit_rate"])
    return _if_any(100 * rate)


def _if_any(values: pd.Series[float]) -> pd.Series[float]:
    """The values, or NaN for all where none is above 0."""
    return values if (values > 0).any() else values.where(values.isna())


def _tokens_per_step(readings: pd.DataFrame) -> pd.Series[float]:
    """Since the reading before; NaN where no step was done."""
    steps = readings["steps"].diff()
    found: pd.Series[float] = readings["step_tokens"].diff() / steps.where(steps > 0)
    return found


_REQUESTS: Mapping[str, Column] = {
    "running": lambda readings: readings["running"],
    "waiting": lambda readings: readings["waiting"],
    "preempted so far": lambda readings: _if_any(readings["preemptions"]),
}
_SHARES: Mapping[str, Column] = {
    "KV cache in use": lambda readings: 100 * readings["kv_usage"],
    "prefix hits": _prefix_hits,
}
