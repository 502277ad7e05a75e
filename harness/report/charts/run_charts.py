"""All charts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

from harness.metrics.samples import Group, by_load, pool
from harness.profiling.artifacts import read_profiles
from harness.report.charts import over_time
from harness.report.charts.by_load import acceptance, decision_charts, ecdf, tradeoff
from harness.report.charts.by_load import by_load as latency_by_load
from harness.report.charts.chart import Chart, with_invalid
from harness.report.charts.rows import bars, capacity, profile, waterfall
from harness.report.decision import NOTHING, Asked, Decision, decide
from harness.report.tables.cells import with_waterfall
from harness.report.tables.latency import shown_latencies
from harness.runs.reader import Run
from harness.schema.load import Load, from_light_to_heavy, heaviest
from harness.schema.metrics import latencies, rates


@dataclass(frozen=True)
class Charts:
    """The charts of a run, by what they show; `every` has each once."""

    first: list[Chart] = field(default_factory=list)
    #: The distribution of TTFT at each load, for the first screen.
    at_load: dict[Load, Chart] = field(default_factory=dict)
    by_load: dict[str, Chart] = field(default_factory=dict)
    ecdfs: dict[str, list[Chart]] = field(default_factory=dict)
    tradeoffs: list[Chart] = field(default_factory=list)
    waterfalls: dict[Load, Chart] = field(default_factory=dict)
    decision: list[Chart] = field(default_factory=list)
    #: What `decision` shows; None of a batch, and where nothing succeeded.
    decided: Decision | None = None
    over_time: dict[Load, list[Chart]] = field(default_factory=dict)
    lives: list[Chart] = field(default_factory=list)
    bars: list[Chart] = field(default_factory=list)
    #: The parts of a profiled step, where there are profiles.
    profile: list[Chart] = field(default_factory=list)

    @property
    def every(self) -> Mapping[str, Chart]:
        """By name."""
        details = chain(*self.ecdfs.values(), self.tradeoffs, self.decision, self.waterfalls.values())
        times = chain(*self.over_time.values(), self.lives)
        first = [*self.first, *self.at_load.values()]
        every = [*first, *self.by_load.values(), *details, *times, *self.bars, *self.profile]
        return {chart.name: chart for chart in every}


def charts(run: Run, asked: Asked = NOTHING) -> Charts:
    """All charts of a run, held to what a reader asks."""
    results, profiles = run.results.results, read_profiles(run.path)
    drawn = Charts(bars=[bars(results, metric) for metric in rates("bars")] if results else [])
    drawn = drawn if run.is_batch else _online(run, asked)
    steps = profile(profiles.figures, [label for _, label in run.engines]) if profiles else None
    return replace(drawn, profile=[steps] if steps else [])


def _online(run: Run, asked: Asked) -> Charts:
    """Charts by load from the summaries, distributions and times from the raw tables."""
    pooled = [summary for summary in run.pooled if summary.num_success]
    if not pooled:
        return Charts()
    slo, search = run.meta.settings.slo, run.results.search
    by_metric = {metric: latency_by_load(pooled, metric, slo) for metric in shown_latencies(pooled)}
    shown = {metric: chart for metric, chart in by_metric.items() if chart.series}
    rank = list(dict.fromkeys(summary.label for summary in run.pooled))
    groups = [group for group in run.groups if len(group.metrics)]
    groups.sort(key=lambda group: rank.index(group.label))
    together = over_time.same_load([pool(repeats) for repeats in by_load(groups)])
    invalid = {(cell.label, cell.load, cell.repeat) for cell in (*pooled, *run.repeats) if not cell.valid}

    def marked(chart: Chart, cells: Sequence[Group]) -> Chart:
        """Return the chart of these cells, with those that are invalid marked."""
        return with_invalid(chart, [c.label for c in cells if (c.label, c.load, c.repeat) in invalid])

    decided = decide(run, asked)
    drafts = acceptance(run.results.speculation, pooled)
    of_all = Charts(
        by_load=shown,
        tradeoffs=[
            *(
                tradeoff(pooled, metric, slo)
                for metric in latencies("headline")
                if any(summary.latency(metric).n for summary in pooled)
            ),
            *([drafts] if drafts else []),
        ],
        waterfalls={
            load: marked(waterfall(pooled, load), together[load])
            for load in from_light_to_heavy(summary.load for summary, _ in with_waterfall(pooled))
        },
        decision=decision_charts(decided, pooled),
        decided=decided,
    )
    if search is not None:
        return replace(of_all, first=[capacity(search)])
    ecdfs: dict[str, dict[Load, Chart]] = {metric: {} for metric in shown}
    for metric, (load, cells) in product(shown, together.items()):
        chart = ecdf(cells, metric, slo)
        if chart.series:
            ecdfs[metric][load] = marked(chart, cells)
    main, *_ = latencies("headline")
    firsts = over_time.same_load([repeats[0].whole for repeats in by_load(groups)])
    heavy = firsts[heaviest(firsts)]
    return replace(
        of_all,
        first=[chart for chart in of_all.decision if chart.name == "frontier"],
        at_load=ecdfs.pop(main, {}),
        ecdfs={metric: list(by_load.values()) for metric, by_load in ecdfs.items()},
        over_time={
            load: [
                marked(chart, cells)
                for chart in (
                    over_time.latency_over_time(cells),
                    over_time.load_over_time(cells),
                    *over_time.power_charts(cells, run.results.machines, run.chunks),
                    *over_time.server_charts(cells, run.server),
                )
            ]
            for load, cells in firsts.items()
        },
        lives=[marked(chart, [cell]) for cell, chart in zip(heavy, over_time.lives(heavy), strict=True)],
    )
