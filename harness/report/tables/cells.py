"""Tables of what happened in the cells beside latencies and rates: lengths of answers, what servers report of
themselves, the nodes of a cluster, speculative decoding, shared prefixes, parts of the TTFT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics.definitions import prompt_tokens
from harness.metrics.digits import per_cent
from harness.metrics.node_effect import NodeEffect, node_effects
from harness.metrics.percentiles import percentiles
from harness.metrics.samples import Group, by_load
from harness.report.tables.table import (
    Cell,
    Field,
    Table,
    build,
    count,
    engine,
    field,
    load,
    number,
    number_cell,
    repeat,
    share,
    text,
)
from harness.report.text.numbers import DASH, decimals, signed
from harness.schema.fairness import PARTS, Waterfall
from harness.schema.load import Load
from harness.schema.machines import Host, HostCell
from harness.schema.metrics import METRICS
from harness.schema.results import PREFIX_BLOCK_TOKENS, OnlineSummary, PrefixHits, Speculation

_LENGTH_PERCENTILES = (50, 90, 99)
#: Reasons to finish of an answer that was not cut off at its limit.
_ENDED_BY_ITSELF = ("stop", "eos_token", "stop_sequence", "tool_calls", "function_call")

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
_SPECULATION = (
    "By the engine's counters over the cell. Tokens a step: the accepted ones and the one that the model "
    "adds. By position: share of steps in which the first, the second, … drafted token was accepted."
)
_PREFIXES = (
    f"Share of prompt tokens. Possible: an unbounded cache of blocks of {PREFIX_BLOCK_TOKENS} tokens "
    "would have held them, in the order in which requests were sent. Reported: by the engine."
)


# --- Lengths --------------------------------------------------------------------------------------------


class _Lengths(NamedTuple):
    """Tokens of the successful requests of an engine at a load: (U,) of prompts, (U,) of answers."""

    label: str
    load: Load
    prompts: npt.NDArray[np.float64]
    answers: npt.NDArray[np.float64]
    ended_by_itself: float | None


def lengths_table(groups: Sequence[Group]) -> Table | None:
    """Tokens of prompts and answers, a row an engine and load, of all repeats; None where every answer of the
    run has the same length."""
    rows = [_lengths(repeats) for repeats in by_load(groups)]
    ends = {float(end) for row in rows if row.answers.size for end in (row.answers.min(), row.answers.max())}
    if len(ends) < 2:
        return None

    def prompt(q: int) -> Field[_Lengths]:
        return field(f"prompt p{q}", lambda row: _percentile_cell(row.prompts, q))

    def answer(q: int) -> Field[_Lengths]:
        return field(f"answer p{q}", lambda row: _percentile_cell(row.answers, q))

    fields: list[Field[_Lengths]] = [
        engine(),
        load(rows),
        *map(prompt, _LENGTH_PERCENTILES),
        number("answer mean", lambda row: float(np.mean(row.answers)) if row.answers.size else None, 1),
        *map(answer, _LENGTH_PERCENTILES),
        share("ended by itself", lambda row: row.ended_by_itself, 0),
    ]
    return build("lengths", "Lengths", fields, rows, [_LENGTHS])


def _lengths(repeats: Sequence[Group]) -> _Lengths:
    total = sum(len(group.good) for group in repeats)
    ended = sum(int(group.good["finish_reason"].isin(_ENDED_BY_ITSELF).sum()) for group in repeats)
    return _Lengths(
        repeats[0].label,
        repeats[0].load,
        _prompt_tokens(repeats),
        np.concatenate([group.good["completion_tokens"].dropna().to_numpy(np.float64) for group in repeats]),
        ended / total if total else None,
    )


def _prompt_tokens(repeats: Sequence[Group]) -> npt.NDArray[np.float64]:
    """(U,) prompt tokens of the successful requests; as planned where a server does not report them."""
    tokens: npt.NDArray[np.float64] = np.concatenate([prompt_tokens(group.good) for group in repeats])
    return tokens[np.isfinite(tokens)]


def _percentile_cell(values: npt.NDArray[np.float64], q: int) -> Cell:
    return number_cell(float(percentiles(values, None, [q])[0]) if values.size else None, 0)


# --- What servers report --------------------------------------------------------------------------------


class _Readings(NamedTuple):
    """Readings of a server's own metrics at a load, of all repeats (rows of `records.columns.SERVER`)."""

    label: str
    load: Load
    rows: pd.DataFrame

    def mean(self, column: str) -> float | None:
        return _known(self.rows[column].mean())

    def most(self, column: str) -> float | None:
        return _known(self.rows[column].max())

    def total(self, counter: str) -> float | None:
        """Sum over the cells of a counter's last value."""
        return _known(self.rows.groupby("cell")[counter].max().sum(min_count=1))

    def quotient(self, counter: str, per: str) -> float | None:
        """`total` of one counter over that of another; None where the latter counted nothing."""
        above, below = self.total(counter), self.total(per)
        return None if above is None or not below else above / below

    @property
    def prefix_hit_rate(self) -> float | None:
        """By the counters, or where a server has none as it averages it."""
        counted = self.quotient("prefix_hits", "prefix_queries")
        if counted is not None:
            return counted
        return _known(self.rows.groupby("cell")["prefix_hit_rate"].last().mean())


def _known(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def server_table(groups: Sequence[Group], readings: pd.DataFrame) -> Table | None:
    """Load, caches and steps that servers report, a row an engine and load; None where none reports any."""
    if readings.empty:
        return None
    rows = []
    for repeats in by_load(groups):
        cells = {int(cell) for group in repeats for cell in group.requests["cell"].unique()}
        reported = readings[readings["cell"].isin(cells)]
        if len(reported):
            rows.append(_Readings(repeats[0].label, repeats[0].load, reported))
    fields: list[Field[_Readings]] = [
        engine(),
        load(groups),
        number("running", lambda row: row.mean("running"), 1),
        number("most", lambda row: row.most("running"), 0),
        number("waiting", lambda row: row.mean("waiting"), 1),
        number("most", lambda row: row.most("waiting"), 0),
        share("KV cache, most", lambda row: row.most("kv_usage")),
        number("preemptions", lambda row: row.total("preemptions"), 0),
        share("prefix hits", lambda row: row.prefix_hit_rate),
        number("tokens a step", lambda row: row.quotient("step_tokens", "steps"), 1),
        count("readings", lambda row: len(row.rows)),
        number("reading, ms", lambda row: _known(row.rows["took_ms"].median()), 1),
    ]
    return build("server", "What the servers say of themselves", fields, rows, [_SERVER])


# --- Nodes of a cluster ---------------------------------------------------------------------------------


class _Sender(NamedTuple):
    """A node that sent requests of a cell, and how late it sent them: p99, in ms."""

    label: str
    load: Load
    repeat: int | None
    node: HostCell
    late_ms: float | None

    @property
    def foreign_cores(self) -> float | None:
        """CPUs of the node that were busy with other work, on average."""
        return self.node.machine.foreign_cores_mean if self.node.machine else None


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
    fields: list[Field[_Sender]] = [
        engine(),
        load(groups),
        repeat(),
        text("node", lambda row: row.node.name),
        count("clients", lambda row: len(row.node.clients)),
        count("requests", lambda row: row.node.requests),
        number("submit lag p99 ms", lambda row: row.late_ms, 2),
        number("round trip ms", lambda row: row.node.clock.round_trip_ms, 2),
        number("began within ms", lambda row: row.node.clock.start_bound_ms, 2),
        field("drift ppm", _drift_cell),
        field("CPUs busy with other work", _foreign_cell),
    ]
    slow = ", ".join(host.name for host in hosts if host.niceness > 0)
    notes = [_NODES, *([f"{slow}: {_LOW_PRIORITY}"] if slow else [])]
    rows = [sender for group in groups for sender in _senders(group, senders)]
    return build("nodes", "Nodes that sent", fields, rows, notes)


def _senders(group: Group, senders: Mapping[int, Sequence[HostCell]]) -> list[_Sender]:
    cell = int((group.whole or group).requests["cell"].iloc[0])
    lag, host = group.metrics["submit_lag_ms"].to_numpy(), group.good["host"]
    rows = []
    for node in senders.get(cell, ()):
        lags = lag[np.isfinite(lag) & (host == node.name).to_numpy(dtype=bool)]
        late = float(percentiles(lags, None, [99])[0]) if lags.size else None
        rows.append(_Sender(group.label, group.load, group.repeat, node, late))
    return rows


def _drift_cell(row: _Sender) -> Cell:
    clock = row.node.clock
    return Cell(f"{signed(clock.drift_ppm, 0)} ± {clock.drift_bound_ppm:.0f}", clock.drift_ppm)


def _foreign_cell(row: _Sender) -> Cell:
    cores = row.foreign_cores
    return Cell(DASH if cores is None else f"{cores:.2g}", cores)


def node_effect_table(groups: Sequence[Group], nodes: Mapping[int, str]) -> Table | None:
    """Differences between the nodes of engines, a row a metric; None where one node measured all.

    Args:
        groups: Of each repeat.
        nodes: The engine's node, by cell.
    """
    effects = node_effects(groups, nodes)
    if not effects:
        return None

    def ratio(node: str) -> Field[NodeEffect]:
        return field(node, lambda effect: Cell(f"{effect.ratios[node]:.3f}×", effect.ratios[node]))

    fields: list[Field[NodeEffect]] = [
        text("metric", lambda effect: METRICS[effect.metric].label),
        *map(ratio, effects[0].ratios),
        field(
            "p of no difference",
            lambda effect: Cell(DASH if effect.p is None else f"{effect.p:.2g}", effect.p),
        ),
    ]
    title = "Nodes of engines, p50 over the mean of all nodes"
    return build("node-effect", title, fields, effects, [_NODE_EFFECT])


# --- Speculative decoding, shared prefixes, parts of the TTFT -------------------------------------------


def speculation_table(cells: Sequence[Speculation], summaries: Sequence[OnlineSummary]) -> Table | None:
    """Accepted drafts beside the time between tokens, a row a cell; None where no cell drafted tokens.

    Args:
        summaries: Of each repeat, for ITL and TPOT.
    """
    if not cells:
        return None
    measured = {(summary.label, summary.load, summary.repeat): summary for summary in summaries}

    def p50(cell: Speculation, metric: str) -> float | None:
        summary = measured.get((cell.label, cell.load, cell.repeat))
        return None if summary is None else summary.value(metric, "p50")

    fields: list[Field[Speculation]] = [
        engine(),
        load(cells),
        repeat(),
        share("accepted", lambda cell: cell.count.accepted),
        number("tokens a step", lambda cell: cell.count.tokens_per_step, 2),
        text("by position", lambda cell: " / ".join(map(per_cent, cell.count.by_position)) or DASH),
        number("ITL p50 ms", lambda cell: p50(cell, "itl_ms"), 2),
        number("TPOT p50 ms", lambda cell: p50(cell, "tpot_ms"), 2),
        text("source", lambda cell: cell.count.source),
    ]
    return build("speculation", "Speculative decoding", fields, cells, [_SPECULATION])


def prefix_table(hits: Sequence[PrefixHits]) -> Table | None:
    """Possible and reported hits of the prefix cache, a row a cell; None where prompts shared nothing and no
    engine says otherwise."""
    if not any(cell.possible or cell.reported for cell in hits):
        return None
    fields: list[Field[PrefixHits]] = [
        engine(),
        load(hits),
        repeat(),
        share("possible", lambda cell: cell.possible if cell.prompt_tokens else None),
        share("reported", lambda cell: cell.reported),
        text("source", lambda cell: cell.source),
    ]
    return build("prefixes", "Prefix hit rate", fields, hits, [_PREFIXES])


def with_waterfall(pooled: Sequence[OnlineSummary]) -> list[tuple[OnlineSummary, Waterfall]]:
    """The summaries whose TTFT is taken apart."""
    return [(summary, summary.waterfall) for summary in pooled if summary.waterfall is not None]


def waterfall_table(pooled: Sequence[OnlineSummary]) -> Table | None:
    """Parts of the mean TTFT in ms, a row an engine and load; None where no TTFT is taken apart."""
    rows = [summary for summary, _ in with_waterfall(pooled)]
    if not rows:
        return None

    def part(name: str) -> Field[OnlineSummary]:
        return field(name, lambda summary: _part_cell(summary, name))

    fields: list[Field[OnlineSummary]] = [
        engine(),
        load(rows),
        *map(part, PARTS),
        field("sum", lambda summary: _part_cell(summary, "")),
    ]
    notes = [f"{part}: {meaning}." for part, meaning in PARTS.items()]
    return build("waterfall", "Parts of the mean TTFT, ms", fields, rows, notes)


def _part_cell(summary: OnlineSummary, name: str) -> Cell:
    """A part of the mean TTFT; without a name, the whole. Decimals are those of the whole."""
    waterfall = summary.waterfall
    assert waterfall is not None
    places = decimals([waterfall.total_ms])
    if not name:
        return number_cell(waterfall.total_ms, places)
    part = next((part for part in waterfall.parts if part.part == name), None)
    if part is None:
        return Cell(DASH)
    return Cell(number_cell(part.mean_ms, places).text, part.mean_ms, remark=f"{part.source}: {part.how}")
