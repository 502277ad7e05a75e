"""All figures of a run, drawn once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import matplotlib as mpl

from harness.metrics.samples import Group, by_load, pool
from harness.report.figures.bands import band, overview, percentile
from harness.report.figures.bars import bars
from harness.report.figures.capacity import capacity
from harness.report.figures.distributions import ecdf
from harness.report.figures.overtime import in_flight, lives, lives_end, timeline
from harness.report.figures.style import MATPLOTLIB, Look, looks
from harness.report.figures.svg import Plot
from harness.report.figures.tradeoff import tradeoff
from harness.report.figures.waterfall import waterfall
from harness.report.tables.latency import shown_latencies
from harness.report.tables.waterfall import with_waterfall
from harness.runs.reader import OfflineRun, OnlineRun, Run
from harness.schema.load import Load, heaviest
from harness.schema.metrics import latencies
from harness.schema.results import OnlineSummary


@dataclass(frozen=True)
class Figures:
    """The figures of a run, by what they show; `every` has each once, in the order of the report."""

    overview: Plot | None = None
    bands: dict[str, Plot] = field(default_factory=dict)
    percentiles: dict[tuple[str, int], Plot] = field(default_factory=dict)
    ecdfs: dict[str, list[Plot]] = field(default_factory=dict)
    capacity: Plot | None = None
    tradeoffs: list[Plot] = field(default_factory=list)
    waterfalls: list[Plot] = field(default_factory=list)
    timelines: dict[Load, list[Plot]] = field(default_factory=dict)
    lives: list[Plot] = field(default_factory=list)
    bars: list[Plot] = field(default_factory=list)

    @property
    def every(self) -> list[Plot]:
        first = [plot for plot in (self.capacity, self.overview) if plot is not None]
        details = chain(
            *self.ecdfs.values(), self.tradeoffs, self.waterfalls, *self.timelines.values(), self.lives
        )
        return [*first, *self.bands.values(), *self.percentiles.values(), *details, *self.bars]


def figures(run: Run) -> Figures:
    """All figures of a run."""
    return online_figures(run) if isinstance(run, OnlineRun) else offline_figures(run)


def online_figures(run: OnlineRun) -> Figures:
    """Band plots from the summaries, distributions and timelines from the raw tables."""
    pooled = [summary for summary in run.pooled if summary.num_success]
    if not pooled:
        return Figures()
    styles = looks((summary.engine, summary.label) for summary in run.pooled)
    shown = {label: look for label, look in styles.items() if any(s.label == label for s in pooled)}
    groups = [group for group in run.groups if len(group.metrics)]
    search = run.results.search
    with mpl.rc_context(MATPLOTLIB):
        return Figures(
            capacity=None if search is None else capacity(search, styles),
            overview=overview(pooled, shown),
            bands={metric: band(pooled, shown, metric) for metric in shown_latencies(pooled)},
            percentiles={
                (m, q): percentile(pooled, shown, m, q) for m in shown_latencies(pooled) for q in (90, 99)
            },
            ecdfs={} if search else _ecdfs(groups, styles, pooled),
            tradeoffs=[
                tradeoff(pooled, shown, metric)
                for metric in latencies("headline")
                if any(summary.latency(metric).n for summary in pooled)
            ],
            waterfalls=[
                waterfall(pooled, load)
                for load in sorted({summary.load for summary, _ in with_waterfall(pooled)})
            ],
            timelines={} if search else _timelines(groups, styles),
            lives=[] if search else _lives(groups, styles),
        )


def offline_figures(run: OfflineRun) -> Figures:
    """One bar chart of the output token rate, one of the total latency."""
    results = run.results.results
    if not results:
        return Figures()
    styles = looks((result.engine, result.label) for result in results)
    with mpl.rc_context(MATPLOTLIB):
        return Figures(bars=[bars(results, styles, metric) for metric in ("output_tok_per_s", "total_s")])


def _ecdfs(
    groups: list[Group], styles: dict[str, Look], pooled: list[OnlineSummary]
) -> dict[str, list[Plot]]:
    together = [pool(repeats) for repeats in by_load(groups)]
    loads = sorted({summary.load for summary in pooled})
    return {
        metric: [ecdf([g for g in together if g.load == load], styles, metric) for load in loads]
        for metric in shown_latencies(pooled)
    }


def _timelines(groups: list[Group], styles: dict[str, Look]) -> dict[Load, list[Plot]]:
    """The first repeat of each engine, with the same axes at the same load."""
    found: dict[Load, list[Plot]] = {}
    firsts = [repeats[0].whole or repeats[0] for repeats in by_load(groups)]
    for load in sorted({group.load for group in firsts}):
        cells = [group for group in firsts if group.load == load]
        highest = max(float(group.sample("ttft_ms").values.max(initial=0)) for group in cells)
        most = max(int(in_flight(group)[1].max()) for group in cells)
        found[load] = [timeline(g, styles[g.label], highest_ms=highest, most=most) for g in cells]
    return found


def _lives(groups: list[Group], styles: dict[str, Look]) -> list[Plot]:
    """The first repeat of each engine at the heaviest load."""
    most = heaviest(group.load for group in groups)
    firsts = [repeats[0].whole or repeats[0] for repeats in by_load(groups)]
    cells = [group for group in firsts if group.load == most]
    seconds = max(lives_end(group) for group in cells)
    return [lives(group, styles[group.label], seconds=seconds) for group in cells]
