"""Latencies by engine and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.metrics.percentiles import missing, needed, supported
from harness.report.best import BestLabels
from harness.report.tables.interval_notes import NO_INTERVAL, intervals_text, why_no_interval
from harness.report.tables.table import (
    Cell,
    Column,
    Table,
    interval_text,
    metric_decimals,
    number_cell,
)
from harness.report.text.claims import without_any
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import DASH, decimals, number, percent, several, two_digits
from harness.schema.load import ClosedLoop, Load
from harness.schema.metrics import COMPARED_PERCENTILES, METRICS, latencies, rates
from harness.schema.online_summary import OnlineSummary

#: Percentiles that tables show.
SHOWN = COMPARED_PERCENTILES
_ABSENT = "not measured"


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


def latency_table(pooled: Sequence[OnlineSummary], metric: str, best_labels: BestLabels) -> Table:
    """Engine rows; for each load a column a percentile, with intervals and the best marked."""
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
        [*withheld_notes(pooled, (metric,)), *why_no_interval(pooled, rows)],
        intervals=intervals_text(pooled, rates=False),
    )


def headline_table(pooled: Sequence[OnlineSummary], best_labels: BestLabels) -> Table:
    """Engine rows; each headline latency at p99 (a lower one where a cell withholds it) and rate, a column a
    load."""
    loads = loads_of(pooled)
    keys, columns = [], []
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
    rows, heads = grid(pooled, keys, best_labels), [Column("engine", numeric=False), *columns]
    absent = [without_any(pooled, METRICS[metric]) for metric in latencies("headline")]
    notes = [*_why_lower(lower), *(f"{said}." for said in absent if said), *_why_dashes(rows)]
    notes += why_no_interval(pooled, rows)
    return Table("headline", "At a glance", heads, rows, notes, intervals=intervals_text(pooled))


def _why_lower(labels: Mapping[int, Sequence[str]]) -> list[str]:
    """Why latencies are shown at a lower percentile than p99: one note for each that is."""
    above = {90: 99, 50: 90}
    return [
        f"p{q} of {several(names)}: "
        f"p{above[q]} needs {needed(above[q])} requests of every engine at every load."
        for q, names in labels.items()
    ]


def _why_dashes(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """What is not there, and why: one note for each reason."""
    found: dict[str, list[str]] = {}
    for label, *cells in rows:
        for cell in cells:
            if cell.text == DASH and cell.remark:
                found.setdefault(cell.remark, []).append(label.text)
    elsewhere = [f"{DASH}: {_ABSENT} at that load."] if found.pop(_ABSENT, []) else []
    rest = [f"{DASH} for {several(dict.fromkeys(labels))}: {remark}." for remark, labels in found.items()]
    return [*elsewhere, *rest]


def first_table(pooled: Sequence[OnlineSummary], load: Load, best_labels: BestLabels) -> Table:
    """Engine rows at one load: first tokens, tokens after it, whole answers, what was answered of what was
    offered. A closed loop offers as much as is answered: it has the tokens a second instead."""
    there = [summary for summary in pooled if summary.load == load]
    keys, columns = [], [Column("engine", numeric=False)]
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
    rows = grid(there, keys, best_labels)
    places = decimals(summary.req_per_s for summary in there)
    peaks = [summary.peak_in_flight for summary in there]
    has_peak = not closed or any(peak != load.value for peak in peaks)
    has_slo = any(summary.goodput_req_per_s is not None for summary in there)
    columns.append(Column("achieved", "requests/s"))
    columns += [] if closed else [Column("offered", "requests/s")]
    columns += [Column("in flight", "most")] if has_peak else []
    columns += [Column("SLO met", "requests")] if has_slo else []
    for row, summary, peak in zip(rows, there, peaks, strict=True):
        row += [
            _cell(summary, "req_per_s", "req_per_s", places),
            *([] if closed else [number_cell(summary.offered_req_per_s, places)]),
            *([Cell(DASH if peak is None else f"{peak:,}", peak)] if has_peak else []),
        ]
        if has_slo:
            row.append(slo_met(summary))
    said = with_rate(load, (summary.offered_req_per_s for summary in there))
    notes = [*_why_dashes(rows), *why_no_interval(there, rows)]
    title = f"{said[:1].upper()}{said[1:]}"
    return Table("first", title, columns, rows, notes, intervals=intervals_text(there))


def slo_met(summary: OnlineSummary) -> Cell:
    """How many of all requests keep to the service level."""
    if summary.slo_met is None:
        return Cell(DASH)
    met = percent(round(summary.slo_met * summary.num_requests), summary.num_requests)
    return Cell(met, summary.slo_met)


def latency_decimals(summaries: Sequence[OnlineSummary], metric: str) -> int:
    return metric_decimals(metric, (_value(summary, metric, f"p{q}") for summary in summaries for q in SHOWN))


def percentiles_cell(summary: OnlineSummary, metric: str, places: int) -> Cell:
    found = summary.latency(metric)
    values = [_value(summary, metric, f"p{q}") for q in SHOWN]
    text = "/".join(number(value, places) for value in values) if found.n else DASH
    remark = "; ".join(summary.invalid_reasons)
    inferred = found.source == "inferred"
    return Cell(text, found.p90, remark=remark, invalid=not summary.valid, inferred=inferred)


def withheld_notes(summaries: Sequence[OnlineSummary], metrics: Sequence[str]) -> list[str]:
    """One note for each percentile that some cell withholds."""
    sizes = [summary.latency(metric).n for summary in summaries for metric in metrics]
    short = {q: max((missing(q, n) for n in sizes if n), default=0) for q in SHOWN}
    return [withheld_note(f"p{q}", more) for q, more in short.items() if more]


def withheld_note(statistic: str, more: int) -> str:
    """Of a percentile that some cell withholds, which needs as many more samples."""
    least = needed(int(statistic[1:]))
    return f"{DASH}: {statistic} needs {least} samples; up to {more} are missing."


def loads_of(summaries: Sequence[OnlineSummary]) -> list[Load]:
    return sorted({summary.load for summary in summaries})


def grid(
    pooled: Sequence[OnlineSummary], keys: Sequence[tuple[Load, str, str]], best_labels: BestLabels
) -> list[list[Cell]]:
    """One row a label: the statistic of each (load, metric, statistic), decimals alike down a column where
    these show two digits of each.

    Winners are not marked where the number of one reads like that of an engine that is none: so small a
    difference decides nothing.
    """
    by_label = _by_label(pooled)
    columns = []
    for load, metric, statistic in keys:
        found = {label: by.get(load) for label, by in by_label.items()}
        places = metric_decimals(metric, (_value(summary, metric, statistic) for summary in found.values()))
        cells = {label: _cell(summary, metric, statistic, places) for label, summary in found.items()}
        best = cells.keys() & best_labels.get((load, metric, statistic), frozenset())
        if not {cells[label].text for label in best} & {cells[label].text for label in cells.keys() - best}:
            cells |= {label: replace(cells[label], best=True) for label in best}
        columns.append(list(cells.values()))
    return [[Cell(label), *(column[row] for column in columns)] for row, label in enumerate(by_label)]


def _cell(summary: OnlineSummary | None, metric: str, statistic: str, places: int) -> Cell:
    if summary is None:
        return Cell(DASH, remark=_ABSENT)
    value = _value(summary, metric, statistic)
    if value is None:
        return Cell(DASH, remark=_why_withheld(summary, metric, statistic), invalid=not summary.valid)
    places = max(places, two_digits(value)) if METRICS[metric].is_latency else places
    ci = summary.interval(metric, statistic)
    is_latency = METRICS[metric].is_latency
    remarks = [] if summary.valid else [f"invalid: {'; '.join(summary.invalid_reasons)}"]
    remarks += [NO_INTERVAL] if is_latency and ci is None else []
    inferred = is_latency and summary.latency(metric).source == "inferred"
    return Cell(
        number(value, places),
        value,
        interval_text(ci, places),
        "; ".join(remarks),
        invalid=not summary.valid,
        inferred=inferred,
        ends=ci,
    )


def _value(summary: OnlineSummary | None, metric: str, statistic: str) -> float | None:
    """A rate, or a percentile that its sample supports."""
    if summary is None or (not METRICS[metric].is_latency and not summary.num_success):
        return None
    if METRICS[metric].is_latency and missing(float(statistic[1:]), summary.latency(metric).n):
        return None
    return summary.value(metric, statistic)


def _why_withheld(summary: OnlineSummary, metric: str, statistic: str) -> str:
    if not METRICS[metric].is_latency:
        return "no request succeeded"
    n = summary.latency(metric).n
    return (
        f"{statistic} is withheld, it needs {missing(float(statistic[1:]), n)} more samples"
        if n
        else "no sample"
    )


def _by_label(summaries: Sequence[OnlineSummary]) -> dict[str, dict[Load, OnlineSummary]]:
    found: dict[str, dict[Load, OnlineSummary]] = {}
    for summary in summaries:
        found.setdefault(summary.label, {})[summary.load] = summary
    return found
