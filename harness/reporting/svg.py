"""Figures as SVG text: the same bytes each time, with real text, as files of their own or within a page."""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from html import escape

from markupsafe import Markup
from matplotlib.figure import Figure

from harness.reporting.style import INK, MUTED, PAPER, RULE

_FONTS = "system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--card"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+")


_DIGITS = re.compile(r"(\.\d\d)\d+")


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, what it shows, and a standalone SVG document."""

    name: str
    title: str
    svg: str

    def inline(self, where: str) -> Markup:
        """The figure as an element of a page, in the page's colours and font.

        Args:
            where: Tells apart the ids of figures drawn more than once; letters, digits and hyphens.
        """
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
        body = re.sub(r' width="[^"]*pt" height="[^"]*pt"', "", body, count=1)
        body = body.replace(f'style="font-family: {_FONTS}"', "", 1)
        body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{where}-", body)
        body = re.sub(r": (#[0-9a-f]{6})\b", lambda match: f": {css_color(match[1])}", body)
        return Markup(body.replace("<svg", f'<svg role="img" aria-label="{escape(self.title)}"', 1))


def css_color(color: str) -> str:
    """A figure's colour as the page writes it: a variable, so that dark mode can change it."""
    return f"var({_VARIABLES[color]})" if color in _VARIABLES else f"var(--c{color[1:]}, {color})"


def draw(figure: Figure, name: str, title: str) -> Plot:
    """Render a figure. Call within `matplotlib.rc_context(MATPLOTLIB)`."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA)
    return Plot(name, title, _clean(buffer.getvalue()))


def plain(text: str, limit: int = 60) -> str:
    """Text from outside as one line that XML can hold, cut to a length that a figure can hold."""
    line = _CONTROL.sub(" ", text).strip()
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _clean(svg: str) -> str:
    """Without fonts on every text, ids that nothing refers to, needless digits, rotations and indentation."""
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    svg = re.sub(r"<[^>]*>", lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]*)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = svg.replace("<svg", f'<svg style="font-family: {_FONTS}"', 1)
    return "\n".join(line.strip() for line in svg.splitlines()) + "\n"
