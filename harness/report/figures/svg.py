"""Figures as SVG text: the same bytes each time, with real text."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass, field

import matplotlib as mpl
from matplotlib.figure import Figure

from harness.plain_text import one_line
from harness.report.figures.style import MATPLOTLIB

_FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_DIGITS = re.compile(r"(\.\d\d)\d+")
_PNG_DPI = 144


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, what it shows, an SVG document, its numbers as CSV."""

    name: str
    title: str
    svg: str
    data: str
    figure: Figure = field(repr=False, compare=False)

    def png(self) -> bytes:
        """The figure in pixels, at twice its size."""
        buffer = io.BytesIO()
        with mpl.rc_context(MATPLOTLIB), _quiet():
            self.figure.savefig(buffer, format="png", dpi=_PNG_DPI, metadata={"Software": None})
        return buffer.getvalue()


def render(figure: Figure) -> str:
    """A figure as SVG. Call within `matplotlib.rc_context(MATPLOTLIB)`."""
    buffer = io.StringIO()
    with _quiet():
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return _clean(buffer.getvalue())


def plain(text: str, limit: int = 60) -> str:
    """Text from outside as one line that XML can hold, cut to a length that a figure can hold."""
    return one_line(text, limit)


def _quiet() -> warnings.catch_warnings[None]:
    """Labels may hold characters that the font does not."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)


def _clean(svg: str) -> str:
    """Without fonts on every text, ids that nothing refers to, needless digits, rotations and indentation."""
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]*)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = svg.replace("<svg", f'<svg style="font-family: {_FONTS}"', 1)
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"
