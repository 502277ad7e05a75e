"""Looks of engines: one colour and marker each, distinct in print and by colour-blind readers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from harness.engines.registry import ENGINES

#: The colours of paper and ink. The report swaps them for its own in dark mode, so nothing else may use them.
INK, MUTED, RULE, PAPER = "#1c2024", "#60666d", "#e3e6ea", "#fffffe"
DARK_PAPER = "#181b1f"

#: For engines that say no look of their own and for further variants, in turn. Like the engines', each colour
#: has at least 3:1 contrast on white and on near-black.
_PALETTE = (("#c2476a", "p"), ("#4f8fa8", "X"), ("#a67c00", ">"), ("#6a8f2f", "<"), ("#5b7fc7", "d"))
_MIXES = ((0.0, "-"), (-0.4, "--"), (0.35, ":"), (-0.65, "-."))

#: Lengths of strokes and gaps, by matplotlib's name of the line.
DASHES = {"-": "", "--": "6 3", ":": "2 3", "-.": "7 3 2 3"}

#: Each marker as a character, and its corners around its middle, -1 to 1; a circle has none.
MARKERS: dict[str, tuple[str, Sequence[tuple[float, float]]]] = {
    "o": ("●", ()),
    "s": ("■", ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9))),
    "^": ("▲", ((0, -1.1), (1.1, 0.9), (-1.1, 0.9))),
    "v": ("▼", ((0, 1.1), (1.1, -0.9), (-1.1, -0.9))),
    "<": ("◀", ((-1.1, 0), (0.9, -1.1), (0.9, 1.1))),
    ">": ("▶", ((1.1, 0), (-0.9, -1.1), (-0.9, 1.1))),
    "D": ("◆", ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0))),
    "d": ("♦", ((0, -1.35), (0.85, 0), (0, 1.35), (-0.85, 0))),
    "h": ("⬢", ((0, -1.15), (1, -0.58), (1, 0.58), (0, 1.15), (-1, 0.58), (-1, -0.58))),
    "p": ("⬟", ((0, -1.1), (1.05, -0.34), (0.65, 0.89), (-0.65, 0.89), (-1.05, -0.34))),
    "P": ("✚", ((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4),
          (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4), (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4))),
    "X": ("✖", ((0, -0.5), (0.6, -1.1), (1.1, -0.6), (0.5, 0), (1.1, 0.6), (0.6, 1.1),
          (0, 0.5), (-0.6, 1.1), (-1.1, 0.6), (-0.5, 0), (-1.1, -0.6), (-0.6, -1.1))),
}  # fmt: skip


@dataclass(frozen=True)
class Look:
    """The look of one label: `#rrggbb`, a matplotlib marker and line style."""

    color: str
    marker: str
    line: str

    @property
    def glyph(self) -> str:
        """The marker as a character."""
        return MARKERS[self.marker][0]


def looks(labels: Iterable[tuple[str, str]]) -> dict[str, Look]:
    """A look for each (engine, label) in order: an engine's first label has the engine's own, others have a
    colour and marker of the palette: shades of one colour look alike."""
    used: Counter[tuple[str, str]] = Counter()
    palette, engines = cycle(_PALETTE), set[str]()
    by_label: dict[str, Look] = {}
    for engine, label in labels:
        if label in by_label:
            continue
        color, marker = (None if engine in engines else _look_of_engine(engine)) or next(palette)
        mix, line = _MIXES[used[color, marker] % len(_MIXES)]
        by_label[label] = Look(_mixed(color, mix), marker, line)
        used[color, marker] += 1
        engines.add(engine)
    return by_label


def _look_of_engine(name: str) -> tuple[str, str] | None:
    """Colour and marker as the engine's adapter has them; None where it is unknown or has none."""
    engine = ENGINES.get(name)
    if engine is None or not re.fullmatch("#[0-9a-f]{6}", engine.color) or engine.marker not in MARKERS:
        return None
    return engine.color, engine.marker


def _mixed(color: str, share: float) -> str:
    """The colour with a share of white (or, negative, of black) in it."""
    target = 1.0 if share > 0 else 0.0
    mixed = (part + (target - part) * abs(share) for part in _parts(color))
    return "#" + "".join(f"{round(255 * part):02x}" for part in mixed)


def _parts(color: str) -> list[float]:
    """Red, green and blue of `#rrggbb`, 0 to 1. matplotlib has this too, and takes a while to import."""
    return [part / 255 for part in bytes.fromhex(color[1:])]


def on_dark(color: str) -> str:
    """The colour itself, or as much lighter as 3:1 contrast on the report's dark paper needs."""
    share = 0.0
    while _luminance(_mixed(color, share)) < 3 * (_luminance(DARK_PAPER) + 0.05) - 0.05:
        share += 0.05
    return _mixed(color, share)


def _luminance(color: str) -> float:
    """Relative luminance (WCAG 2.2) of `#rrggbb`, 0 to 1."""
    parts = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _parts(color))
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def css_color(color: str) -> str:
    """A colour as the page writes it: a variable, so that dark mode can change it."""
    return f"var(--c{color[1:]}, {color})"
