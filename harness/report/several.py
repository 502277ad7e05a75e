"""Several runs in one report: a verdict, all loads in one chart and table, and what later runs change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.compare.compare_runs import compare_runs
from harness.errors import UsageError
from harness.metrics.rankings import REAL
from harness.report.answer import answer, assumption
from harness.report.charts.by_load import alone, by_load
from harness.report.charts.looks import Look, looks
from harness.report.charts.run_charts import Charts
from harness.report.tables.comparisons import caveats, difference_tables
from harness.report.tables.rates import all_runs_table
from harness.report.tables.table import Table
from harness.report.text.heading import facts, versions
from harness.report.text.load_words import where
from harness.report.text.numbers import AS_TIMES, change_text, plural, several
from harness.runs.reader import Run
from harness.schema.compare_results import CompareResults
from harness.schema.metrics import latencies, statistic_name

#: Statistics of a change that its sentence names, the first that differ.
_NAMED = 3
#: Facts that follow from others.
_LEFT_OUT = ("Scales", "Sample", "Engines")


@dataclass(frozen=True)
class Change:
    """Run `b` against run `a`: names, a sentence, whether a difference is shown, tables of differences, how
    to read them, and what is not alike."""

    a: str
    b: str
    verdict: str
    differs: bool
    tables: Sequence[Table]
    caveats: Sequence[str]
    obstacles: Sequence[str]


@dataclass(frozen=True)
class Together:
    """Head of several runs: a sentence on each, in what they differ, and the latencies of all by
    load."""

    verdicts: Sequence[str]
    names: Sequence[str]
    differing: Sequence[str]
    charts: Charts
    styles: dict[str, Look]


def together(runs: Sequence[Run]) -> Together:
    """The verdict of every run, and charts where the loads of the online runs belong on one axis.

    They do where the runs replayed the same trace, or kept loads of the same other kind in flight. An engine
    that two runs measured at one load is named with the name of its run.
    """
    names, differing = run_names(runs), _differing(runs)
    named = list(zip(names, runs, strict=True))
    verdicts = [f"{name}: {answer(run)[0]} {assumption(run)}".rstrip() for name, run in named]
    online = [(name, run) for name, run in named if not run.is_batch]
    measured = [(name, s) for name, run in online for s in run.pooled if s.num_success]
    traces = {run.meta.trace.name for _, run in online if run.meta.trace is not None}
    searched = any(run.results.search is not None for _, run in online)
    if (
        len(online) < 2
        or len({(s.load.kind, s.load.counts) for _, s in measured}) != 1
        or len(traces) > 1
        or searched
    ):
        return Together(verdicts, names, differing, Charts(), {})
    counts = Counter((s.label, s.load) for _, s in measured)
    twice = {label for (label, _), count in counts.items() if count > 1}
    pooled = [
        s.model_copy(update={"label": f"{s.label}, {name}"}) if s.label in twice else s
        for name, s in measured
    ]
    slo = online[0][1].meta.settings.slo
    shown = [by_load(pooled, metric, slo) for metric in latencies("headline")]
    styles = looks((s.engine, s.label) for s in pooled)
    first = [alone(chart, 99) for chart in shown if chart.series]
    return Together(verdicts, names, differing, Charts(first=first), styles)


def run_names(runs: Sequence[Run]) -> list[str]:
    """Name runs by their folders, with a number where two have the same."""
    counts = Counter(run.path.name for run in runs)
    return [
        f"{run.path.name} ({number})" if counts[run.path.name] > 1 else run.path.name
        for number, run in enumerate(runs, 1)
    ]


def _differing(runs: Sequence[Run]) -> list[str]:
    """List of each run the facts and versions that are not alike in all."""
    each = []
    for run in runs:
        revision = (run.meta.versions.git_rev or "").partition("-")
        commit = f"commit {revision[0][:12]}{''.join(revision[1:])}" if revision[0] else ""
        named = {label: f"{label} {version}" for label, version in versions(run.meta).items()}
        each.append({**facts(run), "commit": commit, **named})
    keys = dict.fromkeys(key for named_facts in each for key in named_facts if key not in _LEFT_OUT)
    unlike = [key for key in keys if len({named_facts.get(key) for named_facts in each}) > 1]
    return [" · ".join(named_facts[key] for key in unlike if named_facts.get(key)) for named_facts in each]


def _verdict(results: CompareResults) -> str:
    """The differences that hold for all comparisons together, headline latencies first."""
    real = [d for d in results.differences if d.verdict in REAL]
    if not real:
        return f"no difference is shown in {plural(results.comparisons, 'comparison')}."
    headline = latencies("headline")
    real.sort(key=lambda d: (d.metric not in headline, d.statistic != "p99"))
    named = [
        f"{d.engine_b}'s {statistic_name(d.metric, d.statistic)} {where(d.load)} is "
        f"{change_text(d.ratio, 0)}{' as much' * (d.ratio >= AS_TIMES)} ({d.verdict})"
        for d in real[:_NAMED]
    ]
    rest = len(real) - len(named)
    more = [f"{plural(rest, 'other statistic')} differ{'s' * (rest == 1)}"] if rest else []
    return f"{several([*named, *more])}; {plural(results.comparisons, 'comparison')} in all."


def overview(runs: Sequence[Run]) -> Table | None:
    """Every engine of the online runs at every load; None of less than two such runs."""
    named = zip(run_names(runs), runs, strict=True)
    online = {name: run.pooled for name, run in named if not run.is_batch}
    return all_runs_table(online) if len(online) > 1 else None


def changes(runs: Sequence[Run]) -> list[Change]:
    """Every online run against the first of them, and every offline one likewise, for each engine that both
    have; none of a single run.

    What differs other than the engines (the trace, the machine, the lengths, an invalid cell) is reported,
    and nothing is compared then.
    """
    online = [run for run in runs if not run.is_batch]
    offline = [run for run in runs if run.is_batch and run.results.results]
    pairs = [(alike[0], run) for alike in (online, offline) for run in alike[1:]]
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    compared = []
    for first, run in pairs:
        if run.path.resolve() == first.path.resolve():
            continue
        try:
            results = compare_runs(
                first.path, run.path, allowed=("engines", "scales", "concurrency", "request-rate")
            )
        except UsageError as error:  # one was interrupted: its results are those of the cells it has
            compared.append(Change(names[id(first)], names[id(run)], "", False, [], [], [error.message]))
            continue
        compared.append(
            Change(
                names[id(first)],
                names[id(run)],
                _verdict(results),
                any(d.verdict in REAL for d in results.differences),
                difference_tables(results),
                caveats(results) if results.differences else [],
                [obstacle.reason for obstacle in results.obstacles],
            )
        )
    return compared
