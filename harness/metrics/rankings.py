"""Rankings: at each load and by each metric the best engine, and how far the others are from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import Field

from harness.metrics.contrast import compared_by
from harness.metrics.percentiles import missing
from harness.schema.base import Strict
from harness.schema.facts import FELL_BEHIND
from harness.schema.load import Batch, ClosedLoop, Load, from_light_to_heavy
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS, latencies, rates, statistic_name
from harness.schema.results import Comparison, OnlineResults, OnlineSummary
from harness.schema.search import CapacityRatio, SearchResults

#: Percentiles that are compared, from the highest on.
PERCENTILES = tuple(f"p{q}" for q in reversed(COMPARED_PERCENTILES))
#: Metric of a search: the load that an engine carries within limits.
CAPACITY = "capacity"
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
        return excludes_one(self.ratio_interval)


class Ranking(Strict):
    """Engines by one statistic at one load: valid ones from the best on, then invalid ones."""

    metric: str
    statistic: str = Field(description="the metric's name again where it is a rate")
    load: Load | None = Field(description="null: the loads of a search")
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

    @property
    def name(self) -> str:
        """Name of the metric with its percentile: `TTFT p50`, `output tok/s`."""
        return statistic_name(self.metric, self.statistic)

    def row(self, label: str) -> RankingRow | None:
        """Return the row of an engine; None if it has none."""
        return next((row for row in self.rows if row.label == label), None)


def rankings(pooled: Sequence[OnlineSummary], comparisons: Sequence[Comparison]) -> list[Ranking]:
    """Rank the engines at each load, from light to heavy, by each statistic that all valid ones support.

    All latencies have one headline percentile: the highest at which each latency that has a winner anywhere
    has one. If there is none, it is the lowest that they share; if nothing differs, the highest. A metric
    without a statistic that all support has no ranking: too few requests were measured. Where a valid engine
    fell behind, rates alone are ranked: its latencies are those of a queue.

    Args:
        pooled: summaries of all repeats, one an engine and load.
    """
    every = []
    for load in from_light_to_heavy(summary.load for summary in pooled):
        engines = [summary for summary in pooled if summary.load == load]
        pairs = [pair for pair in comparisons if pair.load == load]
        behind = any(engine.valid and fell_behind(engine) for engine in engines)
        compared = rates("headline") if behind else compared_by(load)
        others = () if behind else _others(load)
        by_metric = {metric: _of_metric(metric, engines, pairs) for metric in (*compared, *others)}
        every += _with_headlines(by_metric, compared)
    return every


def _others(load: Load) -> list[str]:
    """Return the metrics that decide no winner, in which another engine may be better."""
    every = () if isinstance(load, Batch) else (*latencies("compared"), *rates("compared"))
    return [name for name in every if "headline" not in METRICS[name].uses]


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


def _against_best(label: str, pair: Comparison | CapacityRatio) -> dict[str, object]:
    """Return the fields of the row of `label` by its comparison with the best engine."""
    if isinstance(pair, Comparison):
        ratio, ends, significant = pair.ratio, pair.ci, pair.verdict in REAL
    else:
        ratio, ends = pair.value, _closed(pair.low, pair.high)
        significant = pair.verdict != "no difference shown"
    if pair.b == label:
        ratio = 1 / ratio
        ends = None if ends is None or not ends[0] else (1 / ends[1], 1 / ends[0])
    return {"ratio": ratio, "ratio_interval": ends, "significant": significant}


def _with_headlines(by_metric: Mapping[str, Mapping[str, Ranking]], compared: Sequence[str]) -> list[Ranking]:
    """All rankings, those marked by which the engines are compared first; percentiles ascend."""
    latencies = [by_metric[name] for name in compared if METRICS[name].is_latency and by_metric[name]]
    shared = _shared_percentile(latencies)
    marked = []
    for metric, by_statistic in by_metric.items():
        first = shared if shared in by_statistic else next(iter(by_statistic), None)
        marked += [
            ranking.model_copy(update={"headline": metric in compared and statistic == first})
            for statistic, ranking in reversed(list(by_statistic.items()))
        ]
    return marked


def _shared_percentile(latencies: Sequence[Mapping[str, Ranking]]) -> str | None:
    """Percentile in which latencies are compared; None where they have none in common."""
    names = [name for name in PERCENTILES if latencies and all(name in by for by in latencies)]
    differing = [by for by in latencies if any(ranking.winner for ranking in by.values())]
    decided = (name for name in names if all(by[name].winner for by in differing))
    return next(decided, names[-1] if names else None)


def headlines(found: Sequence[Ranking], load: Load | None) -> list[Ranking]:
    """Select the rankings of a load by which its engines are compared first."""
    return [ranking for ranking in found if ranking.headline and ranking.load == load]


def batch_ranking(results: OnlineResults) -> Ranking | None:
    """Rank the engines of an offline batch by their output tokens a second; None without a result."""
    pooled = [summary for summary in results.summaries if summary.repeat is None]
    return next((ranking for ranking in rankings(pooled, results.comparisons) if ranking.headline), None)


def capacity_ranking(search: SearchResults) -> Ranking:
    """Rank the engines of a search by the load that they carry; one whose value would be a guess is not
    valid."""
    in_order = sorted(
        search.engines, key=lambda engine: (engine.guessed, -engine.shown, engine.bound == "lightest")
    )
    pairs = {frozenset((pair.a, pair.b)): pair for pair in search.ratios}
    rows: list[RankingRow] = []
    for engine in in_order:
        row = RankingRow(
            label=engine.label, value=engine.value, interval=_closed(engine.low, engine.high),
            valid=engine.value is not None and not engine.guessed,
        )  # fmt: skip
        pair = pairs.get(frozenset((engine.label, in_order[0].label)))
        if pair is not None and row.valid and rows and rows[0].valid:
            row = row.model_copy(update=_against_best(engine.label, pair))
        rows.append(row)
    return Ranking(metric=CAPACITY, statistic=CAPACITY, load=None, rows=rows, headline=True)


def _closed(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def fell_behind(summary: OnlineSummary) -> bool:
    """Tell whether the latencies of an open loop grew with its length."""
    return any(fact.kind in FELL_BEHIND for fact in summary.notices)


def shown_load(pooled: Sequence[OnlineSummary]) -> Load:
    """Choose the load of the answer: the heaviest at which two engines are valid and no valid one fell
    behind, else at which two are valid, else one in the same order, else the heaviest."""
    valid = [summary.load for summary in pooled if summary.valid]
    by_weight = list(reversed(from_light_to_heavy(valid or [summary.load for summary in pooled])))
    behind = {summary.load for summary in pooled if summary.valid and fell_behind(summary)}
    return max(by_weight, key=lambda load: (valid.count(load) > 1, load not in behind))


#: Labels that are better than all others but each other, by (load, metric, statistic).
BestLabels = dict[tuple[Load, str, str], frozenset[str]]


def best_labels(pooled: Sequence[OnlineSummary], comparisons: Sequence[Comparison]) -> BestLabels:
    """Labels that differ to their good from every other valid engine at that load but from each other.

    An invalid cell neither wins nor loses. By a rate that the load sets, none is the best.
    """
    valid = valid_labels(pooled)
    behind = {summary.load for summary in pooled if fell_behind(summary)}
    won: defaultdict[tuple[Load, str, str], set[tuple[str, str]]] = defaultdict(set)
    for pair in comparisons:
        set_by_load = not isinstance(pair.load, ClosedLoop) and pair.load not in behind
        labels = {pair.a, pair.b}
        if (set_by_load and METRICS[pair.metric].set_by_load) or not labels <= valid[pair.load]:
            continue
        if pair.verdict in REAL:
            first = better(pair)
            [second] = labels - {first}
            won[pair.load, pair.metric, pair.statistic].add((first, second))
    unbeaten = {key: _unbeaten(valid[key[0]], pairs) for key, pairs in won.items()}
    return {key: labels for key, labels in unbeaten.items() if labels}


def _unbeaten(labels: set[str], won: set[tuple[str, str]]) -> frozenset[str]:
    """Labels that lose to nobody and beat everybody else; none where there are no such. `won`: pairs of a
    better and a worse one."""
    first = frozenset(labels - {worse for _, worse in won})
    return first if all((a, b) in won for a in first for b in labels - first) else frozenset()


def valid_labels(pooled: Sequence[OnlineSummary]) -> defaultdict[Load, set[str]]:
    """Labels whose cell at a load is valid, by the load."""
    valid: defaultdict[Load, set[str]] = defaultdict(set)
    for summary in pooled:
        if summary.valid:
            valid[summary.load].add(summary.label)
    return valid


def better(pair: Comparison) -> str:
    """Label with the better value, whether or not the difference is significant."""
    lower, higher = (pair.a, pair.b) if pair.ratio < 1 else (pair.b, pair.a)
    return lower if METRICS[pair.metric].lower_is_better else higher


def excludes_one(ratio_ci: tuple[float, float] | None) -> bool:
    """Tell whether a ratio's own 95 % interval does, whatever the verdict."""
    return ratio_ci is not None and not ratio_ci[0] <= 1 <= ratio_ci[1]
