"""The report: one self-contained HTML file, from runs and their figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from harness.report.best import BestLabels, best_labels
from harness.report.charts.block import data_block
from harness.report.charts.chart import View
from harness.report.charts.marks import css_color
from harness.report.charts.power import power_is_known
from harness.report.charts.run_charts import Charts
from harness.report.charts.static import drawing
from harness.report.figures.style import Look, looks, on_dark
from harness.report.findings import FINDINGS, findings
from harness.report.page import environment, library, script, text_of
from harness.report.profile_section import ProfileSection, profile_section
from harness.report.several import Change, overview
from harness.report.several import together as together_of
from harness.report.tables.accuracy import accuracy_table
from harness.report.tables.answers import answers_table
from harness.report.tables.capacity import capacity_tables
from harness.report.tables.costs import costs_table
from harness.report.tables.decision import decision_tables
from harness.report.tables.latency import first_table, headline_table, latency_table, shown_latencies
from harness.report.tables.ledger import SideBySide, side_by_side, sources
from harness.report.tables.lengths import lengths_table
from harness.report.tables.nodes import node_effect_table, nodes_table
from harness.report.tables.noise import noise_tables, planning_tables
from harness.report.tables.offline import batch_ratios_table, offline_repeats_table, offline_table
from harness.report.tables.prefix_hits import prefix_table
from harness.report.tables.ratios import ratios
from harness.report.tables.repeats import repeats_table
from harness.report.tables.server import server_table
from harness.report.tables.speculation import speculation_table
from harness.report.tables.table import Table
from harness.report.tables.throughput import rates_of, throughput_table
from harness.report.tables.tuning import tuning_tables
from harness.report.tables.waterfall import waterfall_table
from harness.report.text import provenance
from harness.report.text.badges import Badge, badges
from harness.report.text.cell_notices import slower_loads
from harness.report.text.heading import about, facts, machine, model, names, repeat_counts, title
from harness.report.text.notice import Notice
from harness.report.text.terms import terms
from harness.report.text.verdict import shown_load, verdict, why_none_is_best
from harness.runs.reader import OfflineRun, OnlineRun, Run
from harness.schema.fairness import Ledger
from harness.schema.metric import Metric
from harness.schema.metrics import LATENCIES, METRICS, rates
from harness.schema.run_info import RunInfo

#: Rows of the longest table that is open in a page, as those of a search, with a row for each load, may be.
LONGEST_OPEN = 20


@dataclass(frozen=True)
class Chapter:
    """What the template shows of one run, in a page that lies in `folder`."""

    run: Run
    charts: Charts
    styles: dict[str, Look]
    folder: Path

    @property
    def online(self) -> bool:
        return isinstance(self.run, OnlineRun)

    @property
    def meta(self) -> RunInfo:
        return self.run.meta

    @property
    def name(self) -> str:
        return self.run.path.name

    @property
    def title(self) -> str:
        return title(self.run)

    @property
    def names(self) -> list[str]:
        return names(self.styles)

    @property
    def model(self) -> str:
        return model(self.meta)

    @property
    def machine(self) -> str:
        return machine(self.meta)

    @property
    def facts(self) -> list[tuple[str, str]]:
        return facts(self.run)

    @property
    def badges(self) -> list[Badge]:
        return badges(self.run)

    @property
    def about(self) -> str:
        return about(self.run)

    @property
    def ledger(self) -> Ledger | None:
        return self.run.results.ledger if isinstance(self.run, OnlineRun) else None

    @property
    def ledger_sources(self) -> list[str]:
        """Where each engine's settings were read."""
        return sources(self.ledger) if self.ledger else []

    @property
    def settings_side_by_side(self) -> SideBySide:
        return side_by_side(self.meta.launches, self.ledger)

    @property
    def decision(self) -> list[Table]:
        """Limits, frontiers and prices."""
        return decision_tables(self.charts.decided) if self.charts.decided else []

    @property
    def answers(self) -> Table | None:
        checks = self.run.results.answers if isinstance(self.run, OnlineRun) else None
        return None if checks is None else answers_table(checks)

    @property
    def verdict(self) -> list[str]:
        return verdict(self.run)

    @property
    def best_labels(self) -> BestLabels:
        return (
            best_labels(self.run.pooled, self.run.results.comparisons)
            if isinstance(self.run, OnlineRun)
            else {}
        )

    @property
    def repeats(self) -> int:
        """The most repeats that any engine has."""
        found = self.run.repeats if isinstance(self.run, OnlineRun) else self.run.results.results
        return max((result.repeat or 0 for result in found), default=0) + 1

    @property
    def least_repeats(self) -> int:
        """The fewest that an engine has at a load."""
        return repeat_counts(self.run)[0] if isinstance(self.run, OnlineRun) else self.repeats

    @property
    def order(self) -> list[str]:
        """The engines in the order in which they were measured."""
        if not isinstance(self.run, OnlineRun) or not self.run.meta.interrupted:
            return provenance.order(self.meta)
        return provenance.order(self.meta, {(cell.label, cell.repeat) for cell in self.run.repeats})

    @property
    def closed(self) -> bool:
        """Whether the loads are closed loops."""
        return isinstance(self.run, OnlineRun) and bool(self.run.meta.settings.concurrency)

    @property
    def why_none_is_best(self) -> str:
        """Why no number of the first table is marked; empty where there is nothing to compare."""
        return why_none_is_best(self.run) if isinstance(self.run, OnlineRun) else ""

    @property
    def terms(self) -> list[str]:
        return terms(self.run)

    @property
    def first(self) -> Table:
        """The table of the first screen."""
        if isinstance(self.run, OfflineRun):
            return offline_table(self.run.results)
        if self.searched:
            return self.searched[0]
        if not self.run.pooled:
            return headline_table([], {})
        return first_table(self.run.pooled, shown_load(self.run), self.best_labels)

    @property
    def views(self) -> Sequence[View]:
        """What the charts by load can show."""
        return max((chart.views for chart in self.charts.by_load.values()), key=len, default=())

    @property
    def slower_loads(self) -> list[Notice]:
        """What is said of latencies that fall where the load grows."""
        return slower_loads(self.run) if isinstance(self.run, OnlineRun) else []

    @property
    def headline(self) -> Table:
        assert isinstance(self.run, OnlineRun)
        return headline_table(self.run.pooled, self.best_labels)

    @property
    def defined(self) -> list[Metric]:
        """The metrics that the definitions explain."""
        if isinstance(self.run, OfflineRun):
            return [METRICS[name] for name in rates("offline")]
        return [METRICS[name] for name in (*LATENCIES, *rates_of(self.run.pooled))]

    @property
    def latencies(self) -> dict[str, Table]:
        assert isinstance(self.run, OnlineRun)
        return {
            metric: latency_table(self.run.pooled, metric, self.best_labels)
            for metric in shown_latencies(self.run.pooled)
        }

    def ratios(self, metric: str) -> dict[str, Table]:
        """Every engine over each of them, by the one that is the baseline."""
        assert isinstance(self.run, OnlineRun)
        labels, found = list(self.styles), self.run.results.comparisons
        if len(labels) < 2:
            return {}
        return {label: ratios(found, metric, label, labels, self.run.pooled) for label in labels}

    @property
    def waterfall(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return waterfall_table(self.run.pooled)

    @property
    def prefixes(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return prefix_table(self.run.results.prefixes)

    @property
    def accuracy(self) -> Table | None:
        scores = self.run.results.accuracy if isinstance(self.run, OnlineRun) else None
        return None if scores is None else accuracy_table(scores)

    @property
    def lengths(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return lengths_table(self.run.groups)

    @property
    def costs(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return costs_table(self.run.pooled, self.run.results.machines)

    @property
    def server(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return server_table(self.run.groups, self.run.server)

    @property
    def nodes(self) -> Table | None:
        """Of a run on a cluster."""
        assert isinstance(self.run, OnlineRun)
        return nodes_table(self.run.groups, self.run.results.senders, self.run.meta.hosts)

    @property
    def node_effect(self) -> Table | None:
        """Of a run on several nodes with engines."""
        assert isinstance(self.run, OnlineRun)
        return node_effect_table(self.run.groups, self.run.results.nodes)

    @property
    def power_is_known(self) -> bool:
        assert isinstance(self.run, OnlineRun)
        return power_is_known(self.run.results.machines)

    @property
    def why_no_power(self) -> str:
        """Why there is no power over time; energy may be known nevertheless."""
        assert isinstance(self.run, OnlineRun)
        if all(summary.joules_per_output_token is None for summary in self.run.pooled):
            return "no energy counter of a GPU or a processor could be read."
        if self.run.meta.hosts:
            return "it is not recorded for engines on another node than their client."
        return "the cells are too short."

    @property
    def speculation(self) -> Table | None:
        assert isinstance(self.run, OnlineRun)
        return speculation_table(self.run.results.speculation, self.run.results.summaries)

    @property
    def noise(self) -> list[Table]:
        """Of a run that measures every engine as two."""
        assert isinstance(self.run, OnlineRun)
        return noise_tables(self.run.results.comparisons) if self.run.meta.settings.aa else []

    @property
    def planning(self) -> list[Table]:
        """Of a run with several engines and repeats; that of an A/A run is in its noise."""
        assert isinstance(self.run, OnlineRun)
        return [] if self.run.meta.settings.aa else planning_tables(self.run.results.comparisons)

    @property
    def searched(self) -> list[Table]:
        """Of a run of `bench search` or `bench tune`."""
        if not isinstance(self.run, OnlineRun):
            return []
        if self.run.results.tune is not None:
            return tuning_tables(self.run.results.tune)
        found = self.run.results.search
        return [] if found is None else capacity_tables(found)

    @property
    def throughput(self) -> Table:
        assert isinstance(self.run, OnlineRun)
        return throughput_table(self.run.pooled)

    @cached_property
    def profiles(self) -> ProfileSection | None:
        """Of a run that was profiled."""
        return profile_section(self.run.path)

    def link(self, path: str) -> str | None:
        """The address from the page to a file of the run, `path` relative to its folder; None where it is not
        there."""
        target = self.run.path / path
        return quote(Path(os.path.relpath(target, self.folder)).as_posix()) if target.exists() else None

    @property
    def batch_ratios(self) -> Table | None:
        """Of an offline run of several engines: which pairs of them differ."""
        if isinstance(self.run, OfflineRun) and self.run.results.comparisons:
            return batch_ratios_table(self.run.results)
        return None

    @property
    def each_repeat(self) -> Table:
        if isinstance(self.run, OfflineRun):
            return offline_repeats_table(self.run.results.results)
        return repeats_table(self.run.repeats)


def render(runs: Sequence[tuple[Run, Charts]], folder: Path, changes: Sequence[Change] = ()) -> str:
    """The page, for a file in `folder`. The same runs give the same text."""
    chapters = [Chapter(run, charts, _styles(run), folder) for run, charts in runs]
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
    code, digest = script("charts.js", "report.js")
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=_title(chapters),
            chapters=chapters,
            findings=FINDINGS.dump_json([found for run, _ in runs for found in findings(run)]).decode(),
            together=together,
            overview=overview([run for run, _ in runs]),
            changes=changes,
            raw=all(isinstance(run, OnlineRun) for run, _ in runs),
            metrics=METRICS,
            longest_open=LONGEST_OPEN,
            provenance=provenance,
            drawn=drawing,
            color=css_color,
            dark=dark,
            data=data_block(named, dark),
            css=text_of("report.css"),
            library_css=library("uPlot.min.css"),
            script=code,
            script_hash=digest,
        )
    )


def _title(chapters: Sequence[Chapter]) -> str:
    different = "; ".join(dict.fromkeys(chapter.title for chapter in chapters))
    return f"{different} ({len(chapters)} runs)" if len(chapters) > 1 else different


def _styles(run: Run) -> dict[str, Look]:
    found = run.pooled if isinstance(run, OnlineRun) else run.results.results
    return looks((result.engine, result.label) for result in found)
