"""Places along the axes of a figure: of values, of the numbers that are named, of the names of limits. The
page's are the same (`templates/charts.js`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.report.charts.chart import Axis, Series, values_of

#: From so many decades on, a logarithmic axis has marks at powers of ten alone.
_MANY_DECADES = 2.5
#: How far the name of a limit keeps from a mark, and how many marks a series has at most that it keeps from.
_NEAR, _FEW = 7.0, 100


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
        return [(value, f"{value:,.10g}") for value in values]


def fitted(axis: Axis, series: Sequence[Series], which: str, start: float, end: float) -> Scale:
    """A scale on which all series are seen."""
    low, high = axis.ends or _fit(axis, list(values_of(series, which)))
    if axis.down:
        start, end = end, start
    return Scale(axis, low, high, start, end)


def _fit(axis: Axis, values: list[float]) -> tuple[float, float]:
    if axis.ticks:
        places = [place for place, _ in axis.ticks]
        margin = 0.08 * (max(places) - min(places)) or 0.6
        return min(places) - margin, max(places) + margin
    finite = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    if not finite:
        return (0.1, 1.0) if axis.log else (0.0, 1.0)
    if axis.log:
        return _log_ends(min(finite) / 1.05, max(finite) * 1.15)
    return min(0.0, *finite), max(0.0, *finite) * 1.06 or 1.0


def _steps(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ends(low: float, high: float) -> tuple[float, float]:
    """The ends of a logarithmic axis that holds `low` to `high`: it begins at one of its marks."""
    power = 10.0 ** math.floor(math.log10(low))
    mark = max(digit * power for digit in (1, 2, 5) if digit * power <= low)
    return max(digit * power for digit in _digits(mark, high) if digit * power <= mark), high


def _digits(low: float, high: float) -> tuple[int, ...]:
    """Multiples of powers of ten that have marks: 1 alone where there are many powers."""
    return (1, 2, 5) if math.log10(high / low) < _MANY_DECADES else (1,)


def _decades(low: float, high: float) -> list[float]:
    """The marks of a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = _digits(low, high)
    marks = (digit * 10.0**power for power in powers for digit in digits)
    return [mark for mark in marks if low <= mark <= high]


def few_marks(shown: Sequence[Series]) -> Iterator[tuple[str, float, float]]:
    """The engine and the place of each mark that the name of a limit must not cover, in units of the axes."""
    for series in shown:
        if series.kind != "band" and len(series.x) <= _FEW:
            for x, y in zip(series.x, series.y, strict=True):
                yield series.label, x, y


def free_start(y: float, width: float, x: Scale, marks: Sequence[tuple[float, float]]) -> float:
    """The start of a text of that width above `y` that covers no mark, as far to the right as there is
    room. In pixels or points; y grows downwards."""
    start = x.end - width
    while start > x.start:
        if not any(
            start - _NEAR < a < start + width + _NEAR and abs(b - y + 8) < 8 + _NEAR for a, b in marks
        ):
            return start
        start -= width / 4
    return x.end - width
