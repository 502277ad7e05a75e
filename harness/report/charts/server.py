"""What servers say of themselves over one load, on the time axis of the requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.metrics.samples import Group
from harness.report.charts.chart import Axis, Chart, Series
from harness.report.charts.overtime import SECONDS
from harness.report.text.load_words import load_file_name, where


@dataclass(frozen=True)
class _Quantity:
    """A chart of a quantity: part of its name, its title, its unit, and how it follows from readings."""

    name: str
    title: str
    unit: str
    values: Callable[[pd.DataFrame], pd.Series[float]]


def server_charts(groups: Sequence[Group], readings: pd.DataFrame) -> list[Chart]:
    """A chart for each quantity that a server says, at one load.

    Args:
        groups: One repeat of each engine.
        readings: Rows of `records.columns.SERVER`, of any cells.
    """
    load = groups[0].load
    made = [
        Chart(
            name=f"server_{quantity.name}_{load_file_name(load)}",
            title=f"{quantity.title}, {where(load)}",
            x=Axis(SECONDS, "s"),
            y=Axis(quantity.unit, "%" if quantity.unit == "%" else ""),
            series=_series(groups, readings, quantity),
            note="by the servers' own metrics",
        )
        for quantity in (_QUANTITIES if len(readings) else ())
    ]
    return [chart for chart in made if chart.series]


def _series(groups: Sequence[Group], readings: pd.DataFrame, quantity: _Quantity) -> list[Series]:
    found = []
    for group in groups:
        own = readings[readings["cell"].isin(group.requests["cell"].unique())]
        values = quantity.values(own)
        known = values.notna()
        if known.any():
            x, y = (numbers[known].to_numpy(np.float64).tolist() for numbers in (own["t"], values))
            found.append(Series(group.label, "line", x, y, part=quantity.unit, markers=False))
    return found


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


_QUANTITIES = (
    _Quantity("running", "Requests that run in the server", "requests", lambda found: found["running"]),
    _Quantity(
        "waiting", "Requests that wait in the server", "requests", lambda found: _if_any(found["waiting"])
    ),
    _Quantity("kv_usage", "KV cache in use, %", "%", lambda found: 100 * found["kv_usage"]),
    _Quantity("prefix_hits", "Prompt tokens from the prefix cache, %", "%", _prefix_hits),
    _Quantity("steps", "Tokens of a step", "tokens", _tokens_per_step),
    _Quantity(
        "preemptions", "Preemptions so far", "preemptions", lambda found: _if_any(found["preemptions"])
    ),
)
