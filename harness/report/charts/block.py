"""The data of all charts of a page, as one block of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from markupsafe import Markup

from harness.plain_text import one_line
from harness.report.charts.chart import CROSSED, MANY, Chart
from harness.report.charts.marks import DASHES, SHAPES
from harness.report.figures.style import Look

#: What could end the block or start markup in it.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


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
        "shapes": SHAPES,
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
