"""Where values of an axis lie, and which of them are named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.report.charts.chart import Axis, Series


@dataclass(frozen=True)
class Scale:
    """From values to a side of `start` to `end`, in units of the picture."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value, held within the side."""
        if self.axis.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, -0.02), 1.02) * (self.end - self.start)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Places with names: the axis's own, or round numbers."""
        if self.axis.ticks:
            return list(self.axis.ticks)
        values = _decades(self.low, self.high) if self.axis.log else _steps(self.low, self.high)
        return [(value, f"{value:,.6g}") for value in values]


def fitted(axis: Axis, series: Sequence[Series], which: str, start: float, end: float) -> Scale:
    """A scale on which all series are seen."""
    low, high = axis.ends or _fit(axis, list(values_of(series, which)))
    if axis.down:
        start, end = end, start
    return Scale(axis, low, high, start, end)


def values_of(series: Iterable[Series], which: str) -> Iterable[float]:
    """All that series show along x or y, with the ends of intervals, bands and spans."""
    for s in series:
        if which == "x":
            yield from [*s.low, *s.high] if s.kind == "spans" else s.x
        elif s.kind != "spans":
            yield from (*s.low, *s.high) if s.kind == "band" else (*s.y, *s.low, *s.high)
        else:
            yield from s.y


def _fit(axis: Axis, values: list[float]) -> tuple[float, float]:
    if axis.ticks:
        places = [place for place, _ in axis.ticks]
        margin = 0.08 * (max(places) - min(places)) or 0.6
        return min(places) - margin, max(places) + margin
    known = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    if not known:
        return (0.1, 1.0) if axis.log else (0.0, 1.0)
    if axis.log:
        return _mark_below(min(known) / 1.05), max(known) * 1.15
    return min(0.0, *known), max(0.0, *known) * 1.06 or 1.0


def _steps(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _mark_below(value: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(m * power for m in (1, 2, 5) if m * power <= value)


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 of each where there are few."""
    within = math.log10(high / low)
    marks = (1, 2, 5) if within < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in marks if low <= m * 10.0**p <= high]
