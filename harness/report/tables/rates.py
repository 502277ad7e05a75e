"""Rates, failures and costs of engines, every cell by itself, and the offline batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from harness.metrics.digits import per_cent
from harness.metrics.intervals import LEVEL
from harness.metrics.rankings import batch_ranking, excludes_one
from harness.report.grouping import grouped
from harness.report.tables.latency import loads_of, percentiles_column, withheld_notes
from harness.report.tables.table import Cell, Column, Table, metric_decimals, stacked
from harness.report.text.heading import ways_asked
from harness.report.text.numbers import DASH, plural, span
from harness.report.text.provenance import assumed_of_rates
from harness.report.wording import not_significant, reason_text
from harness.schema.load import ClosedLoop
from harness.schema.machines import MachineLoad
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.results import BatchRow, Comparison, OnlineResults, OnlineSummary

#: Latencies of each cell.
_LATENCIES = tuple(name for name in latencies("tables") if "overview" in METRICS[name].uses)

_UNKNOWN = "unknown"
_CPU = "CPU time is that of all processes of the engine"
_WHOLE = "of the whole cell, whatever part of it is measured"
_ENERGY = (
    f"{_CPU}, energy by the counters of the GPUs or, where there is none, of the processors. "
    f"Both are {_WHOLE}. Above idle: without what the machine took before the engine was started."
)
_NO_ENERGY = f"{_CPU}, {_WHOLE}. Energy is unknown: nothing here counts it."


def throughput_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Rates a second and failures, a row an engine and load (and repeat, where the summaries have one)."""
    errors = [", ".join(f"{kind} {n}" for kind, n in summary.errors.items()) for summary in summaries]
    columns = [
        *Column.cell(summaries),
        *rate_columns(summaries, rates_of(summaries)),
        Column.count("requests", [summary.num_requests for summary in summaries]),
        Column.count("failed", [summary.num_error for summary in summaries]),
        Column.text("errors", [kinds or DASH for kinds in errors]),
        _valid(summaries),
    ]
    return Table("throughput", "Throughput and failures", columns)


def rates_of(summaries: Sequence[OnlineSummary]) -> list[str]:
    """Rates that tables have: a closed loop offers what is answered."""
    closed = all(isinstance(summary.load, ClosedLoop) for summary in summaries)
    return [name for name in rates("tables") if not (closed and name == "offered_req_per_s")]


def rate_columns(rows: Sequence[OnlineSummary] | Sequence[BatchRow], names: Sequence[str]) -> list[Column]:
    """A column for each rate that some row has; of one that is `like` another, with another value."""
    columns = []
    for name in names:
        like = METRICS[name].like
        values = [getattr(row, name) for row in rows]
        others = [getattr(row, like) if like else None for row in rows]
        if any(value not in (None, other) for value, other in zip(values, others, strict=True)):
            columns.append(_rate(rows, name))
    return columns


def _rate(rows: Sequence[OnlineSummary] | Sequence[BatchRow], name: str) -> Column:
    values = [getattr(row, name) for row in rows]
    column = Column.number(METRICS[name].label, values, metric_decimals(name, values))
    return column.marked("invalid", (not getattr(row, "valid", True) for row in rows))


def costs_table(
    summaries: Sequence[OnlineSummary], machines: Mapping[int, MachineLoad] | None = None
) -> Table | None:
    """CPU seconds and joules, a row an engine and load; None where nothing is known of any.

    Where nothing counts energy, two columns say so.

    Args:
        machines: The load of the machine in each cell, for what it took while it was idle.
    """
    if all(summary.engine_cpu_s is None and summary.joules is None for summary in summaries):
        return None
    counted = any(summary.joules is not None for summary in summaries)
    columns = [
        *Column.cell(summaries),
        Column.number("CPU seconds", [summary.engine_cpu_s for summary in summaries], 1, _UNKNOWN),
        Column.number("joules", [summary.joules for summary in summaries], 0, _UNKNOWN),
    ]
    each = ["cpu_ms_per_output_token", "joules_per_output_token"]
    if counted:
        idle = [summary.joules_above_idle for summary in summaries]
        columns.append(Column.number("above idle", idle, 0, _UNKNOWN))
        each += ["joules_above_idle_per_output_token", "joules_per_request"]
    columns += [_cost(summaries, name) for name in each]
    notes = [_ENERGY if counted else _NO_ENERGY, *_idle(machines or {})]
    return Table("costs", "CPU time and energy", columns, notes)


def _cost(summaries: Sequence[OnlineSummary], name: str) -> Column:
    """Return the column of a cost of a request or token, with its interval."""
    values = [summary.value(name, name) for summary in summaries]
    places = metric_decimals(name, values)
    ends = [getattr(summary, f"{name}_ci", None) for summary in summaries]
    cells = [
        Cell(_UNKNOWN) if value is None else Cell.number(value, places, ci)
        for value, ci in zip(values, ends, strict=True)
    ]
    return Column(METRICS[name].label, cells)


def _idle(machines: Mapping[int, MachineLoad]) -> list[str]:
    """Return the note on the watts that the idle machine took, from the least to the most."""
    watts = [machine.idle_watts for machine in machines.values() if machine.idle_watts is not None]
    return [f"Idle before the engines were started: {span(watts, 1)} W."] if watts else []


# --- Every cell by itself -------------------------------------------------------------------------------


def repeats_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Latencies in ms as `p50/p90/p99` and the rates that matter most, a row a cell."""
    columns = [*Column.cell(summaries), *_measured(summaries)]
    return Table("repeats", "Each repeat, p50/p90/p99", columns, withheld_notes(summaries, _LATENCIES))


def pooled_table(pooled: Sequence[OnlineSummary]) -> Table:
    """The columns of `repeats_table`, a row a load and engine, loads ascending."""
    parts = []
    for load in loads_of(pooled):
        rows = [summary for summary in pooled if summary.load == load]
        parts.append([*Column.place(rows), *_measured(rows)])
    notes = withheld_notes(pooled, _LATENCIES)
    return Table("overview", "Latencies in ms, p50/p90/p99, and rates", stacked(parts), notes)


def all_runs_table(pooled: Mapping[str, Sequence[OnlineSummary]]) -> Table:
    """The columns of `repeats_table` for every engine of several runs, by their names, loads ascending.

    Decimals are alike at a load, since two loads can be a hundred times apart.
    """
    every = [(run, summary) for run, summaries in pooled.items() for summary in summaries]
    summaries = [summary for _, summary in every]
    parts = []
    for load in loads_of(summaries):
        names = [run for run, summary in every if summary.load == load]
        rows = [summary for summary in summaries if summary.load == load]
        loads = Column("load", [Cell(str(load), load.value)] * len(rows))
        parts.append([Column.engine(rows), Column.text("run", names), loads, *_measured(rows)])
    notes = withheld_notes(summaries, _LATENCIES)
    return Table("all-runs", "All online runs, p50/p90/p99", stacked(parts), notes)


def _measured(summaries: Sequence[OnlineSummary]) -> list[Column]:
    """Return validity, latencies and rates. Validity stands first: the last columns of a wide table are out
    of sight."""
    latency_columns = [percentiles_column(summaries, name) for name in _LATENCIES]
    return [_valid(summaries), *latency_columns, *(_rate(summaries, name) for name in rates("headline"))]


def _valid(summaries: Sequence[OnlineSummary]) -> Column:
    reasons = [reason_text(summary.invalid_reasons) for summary in summaries]
    cells = [
        Cell("yes") if summary.valid else Cell("no", remark=reason)
        for summary, reason in zip(summaries, reasons, strict=True)
    ]
    return Column("valid", cells, numeric=False)


# --- The offline batch -----------------------------------------------------------------------------------

#: The meaning of the mark.
MOST = "More output tokens a second than every other row, at 5 % for all comparisons of the run together."

#: A smaller p-value is not written out.
SMALLEST_P = 0.001


def offline_table(run: OnlineResults) -> Table:
    """The offline batch: one row an engine, the mean of its repeats."""
    by_label = grouped(run.results, lambda row: row.label)
    most = max(map(len, by_label.values()), default=1)
    notes = [f"Means of {most} repeats."] if most > 1 else []
    if ways := ways_asked(run.meta.launches):
        notes.append(f"Measured: {ways}.")
    if any(row.batches > 1 for row in run.results):
        counts = {label: "/".join(str(row.batches) for row in rows) for label, rows in by_label.items()}
        each = ", ".join(f"{label} {batches}" for label, batches in counts.items())
        notes.append(f"Batches run, one after the other: {each}. Seconds are of one on average.")
    ranking = batch_ranking(run)
    ranked = ranking.rows if ranking is not None else []
    winner = ranked[0].label if ranked[1:] and all(row.significant for row in ranked[1:]) else None
    first = METRICS[rates("headline")[0]].label
    columns = [
        column.marked("best", (column.title == first and label == winner for label in by_label))
        for column in _columns(list(map(_mean, by_label.values())))
    ]
    return Table("offline", "Offline throughput", columns, notes, best=MOST)


def _mean(repeats: Sequence[BatchRow]) -> BatchRow:
    """Return the first of the repeats with the mean of all for each rate that all have."""
    values = {name: [getattr(row, name) for row in repeats] for name in rates("offline")}
    return repeats[0].model_copy(
        update={name: fmean(each) for name, each in values.items() if None not in each}
    )


def _columns(rows: Sequence[BatchRow]) -> list[Column]:
    """Return the engines and their rates."""
    return [Column.text("engine", [row.label for row in rows]), *rate_columns(rows, rates("offline"))]


def offline_repeats_table(rows: Sequence[BatchRow]) -> Table:
    """The offline batch, every repeat by itself."""
    engine, *measured = _columns(rows)
    return Table(
        "offline-repeats", "Each repeat", [engine, Column.repeat([row.repeat for row in rows]), *measured]
    )


def batch_ratios_table(run: OnlineResults) -> Table:
    """Every pair of engines: the ratio of their output tokens a second, with its interval and the verdict."""
    pairs = run.comparisons
    together = plural(len(pairs), "comparison")
    notes = [
        "Each repeat has prompts of its own, the same for all engines. So engines are compared repeat by "
        "repeat: Student's t on the logarithms of the ratios gives intervals and p-values. "
        f"p and the verdicts hold for {together} together, at {per_cent(LEVEL)} (Holm).",
    ]
    if any(min(pair.repeats) == 1 for pair in pairs):
        spread = f"a spread of {assumed_of_rates} is assumed"
        notes.append(f"One repeat does not show how repeats differ: {spread}.")
    intervals = [DASH if pair.ci is None else f"{pair.ci[0]:.3f} to {pair.ci[1]:.3f}" for pair in pairs]
    columns = [
        Column.text("pair", [f"{pair.a} / {pair.b}" for pair in pairs]),
        Column("ratio", [Cell(f"{pair.ratio:.3f}", pair.ratio) for pair in pairs]),
        Column.text("95 % interval", intervals),
        Column("p", [_p_cell(pair.adjusted_p) for pair in pairs], numeric=False),
        Column.text("verdict", map(_verdict, pairs)),
    ]
    return Table("offline-ratios", "Output tokens a second, engines compared", columns, notes)


def _verdict(pair: Comparison) -> str:
    if pair.verdict != "no difference":
        return f"{pair.a if pair.verdict == 'better' else pair.b} is faster"
    return not_significant(pair.comparisons) if excludes_one(pair.ci) else "no difference shown"


def _p_cell(p: float | None) -> Cell:
    """Make the cell of a p-value with three decimals; `< 0.001` of a smaller one."""
    return Cell.number(p, 3) if p is None or p >= SMALLEST_P else Cell(f"< {SMALLEST_P}", p)
