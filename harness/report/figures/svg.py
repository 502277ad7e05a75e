"""Figures as SVG text: the same bytes each time, with real text, as files of their own or within a page."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from harness.plain_text import one_line
from harness.report.figures.style import INK, MATPLOTLIB, MUTED, PAPER, RULE

_FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--card"}
_DIGITS = re.compile(r"(\.\d\d)\d+")
_LEGEND = '<g class="legend">'
_PNG_DPI = 144


@dataclass(frozen=True)
class Data:
    """The numbers of a figure, in long form."""

    heads: Sequence[str]
    rows: Sequence[tuple[object, ...]]

    def csv(self) -> str:
        """With seven significant digits; what is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([_field(value) for value in row] for row in self.rows)
        return text.getvalue()


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, what it shows, a standalone SVG document, its numbers.

    `above` is the height in points of a legend that a page has no need of.
    """

    name: str
    title: str
    svg: str
    data: Data
    figure: Figure = field(repr=False, compare=False)
    above: float = 0.0

    def inline(self, where: str) -> Markup:
        """The figure as an element of a page, in the page's colours and font.

        Its view begins below a legend that the page has itself.

        Args:
            where: Tells apart the ids of figures drawn more than once; letters, digits and hyphens.
        """
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', self._view, body, count=1)
        body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
        body = re.sub(r' width="[^"]*pt" height="[^"]*pt"', "", body, count=1)
        body = body.replace(f'style="font-family: {_FONTS}"', "", 1)
        body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{where}-", body)
        body = re.sub(r": (#[0-9a-f]{6})\b", lambda match: f": {css_color(match[1])}", body)
        return Markup(body.replace("<svg", f'<svg role="img" aria-label="{escape(self.title)}"', 1))

    def _view(self, box: re.Match[str]) -> str:
        width, height = float(box[1]), float(box[2])
        view = f"0 {self.above:.1f} {width:g} {height - self.above:.1f}"
        cut = ' class="cut"' if self.above else ""
        return f'viewBox="{view}" data-whole="0 0 {width:g} {height:g}"{cut}'

    def png(self) -> bytes:
        """The figure in pixels, at twice its size."""
        buffer = io.BytesIO()
        with mpl.rc_context(MATPLOTLIB), _quiet():
            self.figure.savefig(buffer, format="png", dpi=_PNG_DPI, metadata={"Software": None})
        return buffer.getvalue()


def css_color(color: str) -> str:
    """A figure's colour as the page writes it: a variable, so that dark mode can change it."""
    return f"var({_VARIABLES.get(color, f'--c{color[1:]}')}, {color})"


def render(figure: Figure) -> str:
    """A figure as SVG. Call within `matplotlib.rc_context(MATPLOTLIB)`."""
    buffer = io.StringIO()
    with _quiet():
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return _clean(buffer.getvalue())


def plain(text: str, limit: int = 60) -> str:
    """Text from outside as one line that XML can hold, cut to a length that a figure can hold."""
    return one_line(text, limit)


def _field(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return f"{value:.7g}" if isinstance(value, float) else value


def _quiet() -> warnings.catch_warnings[None]:
    """Labels may hold characters that the font does not."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _clean(svg: str) -> str:
    """Without fonts on every text, ids that nothing refers to, needless digits, rotations and indentation."""
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)
    svg = svg.replace('<g id="legend">', _LEGEND)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]*)', svg))
    kept = re.compile("series-|points-")
    svg = re.sub(
        r' id="([^"]*)"', lambda match: match[0] if match[1] in used or kept.match(match[1]) else "", svg
    )
    svg = svg.replace("<svg", f'<svg style="font-family: {_FONTS}"', 1)
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"
