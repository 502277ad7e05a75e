"""The best engine at a load by one metric, and which engines it really differs from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.metrics.percentiles import missing
from harness.report.best import differs
from harness.schema.load import ClosedLoop, Load
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineSummary

#: What engines are compared by; the rate only where they set the pace: with requests in flight, or a batch.
LATENCIES = ("ttft_ms", "tpot_ms")
RATE = "output_tok_per_s"


def compared_by(load: Load) -> tuple[str, ...]:
    """The metrics by which engines are compared at a load."""
    return (*LATENCIES, RATE) if isinstance(load, ClosedLoop) else LATENCIES


@dataclass(frozen=True)
class Winner:
    """The engine with the best value of a statistic.

    Attributes:
        level: Those from which it shows no difference, the best first.
        loser: The best one that it differs from; None where it differs from none.
        comparison: With the loser, or else with the next best one; None where there is none.
    """

    metric: str
    statistic: str
    label: str
    level: tuple[str, ...]
    loser: str | None
    comparison: Comparison | None


def winner(engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str) -> Winner | None:
    """The winner among valid `engines` at one load, by the highest percentile that all of them support.

    None where no percentile is supported, or a pair of engines has no interval.
    """
    statistics = ("p99", "p90", "p50") if METRICS[metric].is_latency else (metric,)
    found = next((name for name in statistics if _supported(engines, comparisons, metric, name)), None)
    if found is None:
        return None
    descending = not METRICS[metric].lower_is_better
    ranked = sorted(engines, key=lambda engine: engine.value(metric, found) or 0.0, reverse=descending)
    first, *others = [engine.label for engine in ranked]
    pairs = {
        frozenset((comparison.a, comparison.b)): comparison
        for comparison in _of(engines, comparisons, metric, found)
    }
    against = [(label, pairs[pair]) for label in others if (pair := frozenset((first, label))) in pairs]
    level = tuple(label for label, comparison in against if not differs(comparison))
    lost = next((item for item in against if differs(item[1])), None)
    if lost is None:
        return Winner(metric, found, first, level, None, against[0][1] if against else None)
    return Winner(metric, found, first, level, *lost)


def _of(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> list[Comparison]:
    """The comparisons of a statistic at the load of `engines`."""
    wanted = (engines[0].load, metric, statistic)
    return [found for found in comparisons if (found.load, found.metric, found.statistic) == wanted]


def _supported(
    engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison], metric: str, statistic: str
) -> bool:
    """Whether a statistic of all engines can be shown, and each pair has an interval for it."""
    pairs = _of(engines, comparisons, metric, statistic)
    shown = statistic == metric or all(
        not missing(int(statistic[1:]), engine.latency(metric).n) for engine in engines
    )
    return shown and all(comparison.ci is not None for comparison in pairs)
