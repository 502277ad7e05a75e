"""The registry of metrics: what results, definitions, glossary, gates, tables and figures derive from.

It holds this project's (`built_in_metrics.py`) and those that installed packages add (`metric.py`).
"""

from __future__ import annotations

from harness.errors import UsageError
from harness.plugins import describe, find_plugins, load_plugin
from harness.schema.built_in_metrics import BUILT_IN
from harness.schema.metric import Metric, Use

GROUP = "rosebench.metrics"

#: Percentiles of a sample that are reported.
PERCENTILES = (50, 90, 95, 99)
#: Those by which engines are compared.
COMPARED_PERCENTILES = (50, 90, 99)
#: What is reported of a sample and can be gated.
STATISTICS = ("mean", *(f"p{q}" for q in PERCENTILES))


def add(known: dict[str, Metric], metric: object, origin: str) -> None:
    """Add a metric of somebody else's.

    Raises:
        UsageError: it is no latency with a function over raw times, or its name is taken.
    """
    hint = "correct or uninstall its package"
    if not isinstance(metric, Metric):
        raise UsageError(f"{origin} is not a harness.schema.metric.Metric", hint)
    if metric.name in known:
        raise UsageError(f"{origin} is called {metric.name}, as another metric is", hint)
    if not metric.is_latency or metric.of is None or metric.unit != "ms" or not metric.name.endswith("_ms"):
        what = "a latency in ms, its name ending in _ms, with a function over raw times"
        raise UsageError(f"{origin} ({metric.name}) is not {what}", hint)
    known[metric.name] = metric


def _metrics() -> dict[str, Metric]:
    known = {metric.name: metric for metric in BUILT_IN}
    for point in find_plugins(GROUP).values():
        add(known, load_plugin(point), describe(point))
    return known


#: Every metric by its name in the results.
METRICS = _metrics()

#: Those of which every summary has a distribution.
LATENCIES = tuple(name for name, metric in METRICS.items() if metric.is_latency)


def latencies(use: Use) -> tuple[str, ...]:
    """Names of the latencies with that use."""
    return tuple(name for name in LATENCIES if use in METRICS[name].uses)


def rates(use: Use) -> tuple[str, ...]:
    """Names of the metrics with that use that are one number and not a sample."""
    return tuple(name for name, metric in METRICS.items() if use in metric.uses and not metric.is_latency)
