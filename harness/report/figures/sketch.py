"""A figure while it is drawn: its canvas, what a reader sees on hover, and the numbers that it shows."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from harness.report.figures.style import MUTED, Look
from harness.report.figures.svg import Data, Plot, plain, render

SINGLE = (4.6, 2.9)

#: Margins around the axes, and the height of a line of the legend, in inches.
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.56, 0.1, 0.3, 0.46
_LEGEND_LINE, _LEGEND_GAP = 0.19, 0.08

#: Hover texts hold several lines, parted by this.
LINE = " · "

_SERIES = re.compile(r'<g id="series-([0-9a-f]{8})">')
_POINTS = re.compile(r'<g id="points-([0-9a-f]{8})-(\d+)-(\d+)">')


def series(label: str) -> str:
    """What the artists of a label are found by in every figure of a page: 8 hexadecimal digits."""
    return f"{zlib.crc32(label.encode(errors='replace')):08x}"


@dataclass
class Sketch:
    """A figure with its legend, and what is known of what is drawn on it.

    Margins are fixed, so that figures side by side have the same axes.

    Args:
        styles: The looks of all labels that may be drawn.
        heads: Columns of the figure's data.
        size: In inches at 72 points, without the legend.
        invalid: The legend explains the mark of an invalid point.
        left: Room for the labels of the value axis, in inches.
        has_legend: It is above the axes, in as many columns as fit the width.
        on_page: It is in the page too, which has one only for engines.
    """

    styles: Mapping[str, Look]
    heads: Sequence[str]
    size: tuple[float, float] = SINGLE
    invalid: bool = False
    left: float = _LEFT
    has_legend: bool = True
    on_page: bool = False
    rows: list[tuple[object, ...]] = field(default_factory=list)
    _tips: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        width, height = self.size
        handles = self._handles() if self.has_legend else []
        widest = max((len(str(handle.get_label())) for handle in handles), default=1)
        columns = max(1, min(len(handles), int(width * 15 / (widest + 7))))
        lines = -(-len(handles) // columns)
        self._above = lines * _LEGEND_LINE + _LEGEND_GAP if lines else 0.0
        height += self._above
        self.figure = Figure(figsize=(width, height))
        self.figure.subplots_adjust(
            left=self.left / width,
            right=1 - _RIGHT / width,
            bottom=_BOTTOM / height,
            top=1 - (self._above + _TOP) / height,
        )
        if handles:
            legend = self.figure.legend(
                handles=handles, loc="upper left", ncols=columns, bbox_to_anchor=(0.1 / width, 1),
                borderaxespad=0, borderpad=0.2,
            )  # fmt: skip
            legend.set_gid("legend")

    def axes(self) -> Axes:
        """The one pair of axes of a simple figure."""
        return self.figure.subplots()

    def belongs(self, artist: Artist, label: str) -> None:
        """A part of `label`'s series: it disappears with it."""
        artist.set_gid(f"series-{series(label)}")

    def points(self, artist: Artist, label: str, tips: Sequence[str]) -> None:
        """Markers of `label`, one text on hover for each, in the order in which they were plotted."""
        artist.set_gid(f"points-{series(label)}-{len(self._tips)}-{len(tips)}")
        self._tips += tips

    def _handles(self) -> list[Line2D]:
        handles = [
            Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, label=plain(label, 40))
            for label, look in self.styles.items()
        ]
        if self.invalid:
            handles.append(Line2D([], [], color=MUTED, marker="x", linestyle="none", label="invalid"))
        return handles

    def finish(self, name: str, title: str) -> Plot:
        """The figure, drawn. Call within `matplotlib.rc_context(MATPLOTLIB)`."""
        hidden = 0.0 if self.on_page else 72 * self._above
        svg = _POINTS.sub(r'<g data-series="\1" data-points="\2 \3">', render(self.figure))
        svg = _SERIES.sub(r'<g data-series="\1">', svg)
        return Plot(name, title, self._with_tips(svg), Data(self.heads, self.rows), self.figure, hidden)

    def _with_tips(self, svg: str) -> str:
        """Each marker with its text."""
        head, *parts = re.split(r' data-points="(\d+) (\d+)"', svg)
        done = [head]
        for start, count, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            tips = self._tips[int(start) : int(start) + int(count)]
            pieces = body.split("<use ", len(tips))
            done.append(pieces[0] + "".join(map(_use, tips, pieces[1:])))
        return "".join(done)


def _use(tip: str, rest: str) -> str:
    return f'<use data-tip="{escape(plain(tip, 200))}" {rest}'
