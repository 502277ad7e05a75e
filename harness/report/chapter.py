"""A chapter of the page: what the templates show of one run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.report.charts.chart import View
from harness.report.charts.looks import Look, looks
from harness.report.charts.over_time import power_is_known
from harness.report.charts.run_charts import Charts
from harness.report.notices import notices
from harness.report.profile_section import profile_section
from harness.report.sections import sections
from harness.report.tables.comparisons import ratios
from harness.report.tables.rates import rates_of
from harness.report.tables.table import Table
from harness.report.wording import Notice
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

    @property
    def slower_loads(self) -> list[Notice]:
        """Notices of latencies that fall where the load grows."""
        return [notice for notice in notices(self.run) if notice.kind == "slower_when_lighter"]

    def ratios(self, metric: str) -> dict[str, Table]:
        """Tables of every engine over each of them, by the one that is the baseline."""
        labels, run = list(self.styles), self.run
        if len(labels) < 2:
            return {}
        return {each: ratios(run.results.comparisons, metric, each, labels, run.pooled) for each in labels}

    @property
    def why_no_power(self) -> str:
        """Reason for which there is no power over time, though energy may be known; empty where there is."""
        if power_is_known(self.run.results.machines):
            return ""
        if all(summary.joules_per_output_token is None for summary in self.run.pooled):
            return "no energy counter of a GPU or a processor could be read."
        if self.run.meta.hosts:
            return "it is not recorded for engines on another node than their client."
        return "the cells are too short."

    @cached_property
    def profiles(self) -> dict[str, Any] | None:
        """Section on its profiles; None of a run that was not profiled."""
        return profile_section(self.run.path)

    def link(self, path: str) -> str | None:
        """Return the address from the page to a file of the run, `path` relative to its folder; None where it
        is not there."""
        target = self.run.path / path
        return quote(Path(os.path.relpath(target, self.folder)).as_posix()) if target.exists() else None
