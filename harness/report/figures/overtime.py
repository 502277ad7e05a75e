"""One cell over time: the latency of each request and the load, and the life of each request."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.metrics.definitions import succeeded
from harness.metrics.samples import Group
from harness.report.figures.axes import fit_values, footnote, key
from harness.report.figures.sketch import LINE, Sketch
from harness.report.figures.style import MUTED, Look
from harness.report.figures.svg import Plot, plain
from harness.report.text.load_words import load_file_name, where
from harness.schema.load import Ramp

_POINTS = 120
_LIVES = 100

Floats = npt.NDArray[np.float64]


def timeline(group: Group, look: Look, *, highest_ms: float, most: int) -> Plot:
    """TTFT of each request by when it was due, and the requests in flight, for one cell; the rate of a ramp.

    Args:
        group: One repeat of one engine at one load.
        highest_ms, most: Ends of the two value axes, so that cells can be laid side by side.
    """
    sketch = Sketch({group.label: look}, ("series", "s", "value"), has_legend=False)
    upper, lower = sketch.figure.subplots(
        2, 1, sharex=True, height_ratios=(2.2, 1), gridspec_kw={"hspace": 0.32}
    )
    due, ttft = _ttft(group)
    (dots,) = upper.plot(due, ttft, look.marker, color=look.color, markersize=2.6, alpha=0.75)
    tips = [f"due at {t:.2f} s{LINE}TTFT {ms:,.1f} ms" for t, ms in zip(due, ttft, strict=True)]
    sketch.points(dots, group.label, tips)
    upper.set_title(f"{plain(group.label, 40)} {where(group.load)}: TTFT, ms")
    fit_values(upper, [highest_ms])
    times, load = in_flight(group)
    filled = lower.fill_between(times, load, step="post", color=MUTED, alpha=0.35, linewidth=0)
    sketch.belongs(filled, group.label)
    lower.set_ylim(0, most * 1.1 or 1)
    lower.locator_params(axis="y", integer=True)
    lower.set_title("requests in flight", fontsize=8, fontweight="normal", color=MUTED, pad=3)
    lower.set_xlabel("seconds since the first arrival", loc="left")
    footnote(lower, f"n = {len(group.metrics):,} requests")
    if isinstance(group.load, Ramp):
        ends = [(0.0, group.load.from_req_per_s), (group.load.seconds, group.load.to_req_per_s)]
        rate = lower.twinx()
        rate.plot(*zip(*ends, strict=True), color=look.color, linewidth=1.2)
        rate.set_ylim(0, max(value for _, value in ends) * 1.1)
        rate.yaxis.set_visible(False)
        key(rate, f"line: {ends[0][1]:g} to {ends[1][1]:g} requests/s due")
        sketch.rows += [("due_req_per_s", t, value) for t, value in ends]
    sketch.rows += [("ttft_ms", float(t), float(ms)) for t, ms in zip(due, ttft, strict=True)]
    sketch.rows += [("in_flight", float(t), int(count)) for t, count in zip(times, load, strict=True)]
    title = f"{plain(group.label)} {where(group.load)}: time to first token and load over time"
    return sketch.finish(f"timeline_{file_name(group.label)}_{load_file_name(group.load)}", title)


def lives(group: Group, look: Look, *, seconds: float) -> Plot:
    """Each request of a cell as a bar: pale until its first token, full while tokens come.

    Args:
        group: One repeat of one engine at one load; its first 100 requests are drawn.
        seconds: End of the time axis, so that cells can be laid side by side.
    """
    heads = ("request", "t_sched", "t_sent", "t_first", "t_last", "error")
    sketch = Sketch({group.label: look}, heads, has_legend=False)
    axes = sketch.axes()
    rows = group.requests.sort_values("request").head(_LIVES)
    names = ["t_sched", "t_sent", "t_first", "t_last"]
    times = rows[names].to_numpy(np.float64)
    good, position = succeeded(rows), np.arange(len(rows))
    due = np.where(np.isfinite(times[:, 0]), times[:, 0], times[:, 1])
    for start, end, alpha in ((due, times[:, 2], 0.35), (times[:, 2], times[:, 3], 1.0)):
        bars = axes.hlines(
            position[good], start[good], end[good], color=look.color, linewidth=1.6, alpha=alpha
        )
        sketch.belongs(bars, group.label)
    (failed,) = axes.plot(due[~good], position[~good], "x", color=look.color, markersize=4)
    errors = rows["error"].astype(object).where(rows["error"].notna(), "")
    sketch.points(failed, group.label, [f"request {i}{LINE}{errors.iloc[i]}" for i in position[~good]])
    axes.set_title(f"{plain(group.label, 40)} {where(group.load)}")
    axes.set_xlabel("seconds since the first arrival", loc="left")
    axes.set_xlim(0, seconds)
    axes.set_ylim(max(len(rows), 2) - 0.2, -0.8)
    key(axes, "pale: until the first token")
    footnote(axes, f"first {len(rows):,} of {len(group.requests):,} requests")
    for request, error, found in zip(rows["request"], errors, times, strict=True):
        known = [float(t) if np.isfinite(t) else None for t in found]
        sketch.rows.append((int(request), *known, str(error)))
    title = f"{plain(group.label)} {where(group.load)}: when each request waited and was answered"
    return sketch.finish(f"requests_{file_name(group.label)}_{load_file_name(group.load)}", title)


def lives_end(group: Group) -> float:
    """When the last of the requests that `lives` draws has ended, in s."""
    rows = group.requests.sort_values("request").head(_LIVES)
    return float(np.nanmax(rows[["t_sent", "t_last"]].to_numpy(np.float64), initial=0.001))


def in_flight(group: Group) -> tuple[Floats, Floats]:
    """(T,) seconds and (T,) how many requests were sent and not yet ended, 120 points."""
    sent = np.sort(group.requests["t_sent"].dropna().to_numpy(np.float64))
    ended = np.sort(group.requests["t_end"].dropna().to_numpy(np.float64))
    if not sent.size:
        return np.zeros(1), np.zeros(1)
    times = np.linspace(sent[0], max(sent[-1], ended[-1] if ended.size else 0), _POINTS)
    load = np.searchsorted(sent, times, side="right") - np.searchsorted(ended, times, side="right")
    return times, load.astype(np.float64)


def file_name(label: str) -> str:
    """A label as part of a file name: letters, digits, dots and hyphens."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in plain(label)).strip("_")


def _ttft(group: Group) -> tuple[Floats, Floats]:
    """TTFT by scheduled time; of many requests the lowest, middle and highest of each stretch of time."""
    sample = group.sample("ttft_ms")
    good = group.requests[group.requests["error"].isna()]
    due = good["t_sched"].fillna(good["t_sent"]).to_numpy(np.float64)[sample.request]
    values = sample.values
    if len(values) <= 3 * _POINTS:
        return due, values
    order = np.argsort(due, kind="stable")
    keep = []
    for stretch in np.array_split(order, _POINTS):
        ranked = stretch[np.argsort(values[stretch], kind="stable")]
        keep += [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    return due[keep], values[keep]
