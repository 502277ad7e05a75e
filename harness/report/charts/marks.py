"""Series as SVG, and what markers and lines look like wherever a chart is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.report.charts.chart import Series
from harness.report.charts.scale import Scale
from harness.report.figures.style import INK, MUTED, PAPER, RULE, Look

_SIZE = 4.0
#: How far the name of a limit keeps from a mark, and how many marks a series has at most that it keeps from.
_NEAR, _FEW = 7.0, 100
#: Lengths of strokes and gaps, by matplotlib's name of the line.
DASHES = {"-": "", "--": "6 3", ":": "2 3", "-.": "7 3 2 3"}

#: Corners of markers around their middle, -1 to 1; a circle has none.
SHAPES: dict[str, Sequence[tuple[float, float]]] = {
    "o": (),
    "s": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "^": ((0, -1.1), (1.1, 0.9), (-1.1, 0.9)),
    "v": ((0, 1.1), (1.1, -0.9), (-1.1, -0.9)),
    "<": ((-1.1, 0), (0.9, -1.1), (0.9, 1.1)),
    ">": ((1.1, 0), (-0.9, -1.1), (-0.9, 1.1)),
    "D": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    "d": ((0, -1.35), (0.85, 0), (0, 1.35), (-0.85, 0)),
    "h": ((0, -1.15), (1, -0.58), (1, 0.58), (0, 1.15), (-1, 0.58), (-1, -0.58)),
    "p": ((0, -1.1), (1.05, -0.34), (0.65, 0.89), (-0.65, 0.89), (-1.05, -0.34)),
    "P": ((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
          (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),
    "X": ((0, -0.5), (0.6, -1.1), (1.1, -0.6), (0.5, 0), (1.1, 0.6), (0.6, 1.1),
          (0, 0.5), (-0.6, 1.1), (-1.1, 0.6), (-0.5, 0), (-1.1, -0.6), (-0.6, -1.1)),
}  # fmt: skip


def css_color(color: str) -> str:
    """A colour as the page writes it: a variable, so that dark mode can change it."""
    named = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--card"}
    return f"var({named.get(color, f'--c{color[1:]}')}, {color})"


def series_svg(series: Series, look: Look, color: str, x: Scale, y: Scale, shift: float) -> str:
    """Lines, markers, bands, bars. `shift` is how far they stand from their places, along x."""
    parts = []
    across = [x(value) + shift for value in series.x]
    fade = f' opacity="{series.opacity:g}"' if series.opacity < 1 else ""
    if series.kind == "spans":
        thick = abs(y(series.width) - y(0))
        for low, high, value in zip(series.low, series.high, series.y, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                start, length = x(low), max(x(high) - x(low), 0.5)
                parts.append(
                    f'<rect x="{start:.1f}" y="{y(value) - thick / 2:.1f}"'
                    f' width="{length:.1f}" height="{max(thick, 1):.1f}" fill="{color}"{fade}/>'
                )
        return "".join(parts)
    if series.kind == "band":
        there = [(a, y(low), y(high)) for a, low, high in zip(across, series.low, series.high, strict=True)]
        if len(there) == 1:
            (at, low, high) = there[0]
            return (
                f'<path d="M{at:.1f} {low:.1f}V{high:.1f}" stroke="{color}" stroke-width="9" opacity="0.3"/>'
            )
        points = [(a, low) for a, low, _ in there] + [(a, high) for a, _, high in reversed(there)]
        return f'<path d="{_path(points)}Z" fill="{color}" opacity="0.16"/>'
    down = [y(value) for value in series.y]
    points = list(zip(across, down, strict=True))
    if series.kind == "area":
        steps = [corner for (a, b), (c, _) in pairwise(points) for corner in ((a, b), (c, b))]
        whole = [(points[0][0], y(0)), *steps, points[-1], (points[-1][0], y(0))]
        return f'<path d="{_path(whole)}Z" fill="{color}" opacity="0.35"/>'
    if series.kind == "line" and len(points) > 1:
        dash = f' stroke-dasharray="{DASHES[look.line]}"' if DASHES.get(look.line) else ""
        parts.append(f'<path d="{_path(points)}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>')
    if series.low:
        for at, low, high in zip(across, series.low, series.high, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                parts.append(f'<path d="M{at:.1f} {y(low):.1f}V{y(high):.1f}" stroke="{color}"/>')
    if series.markers:
        size = _SIZE if len(points) < 100 else 1.8
        fill = css_color(PAPER) if series.hollow else color
        style = f'fill="{fill}" stroke="{color}"{fade}'
        marks = "".join(_marker(look.marker, a, b, size) for a, b in points)
        parts.append(f'<path d="{marks}" {style}/>')
    for i in series.crossed:
        a, b = points[i]
        cross = f"M{a - 5:.1f} {b - 5:.1f}l10 10m0 -10l-10 10"
        parts.append(f'<path d="{cross}" stroke="{css_color(INK)}" stroke-width="1.6"/>')
    return "".join(parts)


def few_marks(shown: Sequence[Series]) -> Iterator[tuple[str, float, float]]:
    """The engine and the place of each mark that the name of a limit must not cover, in units of the axes."""
    for series in shown:
        if series.kind != "band" and len(series.x) <= _FEW:
            for x, y in zip(series.x, series.y, strict=True):
                yield series.label, x, y


def free_start(y: float, width: float, x: Scale, marks: Sequence[tuple[float, float]]) -> float:
    """Where a text of that width above `y` begins so that it covers no mark, as far to the right as there is
    room. In pixels or points; y grows downwards."""
    start = x.end - width
    while start > x.start:
        if not any(
            start - _NEAR < a < start + width + _NEAR and abs(b - y + 8) < 8 + _NEAR for a, b in marks
        ):
            return start
        start -= width / 4
    return x.end - width


def _marker(shape: str, x: float, y: float, size: float) -> str:
    corners = SHAPES.get(shape, ())
    if not corners:
        half = f"a{size:g} {size:g} 0 1 0"
        return f"M{x - size:.1f} {y:.1f}{half} {2 * size:g} 0{half} {-2 * size:g} 0Z"
    return f"{_path([(x + size * a, y + size * b) for a, b in corners])}Z"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
