"""The report: one self-contained HTML file, from runs and their figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.report.answer import answer, terms
from harness.report.charts.chart import View, data_block
from harness.report.charts.looks import Look, looks, on_dark
from harness.report.charts.over_time import power_is_known
from harness.report.charts.run_charts import Charts
from harness.report.findings import FINDINGS, findings
from harness.report.notices import badges, notices
from harness.report.page import render_page
from harness.report.sections import sections
from harness.report.several import Change, overview
from harness.report.several import together as together_of
from harness.report.tables.comparisons import ratios
from harness.report.tables.fairness import side_by_side, sources
from harness.report.tables.profiles import profile_section
from harness.report.tables.rates import rates_of
from harness.report.tables.table import Table
from harness.report.text import heading, provenance
from harness.runs.reader import Run
from harness.schema.metric import Metric
from harness.schema.metrics import LATENCIES, METRICS, rates


@dataclass(frozen=True)
class Chapter:
    """A run with its charts, in a page that lies in `folder`."""

    run: Run
    charts: Charts
    folder: Path

    @cached_property
    def styles(self) -> dict[str, Look]:
        """Look of each engine, by label."""
        return looks(self.run.engines)

    @cached_property
    def tables(self) -> dict[str, list[Table]]:
        """Tables by section."""
        return sections(self.run, self.charts.decided)

    @property
    def defined(self) -> list[Metric]:
        """Metrics that the definitions explain."""
        names = rates("offline") if self.run.is_batch else (*LATENCIES, *rates_of(self.run.pooled))
        return [METRICS[name] for name in names]

    @property
    def views(self) -> Sequence[View]:
        """Choices of what the charts by load show."""
        return max((chart.views for chart in self.charts.by_load.values()), key=len, default=())

    def ratios(self, metric: str) -> dict[str, Table]:
        """Tables of every engine over each of them, by the one that is the baseline."""
        labels, run = list(self.styles), self.run
        if len(labels) < 2:
            return {}
        return {each: ratios(run.results.comparisons, metric, each, labels, run.pooled) for each in labels}

    @cached_property
    def profiles(self) -> dict[str, Any] | None:
        """Section on its profiles; None of a run that was not profiled."""
        return profile_section(self.run.path)

    def link(self, path: str) -> str | None:
        """Return the address from the page to a file of the run, `path` relative to its folder; None where it
        is not there."""
        target = self.run.path / path
        return quote(Path(os.path.relpath(target, self.folder)).as_posix()) if target.exists() else None


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
        notices=notices,
        power_is_known=power_is_known,
        side_by_side=side_by_side,
        sources=sources,
        dark=dark,
        data=data_block(named, dark),
    )


def _title(chapters: Sequence[Chapter]) -> str:
    different = "; ".join(dict.fromkeys(heading.title(chapter.run) for chapter in chapters))
    return f"{different} ({len(chapters)} runs)" if len(chapters) > 1 else different
