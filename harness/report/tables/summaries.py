"""The tables of a report, from summaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.metrics.glossary import GLOSSARY
from harness.metrics.percentiles import missing, needed
from harness.report.best import Winners
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH, decimals, number
from harness.schema.load import LoadLevel, head_of
from harness.schema.results import Distribution, OfflineResult, OnlineSummary

SHOWN = (50, 90, 99)
_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_MEASURED = (
    *(Column(f"{GLOSSARY[metric].short} ms") for metric in _LATENCIES),
    Column("output tok/s"),
    Column("valid", numeric=False),
)
OFFLINE_COLUMNS = ("req_per_s", "output_tok_per_s", "total_tok_per_s", "total_s")


def latency(pooled: Sequence[OnlineSummary], metric: str) -> Table:
    """Engine rows, load columns, `p50/p90/p99` in each cell."""
    term = GLOSSARY[metric]
    at = {load: [summary for summary in pooled if summary.load == load] for load in _loads(pooled)}
    places = {load: _places(summaries, metric) for load, summaries in at.items()}
    rows = [
        [Cell(label), *(_triple(by[one], metric, places[one]) if one in by else Cell(DASH) for one in at)]
        for label, by in _by_label(pooled).items()
    ]
    columns = [Column("engine", numeric=False), *(Column(str(load)) for load in at)]
    title = f"{term.short} ({term.unit}), p50/p90/p99"
    return Table(f"{metric}", title, columns, rows, _notes(pooled, (metric,)))


def latency_split(pooled: Sequence[OnlineSummary], metric: str, winners: Winners) -> Table:
    """Engine rows; for each load a column a percentile, with intervals and the best marked."""
    term, loads = GLOSSARY[metric], _loads(pooled)
    keys = [(load, metric, f"p{q}") for load in loads for q in SHOWN]
    columns = [Column(statistic, str(load)) for load, _, statistic in keys]
    rows = _grid(pooled, keys, winners)
    return Table(
        metric,
        f"{term.short} ({term.unit})",
        [Column("engine", numeric=False), *columns],
        rows,
        _notes(pooled, (metric,)),
    )


def headline(pooled: Sequence[OnlineSummary], winners: Winners) -> Table:
    """Engine rows; TTFT and TPOT at p99 (p90 where withheld) and the output rate, a column a load."""
    loads = _loads(pooled)
    keys, columns = [], []
    for metric in ("ttft_ms", "tpot_ms"):
        sizes = [getattr(summary, metric).n for summary in pooled if summary.num_success]
        q = next((q for q in (99, 90) if all(not missing(q, n) for n in sizes)), 50)
        keys += [(load, metric, f"p{q}") for load in loads]
        columns += [Column(str(load), f"{GLOSSARY[metric].short} p{q}, ms") for load in loads]
    keys += [(load, "output_tok_per_s", "output_tok_per_s") for load in loads]
    columns += [Column(str(load), "output tok/s") for load in loads]
    rows = [[replace(cell, interval="") for cell in row] for row in _grid(pooled, keys, winners)]
    return Table("headline", "At a glance", [Column("engine", numeric=False), *columns], rows)


def throughput(summaries: Sequence[OnlineSummary]) -> Table:
    """Rates and failures, one row an engine and load (and repeat, where the summaries have one)."""
    rates = ["offered_req_per_s", "req_per_s", "output_tok_per_s", "total_tok_per_s"]
    if any(summary.goodput_req_per_s is not None for summary in summaries):
        rates.append("goodput_req_per_s")
    places = {name: decimals(getattr(summary, name) for summary in summaries) for name in rates}
    columns = _identity_columns(summaries)
    columns += [Column(GLOSSARY[name].short) for name in rates]
    columns += [
        Column("requests"),
        Column("failed"),
        Column("errors", numeric=False),
        Column("valid", numeric=False),
    ]
    rows = []
    for summary in summaries:
        errors = ", ".join(f"{kind} {count}" for kind, count in summary.errors.items())
        row = _identity(summary)
        row += [_plain(getattr(summary, name), places[name]) for name in rates]
        row += [
            _plain(summary.num_requests, 0),
            _plain(summary.num_error, 0),
            Cell(errors or DASH),
            _valid(summary),
        ]
        rows.append(row)
    return Table("throughput", "Throughput and failures", columns, rows)


def repeats(summaries: Sequence[OnlineSummary]) -> Table:
    """Every cell by itself: the four latencies as `p50/p90/p99`, and the output rate."""
    rows = [
        [*_identity(summary), *cells] for summary, cells in zip(summaries, _measured(summaries), strict=True)
    ]
    columns = [*_identity_columns(summaries), *_MEASURED]
    return Table("repeats", "Each repeat, p50/p90/p99", columns, rows, _notes(summaries, _LATENCIES))


def all_runs(pooled: Mapping[int, Sequence[OnlineSummary]]) -> Table:
    """Every engine of several runs, numbered, at every load: what `repeats` has, loads ascending.

    Decimals are alike at a load, since two loads can be a hundred times apart.
    """
    every = [(run, one) for run, summaries in pooled.items() for one in summaries]
    rows = []
    for load in _loads([one for _, one in every]):
        here = [(run, one) for run, one in every if one.load == load]
        rows += [
            [Cell(one.label), Cell(str(run), run), Cell(str(load), load.value), *cells]
            for (run, one), cells in zip(here, _measured([one for _, one in here]), strict=True)
        ]
    columns = [Column("engine", numeric=False), Column("run"), Column("load"), *_MEASURED]
    return Table(
        "all-runs",
        "All online runs, p50/p90/p99",
        columns,
        rows,
        _notes([one for _, one in every], _LATENCIES),
    )


def offline(results: Sequence[OfflineResult]) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    by_label: dict[str, list[OfflineResult]] = {}
    for result in results:
        by_label.setdefault(result.label, []).append(result)
    rows = {
        label: [fmean(getattr(result, name) for result in found) for name in OFFLINE_COLUMNS]
        for label, found in by_label.items()
    }
    most = max((len(found) for found in by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    return Table("offline", "Offline throughput", _offline_columns(), _offline_rows(rows.items()), notes)


def offline_repeats(results: Sequence[OfflineResult]) -> Table:
    """The offline batch, every repeat by itself."""
    rows = [
        (f"{one.label}, repeat {one.repeat}", [getattr(one, name) for name in OFFLINE_COLUMNS])
        for one in results
    ]
    return Table("offline-repeats", "Each repeat", _offline_columns(), _offline_rows(rows))


def _offline_columns() -> list[Column]:
    return [Column("engine", numeric=False), *(Column(GLOSSARY[name].short) for name in OFFLINE_COLUMNS)]


def _offline_rows(rows: Iterable[tuple[str, list[float]]]) -> list[list[Cell]]:
    known = list(rows)
    places = [decimals(values[column] for _, values in known) for column in range(len(OFFLINE_COLUMNS))]
    return [[Cell(label), *map(_plain, values, places)] for label, values in known]


def _grid(
    pooled: Sequence[OnlineSummary], keys: Sequence[tuple[LoadLevel, str, str]], winners: Winners
) -> list[list[Cell]]:
    """One row a label: the statistic of each (load, metric, statistic), decimals alike down a column.

    A winner whose number reads like another's is not marked: so small a difference decides nothing.
    """
    by_label = _by_label(pooled)
    columns = []
    for load, metric, statistic in keys:
        found = {label: by.get(load) for label, by in by_label.items()}
        places = decimals(_value(one, metric, statistic) for one in found.values())
        cells = {label: _cell(one, metric, statistic, places) for label, one in found.items()}
        best = winners.get((load, metric, statistic), "")
        if best in cells and [cell.text for cell in cells.values()].count(cells[best].text) == 1:
            cells[best] = replace(cells[best], best=True)
        columns.append(list(cells.values()))
    return [[Cell(label), *(column[row] for column in columns)] for row, label in enumerate(by_label)]


def _cell(summary: OnlineSummary | None, metric: str, statistic: str, places: int) -> Cell:
    if summary is None:
        return Cell(DASH, remark="not measured")
    value = _value(summary, metric, statistic)
    if value is None:
        return Cell(
            DASH, remark=_why_withheld(getattr(summary, metric), statistic), invalid=not summary.valid
        )
    found = getattr(summary, metric)
    ci = found.ci.get(statistic) if isinstance(found, Distribution) else None
    interval = "" if ci is None else f"{number(ci[0], places)}–{number(ci[1], places)}"
    remark = "" if summary.valid else f"invalid: {'; '.join(summary.invalid_reasons)}"
    return Cell(number(value, places), value, interval, remark, invalid=not summary.valid)


def _value(summary: OnlineSummary | None, metric: str, statistic: str) -> float | None:
    """A rate, or a percentile that its sample supports."""
    if summary is None:
        return None
    found = getattr(summary, metric)
    if not isinstance(found, Distribution):
        return float(found) if summary.num_success else None
    value: float | None = getattr(found, statistic)
    return None if missing(float(statistic[1:]), found.n) else value


def _places(summaries: Sequence[OnlineSummary], metric: str) -> int:
    return decimals(_value(summary, metric, f"p{q}") for summary in summaries for q in SHOWN)


def _triple(summary: OnlineSummary, metric: str, places: int) -> Cell:
    found: Distribution = getattr(summary, metric)
    values = [_value(summary, metric, f"p{q}") for q in SHOWN]
    text = "/".join(number(value, places) for value in values) if found.n else DASH
    return Cell(text, found.p90, remark="; ".join(summary.invalid_reasons), invalid=not summary.valid)


def _why_withheld(found: Distribution | float, statistic: str) -> str:
    if not isinstance(found, Distribution):
        return "no request succeeded"
    more = missing(float(statistic[1:]), found.n)
    return f"withheld: {statistic} needs {more} more samples" if found.n else "no sample"


def _notes(summaries: Sequence[OnlineSummary], metrics: Sequence[str]) -> list[str]:
    """One note for each percentile that some cell withholds."""
    sizes = [getattr(summary, metric).n for summary in summaries for metric in metrics]
    short = {q: max((missing(q, n) for n in sizes if n), default=0) for q in SHOWN}
    return [
        f"{DASH}: p{q} needs {needed(q)} samples and is withheld below; up to {more} more."
        for q, more in short.items()
        if more
    ]


def _measured(summaries: Sequence[OnlineSummary]) -> list[list[Cell]]:
    """For each, the cells under `_MEASURED`; decimals are alike down a column."""
    places = {metric: _places(summaries, metric) for metric in _LATENCIES}
    rate = decimals(summary.output_tok_per_s for summary in summaries)
    return [
        [
            *(_triple(summary, metric, places[metric]) for metric in _LATENCIES),
            replace(_plain(summary.output_tok_per_s, rate), invalid=not summary.valid),
            _valid(summary),
        ]
        for summary in summaries
    ]


def _identity(summary: OnlineSummary) -> list[Cell]:
    repeat = [] if summary.repeat is None else [Cell(str(summary.repeat), summary.repeat)]
    return [Cell(summary.label), Cell(summary.load.number, summary.load.value), *repeat]


def _identity_columns(summaries: Sequence[OnlineSummary]) -> list[Column]:
    columns = [Column("engine", numeric=False), Column(head_of(summary.load for summary in summaries))]
    return [*columns, Column("repeat")] if any(one.repeat is not None for one in summaries) else columns


def _plain(value: float | None, places: int) -> Cell:
    return Cell(number(value, places), value)


def _valid(summary: OnlineSummary) -> Cell:
    return (
        Cell("yes") if summary.valid else Cell("no", remark="; ".join(summary.invalid_reasons), invalid=True)
    )


def _loads(summaries: Sequence[OnlineSummary]) -> list[LoadLevel]:
    return sorted({summary.load for summary in summaries})


def _by_label(summaries: Sequence[OnlineSummary]) -> dict[str, dict[LoadLevel, OnlineSummary]]:
    found: dict[str, dict[LoadLevel, OnlineSummary]] = {}
    for summary in summaries:
        found.setdefault(summary.label, {})[summary.load] = summary
    return found
