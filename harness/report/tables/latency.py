"""Latencies by engine: at every load, at the load of the verdict, and in one table that fits a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.metrics.percentiles import missing, needed, supported
from harness.metrics.primary import LATENCIES
from harness.metrics.rankings import BestLabels, shown_percentile
from harness.report.tables.table import (
    INTERVALS,
    Cell,
    Column,
    Table,
    interval_cell,
    load_cell,
    metric_decimals,
    number_cell,
)
from harness.report.text.load_words import head_of, with_rate
from harness.report.text.numbers import DASH, decimals, few, number, percent, several, two_digits
from harness.report.wording import reason_text
from harness.runs.reader import Run
from harness.schema.load import ClosedLoop, Load
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

    def differs(name: str) -> bool:
        like = METRICS[name].like
        return not like or any(
            summary.latency(name).n and summary.latency(name).p50 != summary.latency(like).p50
            for summary in pooled
        )

    def expected(name: str) -> bool:
        return "overview" in METRICS[name].uses or any(summary.latency(name).n for summary in pooled)

    return tuple(name for name in latencies("tables") if differs(name) and expected(name))


def loads_of(summaries: Sequence[OnlineSummary]) -> list[Load]:
    """The loads of the summaries, each once, in their order."""
    return sorted({summary.load for summary in summaries})


# --- Tables ---------------------------------------------------------------------------------------------


def latency_table(pooled: Sequence[OnlineSummary], metric: str, best_labels: BestLabels) -> Table:
    """A latency in ms: a row an engine; for each load a column a percentile, the best marked."""
    term, loads = METRICS[metric], loads_of(pooled)
    keys = [(load, metric, f"p{q}") for load in loads for q in SHOWN]
    measure = f"{term.label}, {term.unit}"
    columns = [Column(statistic, str(load), measure=measure) for load, _, statistic in keys]
    rows = grid(pooled, keys, best_labels)
    return Table(
        metric,
        f"{term.label} ({term.unit})",
        [Column("engine", numeric=False), *columns],
        rows,
        [*withheld_notes(pooled, (metric,)), *_why_no_interval(pooled, rows)],
        intervals=intervals_text(pooled, rates=False),
    )


def headline_table(pooled: Sequence[OnlineSummary], best_labels: BestLabels) -> Table:
    """Engine rows; each headline latency at p99 (a lower one where a cell withholds it) and rate, a column a
    load."""
    loads = loads_of(pooled)
    keys: list[Key] = []
    columns = [Column("engine", numeric=False)]
    lower: dict[int, list[str]] = {}
    for metric in latencies("headline"):
        sizes = [n for summary in pooled if (n := summary.latency(metric).n)]
        q = supported((99, 90), sizes) or 50
        if sizes and q < 99:
            lower.setdefault(q, []).append(METRICS[metric].label)
        keys += [(load, metric, f"p{q}") for load in loads]
        columns += [Column(str(load), f"{METRICS[metric].label} p{q}, ms") for load in loads]
    for rate in rates("headline"):
        keys += [(load, rate, rate) for load in loads]
        columns += [Column(str(load), METRICS[rate].label) for load in loads]
    rows = grid(pooled, keys, best_labels)
    notes = [*_why_lower(lower), *_why_dashes(rows)]
    notes += _why_no_interval(pooled, rows)
    return Table("headline", "At a glance", columns, rows, notes, intervals=intervals_text(pooled))


def first_table(pooled: Sequence[OnlineSummary], load: Load, best_labels: BestLabels) -> Table:
    """Engine rows at one load: first tokens, tokens after it, whole answers, what was answered of what was
    offered. A closed loop offers as much as is answered: it has the tokens a second instead."""
    summaries = [summary for summary in pooled if summary.load == load]
    keys: list[Key] = []
    columns = [Column("engine", numeric=False)]
    for metric in latencies("headline"):
        group = f"{METRICS[metric].label}, ms"
        keys += [(load, metric, f"p{q}") for q in SHOWN]
        columns += [Column(f"p{q}", group) for q in SHOWN]
    keys.append((load, "e2e_ms", "p50"))
    columns.append(Column("p50", f"{METRICS['e2e_ms'].label}, ms"))
    closed = isinstance(load, ClosedLoop)
    if closed:
        keys.append((load, "output_tok_per_s", "output_tok_per_s"))
        columns.append(Column("output", "tokens/s", kept=True))
    rows = grid(summaries, keys, best_labels)
    places = decimals(summary.req_per_s for summary in summaries)
    has_peak = not closed or any(summary.peak_in_flight != load.value for summary in summaries)
    has_slo = any(summary.goodput_req_per_s is not None for summary in summaries)
    columns.append(Column("achieved", "requests/s"))
    columns += [] if closed else [Column("offered", "requests/s")]
    columns += [Column("in flight", "most")] if has_peak else []
    columns += [Column("SLO met", "requests")] if has_slo else []
    for row, summary in zip(rows, summaries, strict=True):
        row.append(_cell(summary, "req_per_s", "req_per_s", places))
        row += [] if closed else [number_cell(summary.offered_req_per_s, places)]
        row += [number_cell(summary.peak_in_flight, 0)] if has_peak else []
        row += [slo_met(summary)] if has_slo else []
    words = with_rate(load, (summary.offered_req_per_s for summary in summaries))
    notes = [*_why_dashes(rows), *_why_no_interval(summaries, rows)]
    title = f"{words[:1].upper()}{words[1:]}"
    return Table("first", title, columns, rows, notes, intervals=intervals_text(summaries))


def overview_table(run: Run, best_labels: BestLabels) -> Table:
    """TTFT and TPOT in ms at the median and a higher percentile, the achieved rate, that offered (not of
    closed loops), and output tokens a second: a row a load and engine, in the order of the loads."""
    pooled = run.pooled
    percentiles = [(metric, f"p{q}") for metric in LATENCIES for q in sorted({50, _higher(run, metric)})]
    heads = {"req_per_s": "req/s", "offered_req_per_s": "offered", "output_tok_per_s": "tok/s"}
    if all(isinstance(summary.load, ClosedLoop) for summary in pooled):
        del heads["offered_req_per_s"]  # it offers what is answered
    columns = [
        Column(head_of(summary.load for summary in pooled)),
        Column("engine", numeric=False),
        *(Column(statistic, METRICS[metric].label) for metric, statistic in percentiles),
        *map(Column, heads.values()),
    ]
    statistics = [*percentiles, *((name, name) for name in heads)]
    rows = []
    for load in loads_of(pooled):
        engines = [summary for summary in pooled if summary.load == load]
        keys = [(load, metric, statistic) for metric, statistic in statistics]
        for label, *cells in grid(engines, keys, best_labels):
            plain = (replace(cell, interval="") for cell in cells)
            rows.append([load_cell(load), label, *plain])
    return Table("overview", "Latencies in ms, requests and output tokens a second", columns, rows)


def _higher(run: Run, metric: str) -> int:
    """The percentile of the verdict, or where that is the median the highest that every cell supports."""
    sizes = [summary.latency(metric).n for summary in run.pooled if summary.num_success]
    q = shown_percentile(run.pooled, run.results.comparisons, metric)
    return q if q != 50 else supported((99, 90), sizes) or 50


# --- Cells ----------------------------------------------------------------------------------------------


def grid(pooled: Sequence[OnlineSummary], keys: Sequence[Key], best_labels: BestLabels) -> list[list[Cell]]:
    """One row a label: the statistic of each key, decimals alike down a column where these show two digits of
    each.

    Winners are not marked where the number of one reads like that of an engine that is none: so small a
    difference decides nothing.
    """
    by_label: dict[str, dict[Load, OnlineSummary]] = {}
    for summary in pooled:
        by_label.setdefault(summary.label, {})[summary.load] = summary
    columns = []
    for load, metric, statistic in keys:
        summaries = {label: by_load.get(load) for label, by_load in by_label.items()}
        places = metric_decimals(metric, (_value(each, metric, statistic) for each in summaries.values()))
        cells = {label: _cell(each, metric, statistic, places) for label, each in summaries.items()}
        best = cells.keys() & best_labels.get((load, metric, statistic), frozenset())
        if not {cells[label].text for label in best} & {cells[label].text for label in cells.keys() - best}:
            cells |= {label: replace(cells[label], best=True) for label in best}
        columns.append(list(cells.values()))
    return [[Cell(label), *(column[row] for column in columns)] for row, label in enumerate(by_label)]


def percentiles_cell(summary: OnlineSummary, metric: str, places: int) -> Cell:
    """A latency as `p50/p90/p99`."""
    latency = summary.latency(metric)
    values = [_value(summary, metric, f"p{q}") for q in SHOWN]
    return Cell(
        "/".join(number(value, places) for value in values) if latency.n else DASH,
        latency.p90,
        remark=reason_text(summary.invalid_reasons),
        invalid=not summary.valid,
        inferred=latency.source == "inferred",
    )


def latency_decimals(summaries: Sequence[OnlineSummary], metric: str) -> int:
    """Decimals of a column of `percentiles_cell`."""
    return metric_decimals(metric, (_value(summary, metric, f"p{q}") for summary in summaries for q in SHOWN))


def slo_met(summary: OnlineSummary) -> Cell:
    """The share of all requests that keep to the service level."""
    if summary.slo_met is None:
        return Cell(DASH)
    met = percent(round(summary.slo_met * summary.num_requests), summary.num_requests)
    return Cell(met, summary.slo_met)


def _cell(summary: OnlineSummary | None, metric: str, statistic: str, places: int) -> Cell:
    if summary is None:
        return Cell(DASH, remark=_ABSENT)
    value, is_latency = _value(summary, metric, statistic), METRICS[metric].is_latency
    if value is None:
        return Cell(DASH, remark=_why_withheld(summary, metric, statistic), invalid=not summary.valid)
    ci = summary.interval(metric, statistic)
    remarks = [] if summary.valid else [f"invalid: {reason_text(summary.invalid_reasons)}"]
    remarks += [_NO_INTERVAL] if is_latency and ci is None else []
    return replace(
        interval_cell(value, ci, max(places, two_digits(value)) if is_latency else places),
        remark="; ".join(remarks),
        invalid=not summary.valid,
        inferred=is_latency and summary.latency(metric).source == "inferred",
    )


def _value(summary: OnlineSummary | None, metric: str, statistic: str) -> float | None:
    """A rate, or a percentile that its sample supports."""
    if summary is None or (not METRICS[metric].is_latency and not summary.num_success):
        return None
    if METRICS[metric].is_latency and missing(float(statistic[1:]), summary.latency(metric).n):
        return None
    return summary.value(metric, statistic)


# --- Notes ----------------------------------------------------------------------------------------------


def _why_lower(labels: Mapping[int, Sequence[str]]) -> list[str]:
    """Why latencies are shown at a lower percentile than p99: one note for each that is."""
    above = {90: 99, 50: 90}
    return [
        f"p{q} of {several(names)}: "
        f"p{above[q]} needs {needed(above[q])} requests of every engine at every load."
        for q, names in labels.items()
    ]


def _why_dashes(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """One note for each reason why a number is missing."""
    by_reason: dict[str, list[str]] = {}
    for label, *cells in rows:
        for cell in cells:
            if cell.text == DASH and cell.remark:
                by_reason.setdefault(cell.remark, []).append(label.text)
    elsewhere = [f"{DASH}: {_ABSENT} at that load."] if by_reason.pop(_ABSENT, []) else []
    rest = [f"{DASH} for {several(dict.fromkeys(labels))}: {reason}." for reason, labels in by_reason.items()]
    return [*elsewhere, *rest]


def _why_withheld(summary: OnlineSummary, metric: str, statistic: str) -> str:
    if not METRICS[metric].is_latency:
        return "no request succeeded"
    n = summary.latency(metric).n
    if not n:
        return "no sample"
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


def _why_no_interval(pooled: Sequence[OnlineSummary], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """In a table with intervals, why some percentile has none, and why it is marked as best nevertheless."""
    cells = [cell for row in rows for cell in row]
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
    labels = list(dict.fromkeys(summary.label for summary in single))
    none = ", where rates have none" if rates else ""
    if all(_is_single(s) for s in pooled if s.label in labels and s.num_success):
        return f"{INTERVALS}; of {few(labels)} within the one repeat{none}"
    return f"{INTERVALS}; where an engine has one repeat, within it{none.replace('where', 'and')}"


def _is_single(summary: OnlineSummary) -> bool:
    """The summary is of one repeat, which has no interval of a rate."""
    return summary.num_success > 0 and not summary.rates_ci
