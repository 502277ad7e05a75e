"""Rates, failures and costs of engines, and every cell by itself: a row an engine and load, or a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.report.tables.latency import latency_decimals, loads_of, percentiles_cell, withheld_notes
from harness.report.tables.table import (
    Cell,
    Column,
    Field,
    Table,
    build,
    count,
    engine,
    field,
    load,
    metric_decimals,
    number,
    number_cell,
    repeat,
    text,
)
from harness.report.text.numbers import DASH
from harness.report.text.numbers import number as number_text
from harness.report.wording import reason_text
from harness.schema.load import ClosedLoop, Load
from harness.schema.machines import MachineLoad
from harness.schema.metrics import METRICS, latencies, rates
from harness.schema.results import OnlineSummary

#: Latencies and rates of each cell.
_LATENCIES = tuple(name for name in latencies("tables") if "overview" in METRICS[name].uses)
_RATES = rates("headline")

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
    fields: list[Field[OnlineSummary]] = [
        *_identity(summaries),
        *(_rate(summaries, name) for name in rates_of(summaries) if _adds(summaries, name)),
        count("requests", lambda summary: summary.num_requests),
        count("failed", lambda summary: summary.num_error),
        text("errors", _errors),
        field("valid", _valid_cell, numeric=False),
    ]
    return build("throughput", "Throughput and failures", fields, summaries)


def rates_of(summaries: Sequence[OnlineSummary]) -> list[str]:
    """Rates that tables have: a closed loop offers what is answered."""
    closed = all(isinstance(summary.load, ClosedLoop) for summary in summaries)
    return [name for name in rates("tables") if not (closed and name == "offered_req_per_s")]


def _adds(summaries: Sequence[OnlineSummary], name: str) -> bool:
    """Some summary has the rate, and one that is `like` another differs from that one."""
    like = METRICS[name].like
    values = [(summary.value(name, name), like and summary.value(like, like)) for summary in summaries]
    return any(value is not None and value != other for value, other in values)


def _errors(summary: OnlineSummary) -> str:
    return ", ".join(f"{kind} {errors}" for kind, errors in summary.errors.items()) or DASH


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
    fields: list[Field[OnlineSummary]] = [
        *_identity(summaries),
        number("CPU seconds", lambda summary: summary.engine_cpu_s, 1, unknown=_UNKNOWN),
        number("joules", lambda summary: summary.joules, 0, unknown=_UNKNOWN),
    ]
    each = ["cpu_ms_per_output_token", "joules_per_output_token"]
    if counted:
        fields.append(number("above idle", lambda summary: summary.joules_above_idle, 0, unknown=_UNKNOWN))
        each += ["joules_above_idle_per_output_token", "joules_per_request"]
    fields += [_cost(summaries, name) for name in each]
    notes = [_ENERGY if counted else _NO_ENERGY, *_idle(machines or {})]
    return build("costs", "CPU time and energy", fields, summaries, notes)


def _cost(summaries: Sequence[OnlineSummary], name: str) -> Field[OnlineSummary]:
    """A cost of a request or token, with its interval."""
    return number(
        METRICS[name].label,
        lambda summary: summary.value(name, name),
        metric_decimals(name, (summary.value(name, name) for summary in summaries)),
        ends=lambda summary: getattr(summary, f"{name}_ci", None),
        unknown=_UNKNOWN,
    )


def _idle(machines: Mapping[int, MachineLoad]) -> list[str]:
    """Watts that the idle machine took, from the least to the most."""
    watts = sorted(machine.idle_watts for machine in machines.values() if machine.idle_watts is not None)
    if not watts:
        return []
    ends = dict.fromkeys(number_text(end, 1) for end in (watts[0], watts[-1]))
    return [f"Idle before the engines were started: {' to '.join(ends)} W."]


# --- Every cell by itself -------------------------------------------------------------------------------


def repeats_table(summaries: Sequence[OnlineSummary]) -> Table:
    """Latencies in ms as `p50/p90/p99` and the rates that matter most, a row a cell."""
    fields = [*_identity(summaries), *_measured(summaries)]
    notes = withheld_notes(summaries, _LATENCIES)
    return build("repeats", "Each repeat, p50/p90/p99", fields, summaries, notes)


class _OfRun(NamedTuple):
    """A summary, the name of its run, and all summaries at its load."""

    run: str
    summary: OnlineSummary


def all_runs_table(pooled: Mapping[str, Sequence[OnlineSummary]]) -> Table:
    """The columns of `repeats_table` for every engine of several runs, by their names, loads ascending.

    Decimals are alike at a load, since two loads can be a hundred times apart.
    """
    every = [_OfRun(run, summary) for run, summaries in pooled.items() for summary in summaries]
    summaries = [row.summary for row in every]
    rows = [row for at in loads_of(summaries) for row in _at_load(every, at)]
    columns = [Column("engine", numeric=False), Column("run", numeric=False), Column("load")]
    columns += [cells.column for cells in _measured(summaries)]
    notes = withheld_notes(summaries, _LATENCIES)
    return Table("all-runs", "All online runs, p50/p90/p99", columns, rows, notes)


def _at_load(every: Sequence[_OfRun], at: Load) -> Iterator[list[Cell]]:
    rows = [row for row in every if row.summary.load == at]
    summaries = [row.summary for row in rows]
    columns = [measured.cells(summaries) for measured in _measured(summaries)]
    for row, *cells in zip(rows, *columns, strict=True):
        yield [Cell(row.summary.label), Cell(row.run), Cell(str(at), at.value), *cells]


def _measured(summaries: Sequence[OnlineSummary]) -> list[Field[OnlineSummary]]:
    """Validity, latencies and rates. Validity stands first: the last columns of a wide table are out of
    sight."""
    places = {name: latency_decimals(summaries, name) for name in _LATENCIES}

    def latency(name: str) -> Field[OnlineSummary]:
        head = f"{METRICS[name].label} {METRICS[name].unit}"
        return field(head, lambda summary: percentiles_cell(summary, name, places[name]))

    return [
        field("valid", _valid_cell, numeric=False),
        *map(latency, _LATENCIES),
        *(_rate(summaries, name) for name in _RATES),
    ]


def _identity(summaries: Sequence[OnlineSummary]) -> list[Field[OnlineSummary]]:
    """Engine, load and, where the summaries have one, the repeat."""
    fields: list[Field[OnlineSummary]] = [engine(), load(summaries)]
    return [*fields, repeat()] if any(summary.repeat is not None for summary in summaries) else fields


def _rate(summaries: Sequence[OnlineSummary], name: str) -> Field[OnlineSummary]:
    places = metric_decimals(name, (summary.value(name, name) for summary in summaries))
    return field(
        METRICS[name].label,
        lambda summary: replace(number_cell(summary.value(name, name), places), invalid=not summary.valid),
    )


def _valid_cell(summary: OnlineSummary) -> Cell:
    return Cell("yes") if summary.valid else Cell("no", remark=reason_text(summary.invalid_reasons))
