"""A server's own metrics through a cell: its page for Prometheus, read again and again.

Pages are kept as they came, with the time, and parsed after the load. Times are of `time.monotonic()`, as
those of chunks are.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import pandas as pd

from harness.engines.prometheus import Samples, Series, parse_samples, read_page, series_values
from harness.loadgen.load_plan import Target
from harness.records.columns import COUNTED, SERVER
from harness.records.table_check import EARLIEST_S, limits

#: Quantities of a server that are read over time, in the order of the table.
QUANTITIES = tuple(name for name in SERVER.names if name not in ("cell", "t", "took_ms"))
#: Several samples of a series are parts of a sum, but these are shares.
_SHARES = {"kv_usage", "prefix_hit_rate"}


@dataclass(frozen=True)
class Page:
    """The wanted lines of a page: asked for at `sent_at`, whole at `received_at`, in s of
    `time.monotonic()`."""

    sent_at: float
    received_at: float
    text: str


class ServerMonitor:
    """Reads a server's metrics inside a `with`, in a thread of its own.

    Args:
        series: What is wanted; empty: the server is not asked.
        period_s: From one reading to the next.
    """

    def __init__(
        self,
        target: Target,
        series: Series,
        period_s: float,
        read: Callable[[Target], str | None] = read_page,
    ) -> None:
        self._target, self._series, self._period_s, self._read = target, series, period_s, read
        self._names = tuple(text.partition("{")[0] for text in series.values())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="server monitor", daemon=True)
        self.pages: list[Page] = []

    def __enter__(self) -> Self:
        if self._series:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._series:
            self._thread.join()

    def table(self, cell: int, t0: float) -> pd.DataFrame:
        """Return the readings as `records.columns.SERVER` says, after the `with`.

        Args:
            t0: The cell's start on the monotonic clock.
        """
        rows: list[dict[str, float | None]] = []
        for page in self.pages:
            t, took_ms = (page.sent_at + page.received_at) / 2 - t0, 1e3 * (page.received_at - page.sent_at)
            if t >= EARLIEST_S:  # before it clients are started
                by_quantity = values(parse_samples(page.text), self._series)
                rows.append({"cell": cell, "t": t, "took_ms": took_ms, **by_quantity})
        table = pd.DataFrame(rows, columns=SERVER.names)
        for name in COUNTED:
            table[name] = _since_first(table[name].astype("float64"))
        return table

    def _watch(self) -> None:
        due = time.monotonic()
        while True:
            sent_at, text = time.monotonic(), None
            with suppress(OSError):
                text = self._read(self._target)
            if text is not None:
                lines = [line for line in text.splitlines(keepends=True) if line.startswith(self._names)]
                self.pages.append(Page(sent_at, time.monotonic(), "".join(lines)))
            due = max(due + self._period_s, time.monotonic())
            if self._stop.wait(due - time.monotonic()):
                return


def values(samples: Samples, series: Series) -> dict[str, float | None]:
    """Read each quantity from a page; None if the page lacks it, or if no table holds the number."""
    by_quantity: dict[str, float | None] = {}
    for name in QUANTITIES:
        numbers = series_values(samples, series[name]) if name in series else []
        share = len(numbers) if name in _SHARES else 1
        value = math.fsum(numbers) / share if numbers else math.nan
        low, high = limits(name)
        by_quantity[name] = value if low <= value <= high else None
    return by_quantity


def known_series(samples: Samples, candidates: Sequence[Series]) -> Series:
    """Return the first of `candidates` of which the page has any series; empty where it has none."""
    names = {sample.name for sample in samples}
    return next(
        (series for series in candidates if any(text.partition("{")[0] in names for text in series.values())),
        {},
    )


def _since_first(counter: pd.Series[float]) -> pd.Series[float]:
    """Rise of a counter since its first reading. One that falls was set back and counts from there."""
    before = counter.ffill().shift()
    rises = (counter - before).where(counter >= before, counter)
    return rises.where(before.notna() | counter.isna(), 0.0).cumsum()
