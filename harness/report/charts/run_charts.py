"""All charts of a run, and those with a row an engine: parts of the TTFT and of a step, offline throughput,
the cells of a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from statistics import fmean

from harness.engines.registry import in_order
from harness.metrics.samples import Group, by_load, pool
from harness.profiling.artifacts import read_profiles
from harness.profiling.explain import TOOLS
from harness.report.charts import over_time
from harness.report.charts.by_load import acceptance, decision_charts, ecdf, tradeoff
from harness.report.charts.by_load import by_load as latency_by_load
from harness.report.charts.chart import Axis, Chart, Point, Series, is_wide, with_invalid
from harness.report.decision import NOTHING, Asked, Decision, decide
from harness.report.grouping import grouped
from harness.report.tables.cells import with_waterfall
from harness.report.tables.latency import shown_latencies
from harness.report.text.load_words import load_file_name
from harness.report.text.numbers import plural, several
from harness.runs.reader import Run
from harness.schema.base import repeat_text
from harness.schema.fairness import PARTS
from harness.schema.load import Load, from_light_to_heavy, heaviest
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.profile import ProfileFigures
from harness.schema.results import BatchRow, OnlineSummary
from harness.schema.search import SearchResults, SearchTrial

#: From light to dark along a request's way; each differs in lightness from its neighbours.
COLORS = {
    "client lag": "#c9ced4",
    "http": "#86b6dd",
    "queue": "#e3a04a",
    "prefill": "#2f6fb0",
    "delivery": "#79b791",
    "unexplained": "#84898f",
}
#: Parts of a step, in this order.
PARTS_OF_A_STEP = {
    "attention": "#2f6fb0",
    "experts": "#b5563c",
    "matmul": "#e3a04a",
    "norm and elementwise": "#79b791",
    "sampling": "#a8476a",
    "memory copies": "#8a6fb8",
    "communication": "#3f9aa5",
    "other": "#84898f",
    "idle": "#d5d9de",
}
_MET = {True: "limits met", False: "limits not met", None: "invalid"}


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


def rows(labels: Sequence[str]) -> Axis:
    """An axis of engines from top to bottom."""
    ticks = [(float(i), label) for i, label in enumerate(labels)]
    return Axis("engine", ticks=ticks, ends=(-0.5, len(labels) - 0.5), down=True)


def _bar(
    label: str, row: int, parts: Iterable[tuple[str, float, int | None, str]], colors: Mapping[str, str]
) -> Iterator[Series]:
    """Yield the parts of a bar one after the other; each has a name, a length, its samples and a note."""
    reach = 0.0
    for part, length, n, note in parts:
        span = Point(length, row, (reach, reach + length), n, note)
        yield Series.of(label, "spans", [span], part, color=colors[part], is_length=True)
        reach += length


def waterfall(pooled: Sequence[OnlineSummary], load: Load) -> Chart:
    """The parts of the mean TTFT at one load, a bar an engine."""
    apart = [(summary, parts) for summary, parts in with_waterfall(pooled) if summary.load == load]
    series: list[Series] = []
    for row, (summary, parts) in enumerate(apart):
        each = [(it.part, max(it.mean_ms or 0.0, 0.0), it.n, f"{it.source}: {it.how}") for it in parts.parts]
        series += _bar(summary.label, row, each, COLORS)
    order: list[str] = list(PARTS)
    silent = [
        f"{summary.label} reported no parts"
        for summary, parts in apart
        if all(part.mean_ms is None for part in parts.parts if part.part in ("queue", "prefill"))
    ]
    return Chart(
        name=f"waterfall_{load_file_name(load)}",
        title=f"Mean TTFT at {load}, ms",
        x=Axis("mean TTFT from the schedule, ms", "ms"),
        y=rows([summary.label for summary, _ in apart]),
        series=sorted(series, key=lambda s: order.index(s.part)),
        note="; ".join([f"from the schedule; n ≥ {min(p.n for _, p in apart):,} requests a bar", *silent]),
    )


def profile(figures: Sequence[ProfileFigures], labels: Sequence[str]) -> Chart | None:
    """The parts of a decode step, a bar an engine; None where no profile has one."""
    by_label = {
        each.label: each
        for tool in reversed(TOOLS)
        for each in figures
        if each.tool == tool and "decode" in each.steps
    }
    shown = [by_label[label] for label in labels if label in by_label]
    series: list[Series] = []
    for row, each in enumerate(shown):
        step = each.steps["decode"]
        times_ms = {str(name): ms for name, ms in step.categories_ms.items()} | {"idle": step.idle_ms}
        note = f"of {step.period_ms:.3g} ms a step"
        parts = [(part, times_ms.get(part, 0.0), None, note) for part in PARTS_OF_A_STEP]
        series += _bar(each.label, row, parts, PARTS_OF_A_STEP)
    order = list(PARTS_OF_A_STEP)
    if not shown:
        return None
    return Chart(
        name="profile",
        title="Where the time of a decode step goes, ms",
        x=Axis("mean decode step, ms", "ms"),
        y=rows([each.label for each in shown]),
        series=sorted((each for each in series if each.x[0]), key=lambda s: order.index(s.part)),
        note=f"by {several(dict.fromkeys(each.tool for each in shown))}, in a server of its own",
    )


def bars(results: Sequence[BatchRow], metric: str) -> Chart:
    """One bar an engine, as long as the mean of its repeats, with a marker for each repeat."""
    term, labelled = METRICS[metric], grouped(results, lambda result: result.label)
    series = []
    for row, (label, repeats) in enumerate(labelled.items()):
        values = [float(getattr(result, metric)) for result in repeats]
        mean = fmean(values)
        bar = Point(mean, row, (0.0, mean), note=f"mean of {plural(len(values), 'repeat')}")
        each = [
            Point(value, row, note=repeat_text(result.repeat))
            for value, result in zip(values, repeats, strict=True)
        ]
        series.append(Series.of(label, "spans", [bar], "mean", opacity=0.8, is_length=True))
        series.append(Series.of(label, "points", each, "repeat", hollow=True))
    better = "lower" if term.lower_is_better else "higher"
    prompts = sorted({result.num_prompts for result in results})
    return Chart(
        name=f"offline_{metric}",
        title=f"{term.title[0].upper()}{term.title[1:]}, {term.unit}",
        x=Axis(term.unit, term.unit),
        y=rows(list(labelled)),
        series=series,
        note=f"{better} is better; n = {', '.join(str(count) for count in prompts)} prompts a run",
    )


def capacity(search: SearchResults) -> Chart:
    """A row an engine: its cells in the order of measurement downwards, and the interval as a bar."""
    series = []
    engines = in_order(search.engines)
    for row, engine in enumerate(engines):
        low, high = engine.low or search.plan.lowest, engine.high or search.plan.highest
        interval = Point(low, row, (low, high))
        series.append(Series.of(engine.label, "spans", [interval], "95 % interval", opacity=0.4, width=0.12))
        for met, part in _MET.items():
            trials = [(i, trial) for i, trial in enumerate(engine.trials) if trial.met is met]
            heights = [row - 0.4 + 0.7 * i / len(engine.trials) for i, _ in trials]
            cells = [
                Point(trial.value, height, note=_measured(trial), valid=met is not None)
                for height, (_, trial) in zip(heights, trials, strict=True)
            ]
            if cells:
                series.append(Series.of(engine.label, "points", cells, part, hollow=met is False))
    return Chart(
        name="capacity",
        title="Cells of the search, and the highest load within the limits",
        x=Axis(search.plan.unit, log=is_wide(t.value for e in engines for t in e.trials)),
        y=rows([engine.label for engine in engines]),
        series=series,
        note="filled: limits met; hollow: not; bar: 95 % interval",
    )


def _measured(trial: SearchTrial) -> str:
    values = trial.measured.items()
    return ", ".join(f"{name} {'no answer' if value is None else f'{value:.4g}'}" for name, value in values)
