"""Power over one load, and output tokens a second beside it on the same time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.metrics.chunk_parts import Chunks, of_cells, parts_of
from harness.metrics.samples import Group
from harness.report.charts.chart import Axis, Chart, Series
from harness.report.charts.overtime import SECONDS
from harness.report.text.load_words import load_file_name, where
from harness.schema.machines import MachineLoad, Power


def power_charts(groups: Sequence[Group], machines: Mapping[int, MachineLoad], chunks: Chunks) -> list[Chart]:
    """Watts, and output tokens a second, at one load; none where no energy counter could be read.

    Args:
        groups: One repeat of each engine.
        machines: By cell.
        chunks: Rows of `records.columns.CHUNKS`, of any cells.
    """
    load = groups[0].load
    watts, tokens = [], []
    for group in groups:
        for cell in map(int, group.requests["cell"].unique()):
            if (machine := machines.get(cell)) is None or not machine.power:
                continue
            middle = [(part.begin + part.end) / 2 for part in machine.power]
            taken = [part.watts for part in machine.power]
            watts.append(Series(group.label, "line", middle, taken, part="power", markers=False))
            rates = _rates(of_cells(chunks, [cell]), machine.power)
            tokens.append(Series(group.label, "line", middle, rates, part="output tok/s", markers=False))
            if machine.idle_watts is not None:
                ends, idle = [machine.power[0].begin, machine.power[-1].end], [machine.idle_watts] * 2
                watts.append(Series(group.label, "line", ends, idle, part="idle", markers=False, opacity=0.4))
    if not watts:
        return []
    x, name = Axis(SECONDS, "s"), load_file_name(load)
    note = "by the energy counters of the GPUs or, where there is none, of the processors; pale: idle before"
    return [
        Chart(f"power_{name}", f"Power, W, {where(load)}", x, Axis("power, W", "W"), watts, note=note),
        Chart(
            f"tokens_{name}",
            f"Output tokens a second, {where(load)}",
            x,
            Axis("output tok/s", "tok/s"),
            tokens,
        ),
    ]


def _rates(chunks: Chunks, parts: Sequence[Power]) -> list[float]:
    """Output tokens a second that came in each part of a cell."""
    ends = np.array([[part.begin, part.end] for part in parts])
    before = np.zeros(ends.shape)
    for came in parts_of(chunks):
        order = np.argsort(came["t"].to_numpy(np.float64), kind="stable")
        times = came["t"].to_numpy(np.float64)[order]
        so_far = np.concatenate([[0.0], np.cumsum(came["tokens"].to_numpy(np.float64)[order])])
        before += so_far[np.searchsorted(times, ends)]
    counts = np.diff(before, axis=1)[:, 0]
    return [float(count) / (part.end - part.begin) for count, part in zip(counts, parts, strict=True)]


def power_is_known(machines: Mapping[int, MachineLoad]) -> bool:
    """Whether any cell has it."""
    return any(machine.power for machine in machines.values())
