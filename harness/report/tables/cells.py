"""Tables of what happened in the cells beside latencies and rates: lengths of answers, what servers report of
themselves, the nodes of a cluster, spikes, parts of the TTFT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import fmean, median
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import prompt_tokens
from harness.metrics.intervals import Estimate, level
from harness.metrics.node_effect import node_effects
from harness.metrics.samples import Group, by_load
from harness.report.grouping import grouped
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.numbers import DASH, decimals, signed
from harness.schema.fairness import PARTS, Waterfall
from harness.schema.load import RateSeries
from harness.schema.machines import Host, HostCell
from harness.schema.metrics import METRICS
from harness.schema.results import OnlineSummary, Recovery

_SHOWN = (50, 90, 99)
#: Reasons to finish of an answer that was not cut off at its limit.
_ENDED_BY_ITSELF = ("stop", "eos_token", "stop_sequence", "tool_calls", "function_call")

#: First and last turn of each row.
_TURNS = ((1, 1), (2, 5), (6, 20), (21, np.inf))
_OF_TURNS = ("ttft_ms", "tpot_ms", "e2e_ms")

_LENGTHS = (
    "Tokens of prompts and answers of successful requests. Answers of different lengths are different "
    "work: compare engines by TPOT, ITL and tokens a second."
)
_SERVER = (
    "By the servers' own metrics, read while they were measured: means and the most over the readings. "
    "A dash: the server does not report it. Reading: how long an answer took at the median."
)
_NODES = (
    "Latencies are differences of two stamps of one node's clock. Began within: how early or late the "
    "node began the cell at most, by the offset and drift of its clock."
)
_LOW_PRIORITY = (
    "engines and clients run at a lower priority than other programs there; start Ray with "
    "RAY_worker_niceness=0 in its environment."
)
_NODE_EFFECT = (
    "Every node measured whole repeats of all engines: a difference between nodes is none between engines, "
    "and widens the intervals. Engines and loads are taken out."
)
_RECOVERY = (
    "Recovered: TTFT of a request, and the median of it and the next four, is at most the 90th percentile of "
    "the stage before the spike. The interval of one repeat is by its own and the request before, "
    "of several by Student's t. Over: not within the stage after the spike."
)


# --- Lengths --------------------------------------------------------------------------------------------


def lengths_table(groups: Sequence[Group]) -> Table | None:
    """Tokens of prompts and answers, a row an engine and load, of all repeats; None where every answer of the
    run has the same length."""
    points = list(by_load(groups))

    def joined(values: Callable[[pd.DataFrame], npt.NDArray[np.float64]]) -> list[pd.Series[float]]:
        arrays = [np.concatenate([values(group.good) for group in repeats]) for repeats in points]
        return [pd.Series(array[np.isfinite(array)]) for array in arrays]

    def percentiles(of: str, samples: Sequence[pd.Series[float]]) -> list[Column]:
        values = [[float(sample.quantile(q / 100)) for sample in samples] for q in _SHOWN]
        return [Column.number(f"{of} p{q}", column, 0) for q, column in zip(_SHOWN, values, strict=True)]

    prompts = joined(prompt_tokens)  # as planned where a server does not report them
    answers = joined(lambda good: good["completion_tokens"].to_numpy(np.float64))
    ended = joined(lambda good: np.asarray(good["finish_reason"].isin(_ENDED_BY_ITSELF), np.float64))
    if len({float(length) for lengths in answers for length in np.unique(lengths)}) < 2:
        return None
    columns = [
        *Column.place([repeats[0] for repeats in points]),
        *percentiles("prompt", prompts),
        Column.number("answer mean", [lengths.mean() for lengths in answers], 1),
        *percentiles("answer", answers),
        Column.share("ended by itself", [share.mean() for share in ended], 0),
    ]
    return Table("lengths", "Lengths", columns, [_LENGTHS])


def turns_table(groups: Sequence[Group]) -> Table | None:
    """Medians by the turn within the session, a row an engine, load and range of turns, of all repeats; None
    without sessions."""
    of_turns: list[tuple[Group, str, pd.DataFrame]] = []
    for repeats in by_load(groups):
        good = pd.concat([group.good.assign(**{m: group.metrics[m] for m in _OF_TURNS}) for group in repeats])
        turn = good["turn"] + 1 if "turn" in good else pd.Series(np.nan, good.index)
        for low, high in _TURNS:
            rows = good[(turn >= low) & (turn <= high)]
            name = f"{low}" if low == high else f"{low} to {high:g}" if np.isfinite(high) else f"from {low}"
            of_turns += [(repeats[0], name, rows)] if len(rows) else []
    if len({name for _, name, _ in of_turns}) < 2:
        return None

    def medians(values: Callable[[pd.DataFrame], Any]) -> list[float | None]:
        return [pd.Series(values(rows)).median() for *_, rows in of_turns]

    first = [group for group, *_ in of_turns]
    columns = [
        *Column.place(first),
        Column.text("turn", [name for _, name, _ in of_turns]),
        Column.count("requests", [len(rows) for *_, rows in of_turns]),
        Column.number("prompt p50", medians(prompt_tokens), 0),
        *(Column.number(f"{METRICS[name].label} p50", medians(itemgetter(name))) for name in _OF_TURNS),
    ]
    return Table("turns", "By turn", columns, ["Of successful requests: prompts in tokens, latencies in ms."])


# --- Server reports -------------------------------------------------------------------------------------


def _total(readings: pd.DataFrame, counter: str) -> float:
    """Sum over the cells of a counter's last value; NaN where no server has it."""
    return float(readings.groupby("cell")[counter].max().sum(min_count=1))


def _quotient(readings: pd.DataFrame, counter: str, per: str) -> float:
    """`_total` of one counter over that of another; NaN where the latter counted nothing."""
    return _total(readings, counter) / (_total(readings, per) or np.nan)


def _prefix_hit_rate(readings: pd.DataFrame) -> float:
    """Hits by the counters, or where a server has none as it averages it."""
    counted = _quotient(readings, "prefix_hits", "prefix_queries")
    averaged = float(readings.groupby("cell")["prefix_hit_rate"].last().mean())
    return averaged if np.isnan(counted) else counted


def server_table(groups: Sequence[Group], readings: pd.DataFrame) -> Table | None:
    """Load, caches and steps that servers report, a row an engine and load; None where none reports any."""
    if readings.empty:
        return None
    points, reported = [], []
    for repeats in by_load(groups):
        cells = {int(cell) for group in repeats for cell in group.requests["cell"].unique()}
        rows = readings[readings["cell"].isin(cells)]
        if len(rows):
            points.append(repeats)
            reported.append(rows)
    columns = [
        *Column.place([repeats[0] for repeats in points]),
        Column.number("running", [rows["running"].mean() for rows in reported], 1),
        Column.number("most", [rows["running"].max() for rows in reported], 0),
        Column.number("waiting", [rows["waiting"].mean() for rows in reported], 1),
        Column.number("most", [rows["waiting"].max() for rows in reported], 0),
        Column.share("KV cache, most", [rows["kv_usage"].max() for rows in reported]),
        Column.number("preemptions", [_total(rows, "preemptions") for rows in reported], 0),
        Column.share("prefix hits", [_prefix_hit_rate(rows) for rows in reported]),
        Column.number("tokens a step", [_quotient(rows, "step_tokens", "steps") for rows in reported], 1),
        Column.count("readings", [len(rows) for rows in reported]),
        Column.number("reading, ms", [rows["took_ms"].median() for rows in reported], 1),
    ]
    return Table("server", "What the servers say of themselves", columns, [_SERVER])


# --- Nodes of a cluster ---------------------------------------------------------------------------------


def nodes_table(
    groups: Sequence[Group], senders: Mapping[int, Sequence[HostCell]], hosts: Sequence[Host]
) -> Table | None:
    """The nodes that sent requests, a row a cell and node; None without a cluster.

    Args:
        groups: Of each repeat.
        senders: The nodes that sent requests of a cell, by the cell.
        hosts: All nodes of the run.
    """
    if not senders:
        return None
    pairs = [(group, node) for group in groups for node in senders.get(group.cell, ())]
    cells, nodes = [group for group, _ in pairs], [node for _, node in pairs]
    clocks = [node.clock for node in nodes]
    drifts = [f"{signed(clock.drift_ppm, 0)} ± {clock.drift_bound_ppm:.0f}" for clock in clocks]
    busy = [node.machine.foreign_cores_mean if node.machine else None for node in nodes]
    columns = [
        *Column.cell(cells),
        Column.text("node", [node.name for node in nodes]),
        Column.count("clients", [len(node.clients) for node in nodes]),
        Column.count("requests", [node.requests for node in nodes]),
        Column.number("submit lag p99 ms", [_late_ms(*pair) for pair in pairs], 2),
        Column.number("round trip ms", [clock.round_trip_ms for clock in clocks], 2),
        Column.number("began within ms", [clock.start_bound_ms for clock in clocks], 2),
        Column("drift ppm", [Cell(d, clock.drift_ppm) for d, clock in zip(drifts, clocks, strict=True)]),
        Column(
            "CPUs busy with other work",
            [Cell(DASH if cores is None else f"{cores:.2g}", cores) for cores in busy],
        ),
    ]
    slow = ", ".join(host.name for host in hosts if host.niceness > 0)
    notes = [_NODES, *([f"{slow}: {_LOW_PRIORITY}"] if slow else [])]
    return Table("nodes", "Nodes that sent", columns, notes)


def _late_ms(group: Group, node: HostCell) -> float | None:
    """Return the p99 of how late a node sent its requests of a cell, in ms."""
    lag = group.metrics["submit_lag_ms"].to_numpy()
    lags = lag[np.isfinite(lag) & (group.good["host"] == node.name).to_numpy(dtype=bool)]
    return float(np.percentile(lags, 99)) if lags.size else None


def node_effect_table(groups: Sequence[Group], nodes: Mapping[int, str]) -> Table | None:
    """Differences between the nodes of engines, a row a metric; None where one node measured all.

    Args:
        groups: Of each repeat.
        nodes: The engine's node, by cell.
    """
    effects = node_effects(groups, nodes)
    if not effects:
        return None
    chances = [effect.p for effect in effects]
    columns = [
        Column.text("metric", [METRICS[effect.metric].label for effect in effects]),
        *(
            Column(node, [Cell(f"{effect.ratios[node]:.3f}×", effect.ratios[node]) for effect in effects])
            for node in effects[0].ratios
        ),
        Column("p of no difference", [Cell(DASH if p is None else f"{p:.2g}", p) for p in chances]),
    ]
    return Table("node-effect", "Nodes of engines, p50 over the mean of all nodes", columns, [_NODE_EFFECT])


# --- Spikes, parts of the TTFT ----------------------------------------------------------------------------


def recovery_table(recoveries: Sequence[Recovery]) -> Table | None:
    """Time to recover from each spike, a row an engine and spike; None where no load has one."""
    if not recoveries:
        return None
    by_spike = grouped(recoveries, lambda each: (each.label, each.load, each.stage))
    rows = [each[0] for each in by_spike.values()]
    spikes = [str(row.load.stages[row.stage]) for row in rows if isinstance(row.load, RateSeries)]

    def medians(head: str, values: Callable[[Recovery], float | None]) -> Column:
        return Column.number(
            head,
            [
                median(each_ms) if (each_ms := [ms for ms in map(values, same) if ms is not None]) else None
                for same in by_spike.values()
            ],
        )

    columns = [
        *Column.place(rows),
        Column.text("spike, requests/s for s", spikes),
        Column.count("repeats", [len(same) for same in by_spike.values()]),
        medians("TTFT p50 before, ms", lambda each: each.before_ms),
        medians("p90 before, ms", lambda each: each.limit_ms),
        medians("highest, ms", lambda each: each.highest_ms),
        Column("recovered after, s", [_recovered(same) for same in by_spike.values()]),
    ]
    return Table("recovery", "Recovery after a spike", columns, [_RECOVERY])


def _recovered(repeats: Sequence[Recovery]) -> Cell:
    """Make the cell of how long a spike was felt: the mean over the repeats, or a bound."""
    seconds = [each.seconds for each in repeats if each.seconds is not None]
    if len(seconds) < len(repeats):
        return Cell(f"over {min(each.stage_s for each in repeats if each.seconds is None):g}")
    value = fmean(seconds)
    ends = level(Estimate(value, np.array(seconds))) if len(seconds) > 1 else repeats[0].ci
    shown = "" if ends is None else f"{max(0.0, ends[0]):.2f} to {ends[1]:.2f}"
    return Cell(f"{value:.2f}", value, shown, ends=ends)


def with_waterfall(pooled: Sequence[OnlineSummary]) -> list[tuple[OnlineSummary, Waterfall]]:
    """The summaries whose TTFT is taken apart."""
    return [(summary, summary.waterfall) for summary in pooled if summary.waterfall is not None]


def waterfall_table(pooled: Sequence[OnlineSummary]) -> Table | None:
    """Parts of the mean TTFT in ms, a row an engine and load; None where no TTFT is taken apart."""
    apart = with_waterfall(pooled)
    if not apart:
        return None
    rows = [summary for summary, _ in apart]
    columns = [
        *Column.place(rows),
        *(Column(name, [_part_cell(waterfall, name) for _, waterfall in apart]) for name in PARTS),
        Column("sum", [Cell.number(waterfall.total_ms) for _, waterfall in apart]),
    ]
    notes = [f"{part}: {meaning}." for part, meaning in PARTS.items()]
    return Table("waterfall", "Parts of the mean TTFT, ms", columns, notes)


def _part_cell(waterfall: Waterfall, name: str) -> Cell:
    """Make the cell of a part of the mean TTFT, with the decimals of the whole."""
    part = next((part for part in waterfall.parts if part.part == name), None)
    if part is None:
        return Cell(DASH)
    cell = Cell.number(part.mean_ms, decimals([waterfall.total_ms]))
    return replace(cell, remark=f"{part.source}: {part.how}")
