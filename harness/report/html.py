"""The report: one self-contained HTML file, from runs and their figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.report.answer import answer, terms
from harness.report.chapter import Chapter
from harness.report.charts.chart import data_block
from harness.report.charts.looks import on_dark
from harness.report.charts.run_charts import Charts
from harness.report.findings import FINDINGS, findings
from harness.report.notices import badges
from harness.report.page import render_page
from harness.report.several import Change, overview
from harness.report.several import together as together_of
from harness.report.tables.fairness import side_by_side, sources
from harness.report.text import heading, provenance
from harness.runs.reader import Run
from harness.schema.metrics import METRICS

#: Rows of the longest table that is open in a page, as those of a search, with a row for each load, may be.
LONGEST_OPEN = 20


def render(runs: Sequence[tuple[Run, Charts]], folder: Path, changes: Sequence[Change] = ()) -> str:
    """The page, for a file in `folder`. The same runs give the same text."""
    chapters = [Chapter(run, charts, folder) for run, charts in runs]
    together = together_of([run for run, _ in runs])
    named = {
        f"run-{number}": (chapter.charts.every, chapter.styles) for number, chapter in enumerate(chapters, 1)
    }
    named["several"] = (together.charts.every, together.styles)
    colors = {
        *(look.color for _, styles in named.values() for look in styles.values()),
        *(shade for charts, _ in named.values() for chart in charts.values() for shade in chart.key.values()),
    }
    dark = {color: on_dark(color) for color in sorted(colors)}
    return render_page(
        "report.html.j2",
        ("charts.js", "report.js"),
        title=_title(chapters),
        chapters=chapters,
        findings=FINDINGS.dump_json([finding for run, _ in runs for finding in findings(run)]).decode(),
        together=together,
        overview=overview([run for run, _ in runs]),
        changes=changes,
        metrics=METRICS,
        longest_open=LONGEST_OPEN,
        heading=heading,
        provenance=provenance,
        answer=answer,
        terms=terms,
        badges=badges,
        side_by_side=side_by_side,
        sources=sources,
        dark=dark,
        data=data_block(named, dark),
    )


def _title(chapters: Sequence[Chapter]) -> str:
    different = "; ".join(dict.fromkeys(heading.title(chapter.run) for chapter in chapters))
    return f"{different} ({len(chapters)} runs)" if len(chapters) > 1 else different
