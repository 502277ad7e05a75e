"""Latencies by engine: at every load, at the load of the verdict, and in one table that fits a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.metrics.percentiles import missing, needed, supported
from harness.metrics.rankings import BestLabels
from harness.report.grouping import grouped
from harness.report.tables.table import INTERVALS, Cell, Column, Table, metric_decimals
from harness.report.text.numbers import DASH, number, percent, several, two_digits
from harness.report.wording import reason_text
from harness.schema.load import Load
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS, latencies, rates
from harness.schema.results import OnlineSummary

#: Percentiles that tables show.
SHOWN = COMPARED_PERCENTILES
_ABSENT = "not measured"
_NO_INTERVAL = "no interval: too few independent requests"
_MARKED = "Marks compare repeats, which are independent."

#: A load, a metric and one of its statistics; a rate is its own statistic.
Key = tuple[Load, str, str]


def shown_latencies(pooled: Sequence[OnlineSummary]) -> tuple[str, ...]:
    """Latencies that have a table and figures: without those that only repeat another, and without those of
    few runs where there are none."""

    def is_shown(name: str) -> bool:
        like, samples = METRICS[name].like, [summary for summary in pooled if summary.latency(name).n]
        if like:
            return any(summary.latency(name).p50 != summary.latency(like).p50 for summary in samples)
        return "overview" in METRICS[name].uses or bool(samples)

    return tuple(filter(is_shown, latencies("tables")))


def loads_of(summaries: Sequence[OnlineSummary]) -> list[Load]:
    """The loads of the summaries, each once, in their order."""
    return sorted({summary.load for summary in summaries})


# --- Tables ---------------------------------------------------------------------------------------------


def latency_table(pooled: Sequence[OnlineSummary], metric: str, best_labels: BestLabels) -> Table:
    """A latency in ms: a row an engine; for each load a column a percentile, the best marked."""
    term = METRICS[metric]
    heads = {
        (load, metric, f"p{q}"): Column(f"p{q}", group=str(load), measure=f"{term.label}, {term.unit}")
        for load in loads_of(pooled)
        for q in SHOWN
    }
    columns = grid(pooled, heads, best_labels)
    notes = [*withheld_notes(pooled, (metric,)), *_why_no_interval(pooled, columns)]
    intervals = intervals_text(pooled, rates=False)
    return Table(metric, f"{term.label} ({term.unit})", columns, notes, intervals=intervals)


def headline_table(pooled: Sequence[OnlineSummary], best_labels: BestLabels) -> Table:
    """Engine rows; each headline latency at p99 (a lower one where a cell withholds it) and rate, a column a
    load."""
    statistics: dict[tuple[str, str], str] = {}
    lower: dict[int, list[str]] = {}
    for metric in latencies("headline"):
        sizes = [n for summary in pooled if (n := summary.latency(metric).n)]
        q = supported((99, 90), sizes) or 50
        if sizes and q < 99:
            lower.setdefault(q, []).append(METRICS[metric].label)
        statistics[metric, f"p{q}"] = f"{METRICS[metric].label} p{q}, ms"
    statistics |= {(rate, rate): METRICS[rate].label for rate in rates("headline")}
    heads = {
        (load, *statistic): Column(str(load), group=group)
        for statistic, group in statistics.items()
        for load in loads_of(pooled)
    }
    columns = grid(pooled, heads, best_labels)
    notes = [*_why_lower(lower), *_why_dashes(columns), *_why_no_interval(pooled, columns)]
    return Table("headline", "At a glance", columns, notes, intervals=intervals_text(pooled))


# --- Cells ----------------------------------------------------------------------------------------------


def grid(
    pooled: Sequence[OnlineSummary], heads: Mapping[Key, Column], best_labels: BestLabels
) -> list[Column]:
    """The columns of the labels and of the statistic of each key, decimals alike down a column where these
    show two digits of each.

    Winners are not marked where the number of one reads like that of an engine that is none: so small a
    difference decides nothing.
    """
    by_label: dict[str, dict[Load, OnlineSummary]] = {}
    for summary in pooled:
        by_label.setdefault(summary.label, {})[summary.load] = summary
    columns = [Column.text("engine", by_label)]
    for (load, metric, statistic), head in heads.items():
        summaries = {label: by_load.get(load) for label, by_load in by_label.items()}
        places = metric_decimals(
            metric, (supported_value(each, metric, statistic) for each in summaries.values())
        )
        cells = {label: statistic_cell(each, metric, statistic, places) for label, each in summaries.items()}
        best = cells.keys() & best_labels.get((load, metric, statistic), frozenset())
        if not {cells[label].text for label in best} & {cells[label].text for label in cells.keys() - best}:
            cells |= {label: replace(cells[label], best=True) for label in best}
        columns.append(replace(head, cells=list(cells.values())))
    return columns


def percentiles_column(summaries: Sequence[OnlineSummary], metric: str) -> Column:
    """The column of a latency as `p50/p90/p99`."""
    statistics = [f"p{q}" for q in SHOWN]
    places = metric_decimals(
        metric, (supported_value(s, metric, name) for s in summaries for name in statistics)
    )
    cells = []
    for summary in summaries:
        latency = summary.latency(metric)
        values = [supported_value(summary, metric, name) for name in statistics]
        cells.append(
            Cell(
                "/".join(number(value, places) for value in values) if latency.n else DASH,
                latency.p90,
                remark=reason_text(summary.invalid_reasons),
                invalid=not summary.valid,
                inferred=latency.source == "inferred",
            )
        )
    return Column(f"{METRICS[metric].label} {METRICS[metric].unit}", cells)


def slo_met(summary: OnlineSummary) -> Cell:
    """The share of all requests that keep to the service level."""
    if summary.slo_met is None:
        return Cell(DASH)
    met = percent(round(summary.slo_met * summary.num_requests), summary.num_requests)
    return Cell(met, summary.slo_met)


def statistic_cell(summary: OnlineSummary | None, metric: str, statistic: str, places: int) -> Cell:
    """Make the cell of a latency's percentile, or of a rate, with its own interval."""
    if summary is None:
        return Cell(DASH, remark=_ABSENT)
    value, is_latency = supported_value(summary, metric, statistic), METRICS[metric].is_latency
    if value is None:
        return Cell(DASH, remark=_why_withheld(summary, metric, statistic), invalid=not summary.valid)
    ci = summary.interval(metric, statistic)
    remarks = [] if summary.valid else [f"invalid: {reason_text(summary.invalid_reasons)}"]
    remarks += [_NO_INTERVAL] if is_latency and ci is None else []
    return replace(
        Cell.number(value, max(places, two_digits(value)) if is_latency else places, ci),
        remark="; ".join(remarks),
        invalid=not summary.valid,
        inferred=is_latency and summary.latency(metric).source == "inferred",
    )


def supported_value(summary: OnlineSummary | None, metric: str, statistic: str) -> float | None:
    """Return a rate, or a percentile that its sample supports."""
    if summary is None or (not METRICS[metric].is_latency and not summary.num_success):
        return None
    if METRICS[metric].is_latency and missing(float(statistic[1:]), summary.latency(metric).n):
        return None
    return summary.value(metric, statistic)


# --- Notes ----------------------------------------------------------------------------------------------


def _why_lower(labels: Mapping[int, Sequence[str]]) -> list[str]:
    """Say why latencies are shown at a lower percentile than p99: one note for each that is."""
    above = {90: 99, 50: 90}
    return [
        f"p{q} of {several(names)}: "
        f"p{above[q]} needs {needed(above[q])} requests of every engine at every load."
        for q, names in labels.items()
    ]


def _why_dashes(columns: Sequence[Column]) -> list[str]:
    """Write one note for each reason why a number is missing."""
    rows = zip(*(column.cells for column in columns), strict=True)
    dashes = [(label.text, cell.remark) for label, *cells in rows for cell in cells if cell.text == DASH]
    labels = {reason: dict(same) for reason, same in grouped(dashes, lambda dash: dash[1]).items() if reason}
    elsewhere = [f"{DASH}: {_ABSENT} at that load."] if labels.pop(_ABSENT, {}) else []
    return [*elsewhere, *(f"{DASH} for {several(same)}: {reason}." for reason, same in labels.items())]


def _why_withheld(summary: OnlineSummary, metric: str, statistic: str) -> str:
    if not METRICS[metric].is_latency:
        return "no request succeeded"
    latency = summary.latency(metric)
    n = latency.n
    if not n:
        return "no sample"
    if latency.censored and not missing(float(statistic[1:]), n):
        return f"{statistic} is among the requests that failed"
    return f"{statistic} is withheld, it needs {missing(float(statistic[1:]), n)} more samples"


def withheld_notes(summaries: Sequence[OnlineSummary], metrics: Sequence[str]) -> list[str]:
    """One note for each percentile that some cell withholds."""
    sizes = [summary.latency(metric).n for summary in summaries for metric in metrics]
    short = {q: max((missing(q, n) for n in sizes if n), default=0) for q in SHOWN}
    return [withheld_note(f"p{q}", more) for q, more in short.items() if more]


def withheld_note(statistic: str, more: int) -> str:
    """The note on a percentile that some cell withholds, since it needs as many more samples."""
    least = needed(int(statistic[1:]))
    return f"{DASH}: {statistic} needs {least} samples; up to {more} are missing."


def _why_no_interval(pooled: Sequence[OnlineSummary], columns: Sequence[Column]) -> list[str]:
    """Say, in a table with intervals, why some percentile has none, and why it is marked as best
    nevertheless."""
    cells = [cell for column in columns for cell in column.cells]
    without = [cell for cell in cells if _NO_INTERVAL in cell.remark]
    if not without or not any(cell.interval for cell in cells):
        return []
    marked = any(cell.best for cell in without) and not any(map(_is_single, pooled))
    return [f"{_NO_INTERVAL.capitalize()}.{f' {_MARKED}' if marked else ''}"]


def intervals_text(pooled: Sequence[OnlineSummary], *, rates: bool = True) -> str:
    """The meaning of the intervals: of one repeat they say nothing about the next, and its `rates` have
    none."""
    single = [summary for summary in pooled if _is_single(summary)]
    if not single:
        return INTERVALS
    if len(single) == len([summary for summary in pooled if summary.num_success]):
        return f"{INTERVALS} within the one repeat{'; rates have none' if rates else ''}"
    return f"{INTERVALS}; where an engine has one repeat, within it{', and rates have none' if rates else ''}"


def _is_single(summary: OnlineSummary) -> bool:
    """Tell whether the summary is of one repeat, which has no interval of a rate."""
    return summary.num_success > 0 and not summary.rates_ci
