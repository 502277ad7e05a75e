"""What each cell cost: CPU time and energy, one row a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report.tables.table import Cell, Column, Table, interval_text, metric_decimals
from harness.report.tables.throughput import identity_cells, identity_columns
from harness.report.text.numbers import number
from harness.schema.machines import MachineLoad
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary

_EACH = (
    *("cpu_ms_per_output_token", "joules_per_output_token", "joules_above_idle_per_output_token"),
    "joules_per_request",
)
_CPU = "CPU time is that of all processes of the engine"
_WHOLE = "of the whole cell, whatever part of it is measured"
_ENERGY = (
    f"{_CPU}, energy by the counters of the GPUs or, where there is none, of the processors. "
    f"Both are {_WHOLE}. Above idle: without what the machine took before the engine was started."
)
_NO_ENERGY = f"{_CPU}, {_WHOLE}. Energy is unknown: nothing here counts it."


def costs_table(
    summaries: Sequence[OnlineSummary], machines: Mapping[int, MachineLoad] | None = None
) -> Table | None:
    """One row an engine and load; None where nothing is known of any.

    Where nothing counts energy, two columns say so.

    Args:
        machines: What the machine did in each cell, for what it took while it was idle.
    """
    if all(summary.engine_cpu_s is None and summary.joules is None for summary in summaries):
        return None
    counted = any(summary.joules is not None for summary in summaries)
    shown = _EACH if counted else _EACH[:2]
    places = {
        name: metric_decimals(name, (summary.value(name, name) for summary in summaries)) for name in shown
    }
    columns = [
        *identity_columns(summaries),
        Column("CPU seconds"),
        Column("joules"),
        *([Column("above idle")] if counted else []),
        *(Column(METRICS[name].label) for name in shown),
    ]
    rows = []
    for summary in summaries:
        row = [*identity_cells(summary), _known(summary.engine_cpu_s, 1), _known(summary.joules, 0)]
        row += [_known(summary.joules_above_idle, 0)] if counted else []
        for name in shown:
            ends = getattr(summary, f"{name}_ci", None)
            row.append(_known(summary.value(name, name), places[name], ends))
        rows.append(row)
    return Table(
        "costs",
        "CPU time and energy",
        columns,
        rows,
        (_ENERGY if counted else _NO_ENERGY, *_idle(machines or {})),
    )


def _idle(machines: Mapping[int, MachineLoad]) -> list[str]:
    """What the idle machine took, from the least to the most."""
    watts = sorted(machine.idle_watts for machine in machines.values() if machine.idle_watts is not None)
    if not watts:
        return []
    ends = dict.fromkeys(number(end, 1) for end in (watts[0], watts[-1]))
    return [f"Idle before the engines were started: {' to '.join(ends)} W."]


def _known(value: float | None, decimals: int, ends: tuple[float, float] | None = None) -> Cell:
    if value is None:
        return Cell("unknown")
    return Cell(number(value, decimals), value, interval_text(ends, decimals), ends=ends)
