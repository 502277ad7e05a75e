"""Empirical distribution functions, and latency over time with the load beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from harness.metrics.glossary import GLOSSARY
from harness.metrics.percentiles import missing, percentiles
from harness.metrics.samples import Group
from harness.reporting.axes import canvas, fit_values, footnote, key, legend
from harness.reporting.bands import short
from harness.reporting.style import MUTED, Look
from harness.reporting.svg import Plot, draw, plain

#: Per cent at which a distribution function is drawn: even, and finer at the tail.
_LEVELS = np.unique(np.concatenate([np.linspace(0, 100, 101), np.linspace(95, 100, 51)]))
_MARKS = (50, 90, 99)
_POINTS = 180

Floats = npt.NDArray[np.float64]


def ecdf(groups: Sequence[Group], styles: Mapping[str, Look], metric: str) -> Plot:
    """The share of requests (of tokens for ITL) at or below each latency, at one scale, one line an engine.

    Args:
        groups: One per engine, all at the same scale. Markers stand at p50, p90 and p99.
    """
    figure = canvas()
    axes = figure.subplots()
    reach: list[float] = []
    for group in groups:
        sample = group.sample(metric)
        if not sample.values.size:
            continue
        look = styles[group.label]
        n = sample.values.size if sample.weights is None else int(sample.weights.sum())
        marks = [q for q in _MARKS if not missing(q, n)]
        found = percentiles(sample.values, sample.weights, [*_LEVELS, *marks])
        axes.plot(found[: len(_LEVELS)], _LEVELS, color=look.color, linestyle=look.line, linewidth=1.4)
        axes.plot(found[len(_LEVELS) :], marks, look.marker, color=look.color, markersize=4.5)
        reach += [float(found[1]), float(found[len(_LEVELS) - 1])]
    scale = groups[0].scale
    axes.set_title(f"{GLOSSARY[metric].short} at scale {scale:g}, ms")
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 90, 100], ["0 %", "25 %", "50 %", "75 %", "90 %", "100 %"])
    fit_values(axes, reach, "x")
    what = "tokens" if metric == "itl_ms" else "requests"
    key(axes, f"share of {what}; marks at p50, p90, p99")
    legend(figure, {group.label: styles[group.label] for group in groups})
    title = f"Distribution of {GLOSSARY[metric].name} at scale {scale:g}"
    return draw(figure, f"ecdf_{short(metric)}_scale_{scale:g}", title)


def timeline(group: Group, look: Look, *, highest_ms: float, most: int) -> Plot:
    """TTFT of each request by when it was due, and the requests in flight, for one cell.

    Args:
        group: One repeat of one engine at one scale.
        highest_ms, most: Ends of the two value axes, so that cells can be laid side by side.
    """
    figure = canvas()
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    due, ttft = _ttft(group)
    upper.plot(due, ttft, look.marker, color=look.color, markersize=2.6, alpha=0.75, linestyle="none")
    upper.set_title(f"{plain(group.label, 40)} at scale {group.scale:g}: TTFT, ms")
    fit_values(upper, [highest_ms])
    times, load = in_flight(group)
    lower.fill_between(times, load, step="post", color=MUTED, alpha=0.35, linewidth=0)
    lower.set_ylim(0, most * 1.1 or 1)
    lower.set_title("requests in flight", fontsize=8, fontweight="normal", color=MUTED, pad=3)
    lower.set_xlabel("seconds since the first arrival", loc="left")
    footnote(lower, f"n = {len(group.metrics):,} requests")
    title = f"{plain(group.label)} at scale {group.scale:g}: time to first token and load over time"
    return draw(figure, f"timeline_{_file(group.label)}_scale_{group.scale:g}", title)


def in_flight(group: Group) -> tuple[Floats, Floats]:
    """(T,) seconds and (T,) how many requests were sent and not yet ended, 180 points."""
    sent = np.sort(group.requests["t_sent"].dropna().to_numpy(np.float64))
    ended = np.sort(group.requests["t_end"].dropna().to_numpy(np.float64))
    if not sent.size:
        return np.zeros(1), np.zeros(1)
    times = np.linspace(sent[0], max(sent[-1], ended[-1] if ended.size else 0), _POINTS)
    load = np.searchsorted(sent, times, side="right") - np.searchsorted(ended, times, side="right")
    return times, load.astype(np.float64)


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


def _file(label: str) -> str:
    """A label as part of a file name: letters, digits, dots and hyphens."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "_" for c in plain(label)).strip("_")
