"""A chart as data.

A function of this package returns a `Chart`: axes, series in the units of the axes, and nothing about how it
is drawn. `templates/charts.js` draws it in the page, `figures.py` as a file. To add one to the page, put
`{{ chart_card(chart) }}` (templates/macros.html.j2) where it belongs:

    Chart(
        name="power", title="Power over time",
        x=Axis("seconds since the first arrival"), y=Axis("power, W", unit="W"),
        series=[Series("vLLM", "line", x=seconds, y=watts, part="mean")],
    )

Points that are made one by one are drawn as `Series.of("vLLM", "line", points)`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from harness.plain_text import one_line
from harness.report.charts.looks import DASHES, MARKERS, Look
from harness.report.text.numbers import few

#: Values that span more than this factor are drawn on a logarithmic axis at first.
LOG_FROM = 20.0
#: Characters that could end the block of data or start markup in it.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
#: With more engines than this, each has a panel of its own.
MANY = 6
#: With more points than this, invalid ones are not crossed: the note names the engine.
CROSSED = 100

Kind = Literal["line", "points", "band", "spans"]
Numbers = Sequence[float]


@dataclass(frozen=True)
class Axis:
    """A side of a chart.

    Attributes:
        label: The quantity with its unit: `TTFT, ms`.
        unit: Of its values where one is shown alone.
        log: Logarithmic at first; a reader may switch an axis without ticks.
        ticks: Places with names, of loads or rows; empty where numbers are read. With a unit, the places are
            numbers too.
        ends: Where it begins and ends; by default what is shown fits, from zero unless it is logarithmic.
        down: It grows downwards.
    """

    label: str
    unit: str = ""
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    ends: tuple[float, float] | None = None
    down: bool = False


#: The ends of a point whose interval is not known, in a series that has intervals.
UNKNOWN = (math.nan, math.nan)


class Point(NamedTuple):
    """A point of a series.

    Attributes:
        ends: Of its 95 % interval, of a band, or of a span; None where no point of the series has any.
        n: Its samples; None where they are not counted.
        note: What a reader sees of it beside its values.
        valid: Its cell is valid.
    """

    x: float
    y: float
    ends: tuple[float, float] | None = None
    n: int | None = None
    note: str = ""
    valid: bool = True


@dataclass(frozen=True)
class Series:
    """Points of one engine, drawn in one way; all sequences are as long as `x`.

    Attributes:
        label: The engine's label, whose colour and marker it has, and which hides it.
        kind: `line` joins points that have markers; `points` are markers alone; `band` lies between `low` and
            `high`; `spans` are bars from `low` to `high` along x at the height `y`.
        part: What of the engine it is: `p90`, `queue`. Parts are picked by `Chart.views`.
        low, high: The ends; of `line` and `points`, of the 95 % interval along y, as whiskers. NaN: none.
        n: Samples of each point.
        notes: What a reader sees of each point beside its values.
        names: Text beside each point, unless one like it is near.
        facts: More of each point, by name: numbers, or one for all.
        invalid: Positions of points of invalid cells.
        hollow: Markers are outlines.
        markers: Points of a line have markers.
        color: Instead of the engine's: `#rrggbb`. The chart has a key of such parts then.
        opacity: 0 to 1.
        width: Of spans, in units of y.
        is_length: Of spans: their value is their length `x`; `low` and `high` say where they are drawn.
    """

    label: str
    kind: Kind
    x: Numbers
    y: Numbers
    part: str = ""
    low: Numbers = ()
    high: Numbers = ()
    n: Sequence[int] = ()
    notes: Sequence[str] = ()
    names: Sequence[str] = ()
    facts: Sequence[tuple[str, Numbers]] = ()
    invalid: Sequence[int] = ()
    hollow: bool = False
    markers: bool = True
    color: str = ""
    opacity: float = 1.0
    width: float = 0.6
    is_length: bool = False

    @classmethod
    def of(cls, label: str, kind: Kind, points: Sequence[Point], part: str = "", **look: Any) -> Series:
        """Make a series of points; `look` is the fields that say how it is drawn."""
        ends = [point.ends for point in points if point.ends is not None]
        return cls(
            label,
            kind,
            [point.x for point in points],
            [float(point.y) for point in points],
            part,
            low=[low for low, _ in ends],
            high=[high for _, high in ends],
            n=[point.n for point in points if point.n is not None],
            notes=[point.note for point in points] if any(point.note for point in points) else (),
            invalid=[i for i, point in enumerate(points) if not point.valid],
            **look,
        )

    @property
    def crossed(self) -> Sequence[int]:
        """Positions of the points that have a cross."""
        has_marks = self.kind in ("line", "points") and self.markers and len(self.x) <= CROSSED
        return self.invalid if has_marks else ()


@dataclass(frozen=True)
class Limit:
    """A line across the chart at a value of the axis: a service level."""

    axis: Literal["x", "y"]
    value: float
    text: str


@dataclass(frozen=True)
class View:
    """A choice of a reader: its name, and the parts that it shows.

    Those in `marks` are hollow markers, without lines; `whiskers` says whether intervals are drawn.
    """

    name: str
    parts: Sequence[str]
    marks: Sequence[str] = ()
    whiskers: bool = True


@dataclass(frozen=True)
class Chart:
    """Everything that is drawn.

    Attributes:
        name: Of files and addresses, unique in a run: letters, digits, `_`, `.` and `-`.
        title: What is shown, in a few words.
        note: How to read it, in small print.
        limits: Service levels.
        views: The first is shown at first; without any, all series are.
        titles: Of the chart as it shows one view alone, by the view's name.
        dodge: Engines at the same place of x stand side by side.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    note: str = ""
    limits: Sequence[Limit] = ()
    views: Sequence[View] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    dodge: bool = False

    @property
    def labels(self) -> list[str]:
        """The engines, in order."""
        return list(dict.fromkeys(series.label for series in self.series))

    @property
    def multiples(self) -> bool:
        """Each engine has a panel of its own: no mark may hide another's."""
        return len(self.labels) > MANY and not any(s.kind == "spans" for s in self.series)

    @property
    def rows(self) -> int:
        """Number of rows of bars, which decides the height; 0: the height does not depend on rows."""
        return len(self.y.ticks) if any(s.kind == "spans" for s in self.series) else 0

    @property
    def shown(self) -> list[Series]:
        """The series that are shown at first, as they are drawn then."""
        if not self.views:
            return list(self.series)
        view = self.views[0]
        return [in_view(series, view) for series in self.series if series.part in view.parts]

    @property
    def has_invalid(self) -> bool:
        """Some points are of invalid cells, which the note says."""
        return any(len(series.invalid) for series in self.series)

    @property
    def key(self) -> dict[str, str]:
        """The colour of each part that has one of its own."""
        return {series.part: series.color for series in self.series if series.color}

    def data(self) -> dict[str, object]:
        """Return the chart as JSON has it for the page, without fields that have their default."""
        return {
            "title": one_line(self.title, 200),
            "x": _fields(self.x),
            "y": _fields(self.y),
            "series": [_fields(series) for series in self.series],
            "limits": [_fields(limit) for limit in self.limits],
            "views": [_fields(view) for view in self.views],
            "dodge": self.dodge,
            "multiples": self.multiples,
        }

    def csv(self) -> str:
        """The numbers, a row a point; without y where its ticks are the engines."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        has_y = not (self.y.down and self.y.ticks)
        axes = (self.x.label, self.y.label) if has_y else (self.x.label,)
        writer.writerow(("engine", "part", *axes, "low", "high", "n", "valid", "note"))
        numbers = {} if self.x.unit else {place: name.replace(",", "") for place, name in self.x.ticks}
        for s in self.series:
            sides = ((), ()) if s.is_length else (s.low, s.high)
            for i, (x, y) in enumerate(zip(s.x, s.y, strict=True)):
                at = [numbers.get(x, rounded(x)), *([rounded(y)] if has_y else [])]
                extra = [rounded(ends[i]) if ends and math.isfinite(ends[i]) else "" for ends in sides]
                size, note = s.n[i] if s.n else "", one_line(s.notes[i]) if s.notes else ""
                writer.writerow((one_line(s.label), s.part, *at, *extra, size, i not in s.invalid, note))
        return text.getvalue()


def is_wide(values: Iterable[float]) -> bool:
    """Positive values span so much that a linear axis would hide the small ones."""
    shown = [value for value in values if math.isfinite(value) and value > 0]
    return bool(shown) and max(shown) / min(shown) > LOG_FROM


def values_of(series: Iterable[Series], which: str) -> Iterable[float]:
    """All that series show along x or y, with the ends of intervals, bands and spans."""
    for s in series:
        if which == "x":
            yield from [*s.low, *s.high] if s.kind == "spans" else s.x
        elif s.kind != "spans":
            yield from (*s.low, *s.high) if s.kind == "band" else (*s.y, *s.low, *s.high)
        else:
            yield from s.y


def rounded(value: float) -> float | None:
    """A value with six significant digits; None for NaN and infinity, which JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def with_invalid(chart: Chart, labels: Sequence[str]) -> Chart:
    """The chart, all points of these engines invalid; the note names them."""
    invalid = [label for label in chart.labels if label in labels]
    if not invalid:
        return chart
    series = [replace(s, invalid=list(range(len(s.x)))) if s.label in invalid else s for s in chart.series]
    sign = "× " if any(s.crossed for s in series) else ""
    note = "; ".join(filter(None, (chart.note, f"{sign}invalid: {few(invalid)}")))
    return replace(chart, series=series, note=note)


def in_view(series: Series, view: View) -> Series:
    """The series as a view draws it."""
    if series.part in view.marks:
        series = replace(series, kind="points", hollow=True)
    return series if view.whiskers or series.kind == "band" else replace(series, low=(), high=())


def _fields(of: Axis | Series | Limit | View) -> dict[str, object]:
    """The fields that differ from their defaults, with short numbers."""
    fields: dict[str, object] = {}
    for name, default in of.__dataclass_fields__.items():
        value = getattr(of, name)
        if value == default.default or (isinstance(value, Sequence) and not len(value)):
            continue
        fields[name] = _plain(value)
    return fields


def _plain(value: object) -> object:
    if isinstance(value, str):
        return one_line(value, 200)
    if isinstance(value, float):
        return rounded(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def data_block(
    chapters: Mapping[str, tuple[Mapping[str, Chart], Mapping[str, Look]]], dark: Mapping[str, str]
) -> Markup:
    """Charts by `CHAPTER/NAME`, looks by chapter and label, and what is the same for all.

    Args:
        chapters: Charts by name and the looks of their engines, by the id of the chapter.
        dark: The colour that stands for each on dark paper.
    """
    page = {
        "many": MANY,
        "crossed": CROSSED,
        "shapes": {marker: corners for marker, (_, corners) in MARKERS.items()},
        "dark": dark,
        "looks": {
            chapter: {one_line(label, 200): _look(look) for label, look in looks.items()}
            for chapter, (_, looks) in chapters.items()
        },
        "charts": {
            f"{chapter}/{name}": chart.data()
            for chapter, (charts, _) in chapters.items()
            for name, chart in charts.items()
        },
    }
    return Markup(json.dumps(page, separators=(",", ":"), allow_nan=False).translate(_ESCAPED))


def _look(look: Look) -> dict[str, object]:
    dash = [float(length) for length in DASHES.get(look.line, "").split()]
    return {"color": look.color, "marker": look.marker, "glyph": look.glyph, "dash": dash}
