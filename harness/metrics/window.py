"""The part of a cell that is measured: all of it, a given time, or its steady state."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.schema.setting_types import Window

#: A given window, or that of the steady state, found in each cell by itself.
Cut = Window | Literal["steady"]


def find_window(requests: pd.DataFrame, cut: Cut) -> Window:
    """The window of one cell, within the time from its first scheduled arrival to its last end of a stream.

    The steady state begins when as many requests are in flight as in the middle of the cell, and ends when
    they were for the last time: before is the ramp-up, after it the ramp-down. That level is the median over
    the middle half of the cell's time.
    """
    sent, ended = requests["t_sent"].dropna().to_numpy(np.float64), _ends(requests)
    if not (sent.size and ended.size):
        return Window(start_s=0, end_s=0)
    first, last = max(0.0, float(scheduled(requests).min())), float(ended.max())
    if isinstance(cut, Window):
        return Window(start_s=cut.start_s, end_s=max(cut.start_s, min(cut.end_s, last)))
    times = np.concatenate([sent, ended])
    order = np.lexsort((np.repeat([0, 1], [sent.size, ended.size]), times))
    at, count = times[order], np.cumsum(np.repeat([1, -1], [sent.size, ended.size])[order])
    lasting = np.diff(np.append(at, at[-1]))
    quarter = (last - first) / 4
    begins, ends = (np.clip(edge, first + quarter, last - quarter) for edge in (at, at + lasting))
    level = _median(count, ends - begins)
    reached = np.flatnonzero((count >= level) & (lasting > 0))
    if level == 0 or not reached.size:
        return Window(start_s=first, end_s=last)
    begin, end = at[reached[0]], at[reached[-1]] + lasting[reached[-1]]
    return Window(start_s=max(0.0, float(begin)), end_s=float(end))


def inside(times: pd.Series[float], window: Window) -> pd.Series[bool]:
    """Return which times are in the window; its end, where the cell ends, belongs to it."""
    return (times >= window.start_s) & (times <= window.end_s)


def scheduled(requests: pd.DataFrame) -> pd.Series[float]:
    """When each request was to be sent, or without a schedule was."""
    due = requests["t_sched"]
    return due.fillna(requests["t_sent"]) if due.hasnans else due


def in_flight(requests: pd.DataFrame, times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return (k,) the requests of one cell in flight at each of `times`, (k,) in s. One that is sent then is;
    one that ends then makes room for it."""
    sent, ended = requests["t_sent"].to_numpy(np.float64), requests["t_end"].to_numpy(np.float64)
    was_sent = np.isfinite(sent)
    sent, ended = (np.sort(t[was_sent & np.isfinite(t)]) for t in (sent, ended))
    return np.searchsorted(sent, times, "right") - np.searchsorted(ended, times, "right")


def waiting(requests: pd.DataFrame) -> npt.NDArray[np.int64]:
    """(k,) for each request of one cell that got a first token: how many waited for theirs at some time while
    it did, itself among them."""
    sent, first = requests["t_sent"].to_numpy(np.float64), requests["t_first"].to_numpy(np.float64)
    answered = np.isfinite(sent) & np.isfinite(first)
    sent, first = sent[answered], first[answered]
    sent_before, ended_before = (
        np.searchsorted(np.sort(sent), first),
        np.searchsorted(np.sort(first), sent, "right"),
    )
    others: npt.NDArray[np.int64] = sent_before - ended_before
    return others


def _ends(requests: pd.DataFrame) -> npt.NDArray[np.float64]:
    """When requests that were sent ended."""
    return np.asarray(requests.loc[requests["t_sent"].notna(), "t_end"].dropna(), dtype=np.float64)


def _median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(cumulative, cumulative[-1] / 2)])
