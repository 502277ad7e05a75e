"""The nodes of a cluster in each cell: what they sent, how late, and how sure their clocks are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.metrics.long_frames import compress, numbers
from harness.metrics.node_effect import node_effects
from harness.metrics.percentiles import percentiles
from harness.metrics.samples import Group
from harness.report.tables.table import Cell, Column, Table, repeat_cell
from harness.report.text.load_words import head_of, load_number
from harness.report.text.numbers import DASH, number, signed
from harness.schema.machines import Host, HostCell
from harness.schema.metrics import METRICS

_NOTE = (
    "Latencies are differences of two stamps of one node's clock. Began within: how early or late the "
    "node began the cell at most, by the offset and drift of its clock."
)
_EFFECT = (
    "Every node measured whole repeats of all engines: a difference between nodes is none between engines, "
    "and widens the intervals. Engines and loads are taken out."
)
_LOW = (
    "engines and clients run at a lower priority than other programs there; start Ray with "
    "RAY_worker_niceness=0 in its environment."
)


def nodes_table(
    groups: Sequence[Group], senders: Mapping[int, Sequence[HostCell]], hosts: Sequence[Host]
) -> Table | None:
    """One row a cell and node that sent; None without a cluster.

    Args:
        groups: Of each repeat.
        senders: By cell.
        hosts: All nodes of the run.
    """
    if not senders:
        return None
    columns = [
        Column("engine", numeric=False),
        Column(head_of(group.load for group in groups)),
        Column("repeat"),
        Column("node", numeric=False),
        *map(Column, ("clients", "requests", "submit lag p99 ms", "round trip ms", "began within ms")),
        *map(Column, ("drift ppm", "CPUs busy with other work")),
    ]
    low = ", ".join(host.name for host in hosts if host.niceness > 0)
    notes = (_NOTE, *([f"{low}: {_LOW}"] if low else []))
    return Table("nodes", "Nodes that sent", columns, list(_rows(groups, senders)), notes)


def node_effect_table(groups: Sequence[Group], nodes: Mapping[int, str]) -> Table | None:
    """How much the nodes of engines differ; None where one node measured all.

    Args:
        groups: Of each repeat.
        nodes: The engine's, by cell.
    """
    found = node_effects(groups, nodes)
    if not found:
        return None
    names = list(found[0].ratios)
    columns = [Column("metric", numeric=False), *map(Column, names), Column("p of no difference")]
    rows = [
        [
            Cell(METRICS[effect.metric].label),
            *(Cell(f"{effect.ratios[name]:.3f}×", effect.ratios[name]) for name in names),
            Cell(DASH if effect.p is None else f"{effect.p:.2g}", effect.p),
        ]
        for effect in found
    ]
    return Table("node-effect", "Nodes of engines, p50 over the mean of all nodes", columns, rows, (_EFFECT,))


def _rows(groups: Sequence[Group], senders: Mapping[int, Sequence[HostCell]]) -> Iterator[list[Cell]]:
    for group in groups:
        cell = int((group.whole or group).requests["cell"].iloc[0])
        lag, host = numbers(group.metrics["submit_lag_ms"]), group.good["host"]
        for sender in senders.get(cell, ()):
            own = compress(np.isfinite(lag) & (host == sender.name).to_numpy(dtype=bool), lag)
            late, clock = float(percentiles(own, None, [99])[0]) if own.size else None, sender.clock
            foreign = sender.machine.foreign_cores_mean if sender.machine else None
            yield [
                Cell(group.label),
                Cell(load_number(group.load), group.load.value),
                repeat_cell(group.repeat),
                Cell(sender.name),
                Cell(str(len(sender.clients)), len(sender.clients)),
                Cell(f"{sender.requests:,}", sender.requests),
                Cell(number(late, 2), late),
                Cell(f"{clock.round_trip_ms:.2f}", clock.round_trip_ms),
                Cell(f"{clock.start_bound_ms:.2f}", clock.start_bound_ms),
                Cell(f"{signed(clock.drift_ppm, 0)} ± {clock.drift_bound_ppm:.0f}", clock.drift_ppm),
                Cell(DASH if foreign is None else f"{foreign:.2g}", foreign),
            ]
