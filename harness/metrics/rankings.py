"""Rankings: at each load and by each metric the best engine, and how far the others are from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field

from harness.metrics.percentiles import missing
from harness.metrics.primary import compared_by
from harness.schema.base import Strict
from harness.schema.load import AnyLoad, Load, from_light_to_heavy
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Comparison

#: Percentiles that are compared, from the highest on.
PERCENTILES = tuple(f"p{q}" for q in reversed(COMPARED_PERCENTILES))
#: Latencies that decide no winner, in which another engine may be better.
OTHER_LATENCIES = ("itl_ms", "e2e_ms")
#: Verdicts on a difference that holds for all comparisons of the run together.
REAL = ("better", "worse")


class RankingRow(Strict):
    """One engine of a ranking."""

    label: str
    value: float | None = Field(description="null: the engine has none")
    interval: tuple[float, float] | None = Field(None, description="95 % interval of the value")
    ratio: float | None = Field(None, description="of the value to the best one; null of the best")
    ratio_interval: tuple[float, float] | None = Field(None, description="95 % interval of the ratio")
    significant: bool | None = Field(
        None,
        description="whether it differs from the best at 5 % for all comparisons of the run together; null "
        "of the best, or where they are not compared",
    )
    valid: bool = True

    @property
    def apart(self) -> bool:
        """Tell whether the ratio's own interval excludes 1, significant or not."""
        return self.ratio_interval is not None and not self.ratio_interval[0] <= 1 <= self.ratio_interval[1]


class Ranking(Strict):
    """Engines by one statistic at one load: valid ones from the best on, then invalid ones."""

    metric: str
    statistic: str = Field(description="the metric's name again where it is a rate")
    load: AnyLoad | None = Field(description="null: the loads of a search")
    rows: list[RankingRow]
    comparisons: int = Field(0, description="how many comparisons of the run were made at once")
    headline: bool = Field(
        False, description="whether the engines are compared by this statistic first; one a metric and load"
    )

    @property
    def valid(self) -> list[RankingRow]:
        """Rows of the engines that are compared, the best first."""
        return [row for row in self.rows if row.valid]

    @property
    def best(self) -> RankingRow | None:
        """Row of the valid engine with the best value."""
        return next(iter(self.valid), None)

    @property
    def winner(self) -> str | None:
        """Label of the best engine where it differs significantly from another one, else None."""
        return next((self.valid[0].label for row in self.valid if row.significant), None)

    def row(self, label: str) -> RankingRow | None:
        """Return the row of an engine; None if it has none."""
        return next((row for row in self.rows if row.label == label), None)


def rankings(pooled: Sequence[OnlineSummary], comparisons: Sequence[Comparison]) -> list[Ranking]:
    """Rank the engines at each load, from light to heavy, by each statistic that all valid ones support.

    Latencies have one headline percentile: the highest in which engines differ by each latency by which they
    differ in any; where they differ in some but there is no such one, the lowest. A metric without a
    statistic that all support has no ranking: too few requests were measured.

    Args:
        pooled: summaries of all repeats, one an engine and load.
    """
    found = []
    for load in from_light_to_heavy(summary.load for summary in pooled):
        engines = [summary for summary in pooled if summary.load == load]
        pairs = [pair for pair in comparisons if pair.load == load]
        by_metric = {
            metric: _of_metric(metric, engines, pairs)
            for metric in dict.fromkeys((*compared_by(load), *OTHER_LATENCIES))
        }
        found += _with_headlines(by_metric, compared_by(load))
    return found


def _of_metric(
    metric: str, engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> dict[str, Ranking]:
    """Rankings by statistic, from the highest percentile on."""
    statistics = PERCENTILES if METRICS[metric].is_latency else (metric,)
    valid = [engine for engine in engines if engine.valid]
    return {
        statistic: _ranking(metric, statistic, engines, comparisons)
        for statistic in statistics
        if _supported(metric, statistic, valid, comparisons)
    }


def _supported(
    metric: str, statistic: str, valid: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> bool:
    """Tell whether every valid engine has enough samples, and each pair an interval."""
    pairs = _pairs(metric, statistic, valid, comparisons)
    enough = statistic == metric or all(
        not missing(int(statistic[1:]), engine.latency(metric).n) for engine in valid
    )
    return enough and all(pair.ci is not None for pair in pairs.values())


def _pairs(
    metric: str, statistic: str, engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> dict[frozenset[str], Comparison]:
    labels = {engine.label for engine in engines}
    return {
        frozenset((pair.a, pair.b)): pair
        for pair in comparisons
        if (pair.metric, pair.statistic) == (metric, statistic) and {pair.a, pair.b} <= labels
    }


def _ranking(
    metric: str, statistic: str, engines: Sequence[OnlineSummary], comparisons: Sequence[Comparison]
) -> Ranking:
    sign = 1 if METRICS[metric].lower_is_better else -1
    in_order = sorted(
        engines, key=lambda engine: (not engine.valid, sign * (engine.value(metric, statistic) or 0.0))
    )
    valid = [engine for engine in in_order if engine.valid]
    pairs = _pairs(metric, statistic, valid, comparisons)
    rows = []
    for engine in in_order:
        row = RankingRow(
            label=engine.label,
            value=engine.value(metric, statistic),
            interval=engine.interval(metric, statistic),
            valid=engine.valid,
        )
        pair = pairs.get(frozenset((engine.label, valid[0].label))) if engine.valid else None
        rows.append(row if pair is None else row.model_copy(update=_against_best(engine.label, pair)))
    count = max((pair.comparisons for pair in pairs.values()), default=0)
    return Ranking(metric=metric, statistic=statistic, load=engines[0].load, rows=rows, comparisons=count)


def _against_best(label: str, pair: Comparison) -> dict[str, object]:
    """Fields of the row of `label` by its comparison with the best engine."""
    ratio, ends = pair.ratio, pair.ci
    if pair.b == label:
        ratio = 1 / ratio
        ends = None if ends is None or not ends[0] else (1 / ends[1], 1 / ends[0])
    return {"ratio": ratio, "ratio_interval": ends, "significant": pair.verdict in REAL}


def _with_headlines(by_metric: Mapping[str, Mapping[str, Ranking]], compared: Sequence[str]) -> list[Ranking]:
    """All rankings, those marked by which the engines are compared first; percentiles ascend."""
    latencies = [by_metric[name] for name in compared if METRICS[name].is_latency and by_metric[name]]
    shared = _shared_percentile(latencies)
    found = []
    for metric, by_statistic in by_metric.items():
        first = shared if shared in by_statistic else next(iter(by_statistic), None)
        found += [
            ranking.model_copy(update={"headline": metric in compared and statistic == first})
            for statistic, ranking in reversed(by_statistic.items())
        ]
    return found


def _shared_percentile(latencies: Sequence[Mapping[str, Ranking]]) -> str | None:
    """Percentile in which latencies are compared; None where they have none in common."""
    names = [name for name in PERCENTILES if latencies and all(name in by for by in latencies)]
    differing = [by for by in latencies if any(ranking.winner for ranking in by.values())]
    decided = (name for name in names if all(by[name].winner for by in differing))
    return next(decided, names[-1] if names else None)


def at_load(found: Sequence[Ranking], load: Load) -> list[Ranking]:
    """Select the rankings of one load."""
    return [ranking for ranking in found if ranking.load == load]
