"""One cell over time: latencies, the load, the life of each request, power, and what servers report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics import samples
from harness.metrics.definitions import prompt_tokens, succeeded
from harness.metrics.samples import Group, scheduled
from harness.plain_text import one_line
from harness.report.charts.chart import Axis, Chart, Series, is_wide
from harness.report.text.load_words import load_file_name, where
from harness.report.text.numbers import span
from harness.schema.load import Load, Ramp, RateSeries, from_light_to_heavy
from harness.schema.machines import MachineLoad, Power

SECONDS = "seconds since the first arrival"
_LIVES = 100
_POINTS = 120

Floats = npt.NDArray[np.float64]


def latency_over_time(groups: list[Group]) -> Chart:
    """TTFT of each request by when it was due, of one repeat of each engine at one load."""
    load, series = groups[0].load, []
    for group in groups:
        due, ttft, rows = over_due(group)
        series.append(
            Series(
                group.label, "points", due.tolist(), ttft.tolist(), part="TTFT", opacity=0.75,
                facts=_facts(group, rows),
            )
        )  # fmt: skip
    values = [value for each in series for value in each.y]
    return Chart(
        name=f"timeline_{load_file_name(load)}",
        title=f"TTFT of each request, ms, {where(load)}",
        x=Axis(SECONDS, "s"),
        y=Axis("TTFT, ms", "ms", log=is_wide(values)),
        series=series,
        note=f"n = {span(len(group.metrics) for group in groups)} requests; a click keeps what a point is",
    )


def _facts(group: Group, rows: pd.DataFrame) -> list[tuple[str, list[float]]]:
    """A slow request as a reader looks it up: its number, its lengths and its place in the queue."""
    at = rows["t_sent"].to_numpy(np.float64)
    sent, first = (
        np.sort(group.requests[name].dropna().to_numpy(np.float64)) for name in ("t_sent", "t_first")
    )
    ahead = np.searchsorted(sent, at) - np.searchsorted(first, at, side="right")
    facts = {
        "request": rows["request"],
        "tokens in": prompt_tokens(rows),
        "tokens out": rows["completion_tokens"],
        "ahead of it without a first token": ahead,
    }
    lists = {name: np.asarray(values, np.float64).tolist() for name, values in facts.items()}
    return [(name, values[:1] if len(set(values)) == 1 else values) for name, values in lists.items()]


def load_over_time(groups: list[Group]) -> Chart:
    """The requests in flight of one repeat of each engine at one load; of changing rates what was due."""
    load, series = groups[0].load, []
    for group in groups:
        times, count = in_flight(group)
        x, y = times.tolist(), count.tolist()
        series.append(Series(group.label, "line", x, y, part="in flight", markers=False))
    if due := _due(load):
        series.append(Series(groups[0].label, "line", *due, part="requests/s due", color="#84898f"))
    return Chart(
        name=f"in_flight_{load_file_name(load)}",
        title=f"Requests in flight, {where(load)}",
        x=Axis(SECONDS, "s"),
        y=Axis("requests in flight"),
        series=series,
    )


def _due(load: Load) -> tuple[list[float], list[float]] | None:
    """Return the times at which a load's rate changes, and the rates there; None where it has one rate."""
    if isinstance(load, Ramp):
        return [0.0, load.seconds], [load.from_req_per_s, load.to_req_per_s]
    if not isinstance(load, RateSeries):
        return None
    ends_s = load.ends_s
    times = [time for begin, end in zip([0.0, *ends_s], ends_s, strict=False) for time in (begin, end)]
    return times, [rate for stage in load.stages for rate in (stage.req_per_s,) * 2]


def lives(groups: Sequence[Group]) -> list[Chart]:
    """Each request of a cell as a bar: pale until its first token, full while tokens come; a chart a cell.

    The first 100 requests of each cell are drawn, all cells on the same axis of time.
    """
    drawn = [group.requests.sort_values("request", kind="stable").head(_LIVES) for group in groups]
    times = [rows[["t_sent", "t_last"]].to_numpy(np.float64) for rows in drawn]
    seconds = max(float(np.nanmax(each, initial=0.001)) for each in times)
    return [_lives(group, rows, seconds) for group, rows in zip(groups, drawn, strict=True)]


def _lives(group: Group, rows: pd.DataFrame, seconds: float) -> Chart:
    sched, sent, first, last = (
        rows[name].to_numpy(np.float64) for name in ("t_sched", "t_sent", "t_first", "t_last")
    )
    good, position = succeeded(rows), np.arange(len(rows), dtype=float)
    due = np.where(np.isfinite(sched), sched, sent)
    label, errors = group.label, rows["error"].astype(object).where(rows["error"].notna(), "")

    def bars(part: str, start: Floats, end: Floats, opacity: float) -> Series:
        at, low, high = (values[good].tolist() for values in (position, start, end))
        return Series(label, "spans", low, at, part=part, low=low, high=high, opacity=opacity, width=0.7)

    failed = Series(
        label, "points", due[~good].tolist(), position[~good].tolist(), part="failed", hollow=True,
        notes=[f"{errors.iloc[int(i)]}" for i in position[~good]],
    )  # fmt: skip
    return Chart(
        name=f"requests_{file_name(label)}_{load_file_name(group.load)}",
        title=f"{label} {where(group.load)}",
        x=Axis(SECONDS, "s", ends=(0.0, seconds)),
        y=Axis("request", down=True, ends=(-0.8, max(len(rows), 2) - 0.2)),
        series=[bars("until the first token", due, first, 0.35), bars("tokens", first, last, 1.0)]
        + ([failed] if len(failed.x) else []),
        note=f"pale: until the first token; first {len(rows):,} of {len(group.requests):,} requests",
    )


def in_flight(group: Group) -> tuple[Floats, Floats]:
    """(T,) seconds and (T,) how many requests were sent and not yet ended, 120 points."""
    sent, ended = group.requests["t_sent"], group.requests["t_end"]
    if sent.isna().all():
        return np.zeros(1), np.zeros(1)
    times = np.linspace(sent.min(), np.fmax(sent.max(), ended.max()), _POINTS)
    return times, samples.in_flight(group.requests, times).astype(np.float64)


def over_due(group: Group) -> tuple[npt.NDArray[Any], npt.NDArray[Any], pd.DataFrame]:
    """TTFT by scheduled time, and the rows of the requests; of many the lowest, middle and highest of each
    stretch of time."""
    sample = group.sample("ttft_ms")
    rows = group.good.iloc[sample.request]
    due, values = scheduled(rows).to_numpy(np.float64), np.asarray(sample.values)
    if len(values) <= 3 * _POINTS:
        return due, values, rows
    order = np.argsort(due, kind="stable")
    keep = []
    for stretch in np.array_split(order, _POINTS):
        ranked = stretch[np.argsort(values[stretch], kind="stable")]
        keep += [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    return due[keep], values[keep], rows.iloc[keep]


def file_name(label: str) -> str:
    """A label as part of a file name: letters, digits, dots and hyphens."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", one_line(label, 60)).strip("_")


def same_load(groups: list[Group]) -> dict[Load, list[Group]]:
    """Groups by their load, from light to heavy."""
    loads = from_light_to_heavy(g.load for g in groups)
    return {load: [g for g in groups if g.load == load] for load in loads}


# --- Power ----------------------------------------------------------------------------------------------


def power_charts(
    groups: Sequence[Group], machines: Mapping[int, MachineLoad], chunks: pd.DataFrame
) -> list[Chart]:
    """Watts, and output tokens a second, at one load; none where no energy counter could be read.

    Args:
        groups: One repeat of each engine.
        machines: By cell.
        chunks: Rows of `records.columns.CHUNKS`, of any cells.
    """
    load = groups[0].load
    watts: list[Series] = []
    tokens: list[Series] = []
    for group in groups:
        for cell in map(int, group.requests["cell"].unique()):
            if (machine := machines.get(cell)) is None or not machine.power:
                continue
            power = machine.power
            middle = [(part.begin + part.end) / 2 for part in power]
            rates = _rates(chunks[chunks["cell"] == cell], power)
            drawn = [part.watts for part in power]
            watts.append(Series(group.label, "line", middle, drawn, part="power", markers=False))
            tokens.append(Series(group.label, "line", middle, rates, part="output tok/s", markers=False))
            if machine.idle_watts is not None:
                ends, idle = [power[0].begin, power[-1].end], [machine.idle_watts] * 2
                watts.append(Series(group.label, "line", ends, idle, part="idle", markers=False, opacity=0.4))
    if not watts:
        return []
    x, name = Axis(SECONDS, "s"), load_file_name(load)
    note = "by the energy counters of the GPUs or, where there is none, of the processors; pale: idle before"
    y, rate = Axis("power, W", "W"), Axis("output tok/s", "tok/s")
    return [
        Chart(f"power_{name}", f"Power, W, {where(load)}", x, y, watts, note=note),
        Chart(f"tokens_{name}", f"Output tokens a second, {where(load)}", x, rate, tokens),
    ]


def _rates(chunks: pd.DataFrame, parts: Sequence[Power]) -> list[float]:
    """Output tokens a second that came in each part of a cell."""
    ends = np.array([[part.begin, part.end] for part in parts])
    in_time = chunks.sort_values("t", kind="stable")
    so_far = np.concatenate([[0.0], np.cumsum(in_time["tokens"].to_numpy(np.float64))])
    before = so_far[np.searchsorted(in_time["t"].to_numpy(np.float64), ends)]
    counts = np.diff(before, axis=1)[:, 0]
    return [float(count) / (part.end - part.begin) for count, part in zip(counts, parts, strict=True)]


# --- What servers report --------------------------------------------------------------------------------


def server_charts(groups: Sequence[Group], readings: pd.DataFrame) -> list[Chart]:
    """A chart for each quantity that a server says, at one load.

    Args:
        groups: One repeat of each engine.
        readings: Rows of `records.columns.SERVER`, of any cells.
    """
    load, charts = groups[0].load, []
    for name, (title, unit, quantity) in _QUANTITIES.items() if len(readings) else ():
        series = []
        for group in groups:
            measured = readings[readings["cell"].isin(group.requests["cell"].unique())]
            rows = pd.DataFrame({"x": measured["t"], "y": quantity(measured)}, dtype=float)
            x, y = rows[rows["y"].notna()].to_numpy().T.tolist()
            if x:
                series.append(Series(group.label, "line", x, y, part=unit, markers=False))
        if series:
            name, title = f"server_{name}_{load_file_name(load)}", f"{title}, {where(load)}"
            y_axis = Axis(unit, "%" if unit == "%" else "")
            note = "by the servers' own metrics"
            charts.append(Chart(name, title, Axis(SECONDS, "s"), y_axis, series, note=note))
    return charts


def _prefix_hits(readings: pd.DataFrame) -> pd.Series[float]:
    """Share of prompt tokens since the reading before or, where that is not counted, as the server averages
    it. Nothing where none was ever found.
    """
    queries, hits = readings["prefix_queries"].diff(), readings["prefix_hits"].diff()
    rate = (hits / queries.where(queries > 0)).fillna(readings["prefix_hit_rate"])
    return _if_any(100 * rate)


def _if_any(values: pd.Series[float]) -> pd.Series[float]:
    """The values, or NaN for all where none is above 0."""
    return values if (values > 0).any() else values.where(values.isna())


def _tokens_per_step(readings: pd.DataFrame) -> pd.Series[float]:
    """Since the reading before; NaN where no step was done."""
    steps = readings["steps"].diff()
    per_step: pd.Series[float] = readings["step_tokens"].diff() / steps.where(steps > 0)
    return per_step


#: By part of the chart's name: its title, the unit, and the values by readings.
_QUANTITIES: dict[str, tuple[str, str, Callable[[pd.DataFrame], pd.Series[float]]]] = {
    "running": ("Requests that run in the server", "requests", lambda rows: rows["running"]),
    "waiting": ("Requests that wait in the server", "requests", lambda rows: _if_any(rows["waiting"])),
    "kv_usage": ("KV cache in use, %", "%", lambda rows: 100 * rows["kv_usage"]),
    "prefix_hits": ("Prompt tokens from the prefix cache, %", "%", _prefix_hits),
    "steps": ("Tokens of a step", "tokens", _tokens_per_step),
    "preemptions": ("Preemptions so far", "preemptions", lambda rows: _if_any(rows["preemptions"])),
}
