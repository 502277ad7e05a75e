"""A chapter of the page: what the templates show of one run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from harness.metrics.rankings import BestLabels, Ranking, best_labels, shown_load
from harness.report.answer import answer, rankings_of, terms
from harness.report.charts.chart import View
from harness.report.charts.looks import Look, looks
from harness.report.charts.over_time import power_is_known
from harness.report.charts.run_charts import Charts
from harness.report.notices import Badge, badges, notices
from harness.report.profile_section import ProfileSection, profile_section
from harness.report.tables.capacity import capacity_tables
from harness.report.tables.cells import (
    lengths_table,
    node_effect_table,
    nodes_table,
    prefix_table,
    server_table,
    speculation_table,
    waterfall_table,
)
from harness.report.tables.comparisons import noise_tables, planning_tables, ratios
from harness.report.tables.decision import decision_tables
from harness.report.tables.fairness import SideBySide, accuracy_table, answers_table, side_by_side, sources
from harness.report.tables.latency import first_table, headline_table, latency_table, shown_latencies
from harness.report.tables.offline import batch_ratios_table, offline_repeats_table, offline_table
from harness.report.tables.ranking import ranking_table
from harness.report.tables.rates import costs_table, rates_of, repeats_table, throughput_table
from harness.report.tables.table import Table
from harness.report.tables.tuning import tuning_tables
from harness.report.text import provenance
from harness.report.text.heading import about, facts, machine, model, names, repeat_counts, title, versions
from harness.report.wording import Notice, Sentence
from harness.runs.reader import Run
from harness.schema.fairness import Ledger
from harness.schema.load import Load, from_light_to_heavy
from harness.schema.metric import Metric
from harness.schema.metrics import LATENCIES, METRICS, rates
from harness.schema.run_info import RunInfo


@dataclass(frozen=True)
class Chapter(ABC):
    """What is shown of every run, in a page that lies in `folder`."""

    run: Run
    charts: Charts
    folder: Path

    @property
    def meta(self) -> RunInfo:
        return self.run.meta

    @property
    def name(self) -> str:
        return self.run.path.name

    @property
    def title(self) -> str:
        return title(self.run)

    @cached_property
    def styles(self) -> dict[str, Look]:
        """The look of each engine, by label."""
        return looks(self.run.engines)

    @property
    def names(self) -> list[str]:
        return names(self.styles)

    @property
    def versions(self) -> dict[str, str]:
        """Of each engine whose version is known, by label."""
        return versions(self.meta)

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
    def verdict(self) -> list[Sentence]:
        return answer(self.run)

    @cached_property
    def rankings(self) -> list[Ranking]:
        return rankings_of(self.run)

    @property
    def ranking(self) -> Table | None:
        """Table of the rankings at the shown load; None where it has one engine, and of a search."""
        return self._ranking([shown_load(self.run.pooled)]) if self.run.pooled else None

    @property
    def ranking_of_all(self) -> Table | None:
        """Table of the rankings at every load; None of less than two loads."""
        loads = from_light_to_heavy(summary.load for summary in self.run.pooled)
        table = self._ranking(loads) if len(loads) > 1 else None
        return table and replace(table, name="rankings", title="Ranking at every load")

    def _ranking(self, loads: Sequence[Load]) -> Table | None:
        rankings = [ranking for ranking in self.rankings if ranking.load in loads]
        several = any(len(ranking.rows) > 1 for ranking in rankings)
        return ranking_table(rankings, loads) if several else None

    @property
    def terms(self) -> list[str]:
        return terms(self.run)

    @property
    @abstractmethod
    def first(self) -> Table:
        """The table of the first screen."""

    @property
    @abstractmethod
    def defined(self) -> list[Metric]:
        """The metrics that the definitions explain."""

    @property
    def order(self) -> list[str]:
        """The engines in the order in which they were measured."""
        return provenance.order(self.meta)

    @property
    def ledger(self) -> Ledger | None:
        return None

    @property
    def ledger_sources(self) -> list[str]:
        """Where each engine's settings were read."""
        return sources(self.ledger) if self.ledger else []

    @property
    def settings_side_by_side(self) -> SideBySide:
        return side_by_side(self.meta.launches, self.ledger)

    @cached_property
    def profiles(self) -> ProfileSection | None:
        """Of a run that was profiled."""
        return profile_section(self.run.path)

    def link(self, path: str) -> str | None:
        """The address from the page to a file of the run, `path` relative to its folder; None where it is not
        there."""
        target = self.run.path / path
        return quote(Path(os.path.relpath(target, self.folder)).as_posix()) if target.exists() else None


@dataclass(frozen=True)
class OnlineChapter(Chapter):
    """What is also shown of a run of `bench online`, `bench search` or `bench tune`."""

    run: Run

    @property
    def first(self) -> Table:
        if self.searched:
            return self.searched[0]
        if not self.run.pooled:
            return headline_table([], {})
        return first_table(self.run.pooled, shown_load(self.run.pooled), self.best_labels)

    @property
    def defined(self) -> list[Metric]:
        return [METRICS[name] for name in (*LATENCIES, *rates_of(self.run.pooled))]

    @property
    def order(self) -> list[str]:
        measured = {(cell.label, cell.repeat) for cell in self.run.repeats}
        return provenance.order(self.meta, measured if self.run.meta.interrupted else None)

    @property
    def ledger(self) -> Ledger | None:
        return self.run.results.ledger

    @property
    def decision(self) -> list[Table]:
        """Limits, frontiers and prices."""
        return decision_tables(self.charts.decided) if self.charts.decided else []

    @property
    def answers(self) -> Table | None:
        checks = self.run.results.answers
        return None if checks is None else answers_table(checks)

    @property
    def accuracy(self) -> Table | None:
        scores = self.run.results.accuracy
        return None if scores is None else accuracy_table(scores)

    @property
    def best_labels(self) -> BestLabels:
        return best_labels(self.run.pooled, self.run.results.comparisons)

    @property
    def repeats(self) -> int:
        """The most repeats that any engine has."""
        return max((cell.repeat or 0 for cell in self.run.repeats), default=0) + 1

    @property
    def least_repeats(self) -> int:
        """The fewest that an engine has at a load."""
        return repeat_counts(self.run)[0]

    @property
    def closed(self) -> bool:
        """Whether the loads are closed loops."""
        return bool(self.run.meta.settings.concurrency)

    @property
    def views(self) -> Sequence[View]:
        """What the charts by load can show."""
        return max((chart.views for chart in self.charts.by_load.values()), key=len, default=())

    @property
    def slower_loads(self) -> list[Notice]:
        """Notices of latencies that fall where the load grows."""
        return [notice for notice in notices(self.run) if notice.kind == "slower_when_lighter"]

    @property
    def headline(self) -> Table:
        return headline_table(self.run.pooled, self.best_labels)

    @property
    def latencies(self) -> dict[str, Table]:
        return {
            metric: latency_table(self.run.pooled, metric, self.best_labels)
            for metric in shown_latencies(self.run.pooled)
        }

    def ratios(self, metric: str) -> dict[str, Table]:
        """Every engine over each of them, by the one that is the baseline."""
        labels, found = list(self.styles), self.run.results.comparisons
        if len(labels) < 2:
            return {}
        return {label: ratios(found, metric, label, labels, self.run.pooled) for label in labels}

    @property
    def waterfall(self) -> Table | None:
        return waterfall_table(self.run.pooled)

    @property
    def details(self) -> list[Table]:
        """What stands below the throughput, of what the run knows."""
        run, results = self.run, self.run.results
        found = (
            lengths_table(run.groups),
            costs_table(run.pooled, results.machines),
            nodes_table(run.groups, results.senders, run.meta.hosts),
            node_effect_table(run.groups, results.nodes),
            speculation_table(results.speculation, results.summaries),
            prefix_table(results.prefixes),
        )
        return [table for table in found if table is not None]

    @property
    def server(self) -> Table | None:
        return server_table(self.run.groups, self.run.server)

    @property
    def why_no_power(self) -> str:
        """Why there is no power over time, though energy may be known; empty where there is."""
        if power_is_known(self.run.results.machines):
            return ""
        if all(summary.joules_per_output_token is None for summary in self.run.pooled):
            return "no energy counter of a GPU or a processor could be read."
        if self.run.meta.hosts:
            return "it is not recorded for engines on another node than their client."
        return "the cells are too short."

    @property
    def noise(self) -> list[Table]:
        """Of a run that measures every engine as two."""
        pairs, launches = self.run.results.comparisons, self.meta.launches
        return noise_tables(pairs, launches) if self.meta.settings.aa else []

    @property
    def planning(self) -> list[Table]:
        """Of a run with several engines and repeats; that of an A/A run is in its noise."""
        return [] if self.run.meta.settings.aa else planning_tables(self.run.results.comparisons)

    @property
    def searched(self) -> list[Table]:
        """Of a run of `bench search` or `bench tune`."""
        if self.run.results.tune is not None:
            return tuning_tables(self.run.results.tune)
        found = self.run.results.search
        return [] if found is None else capacity_tables(found)

    @property
    def throughput(self) -> Table:
        return throughput_table(self.run.pooled)

    @property
    def each_repeat(self) -> Table:
        return repeats_table(self.run.repeats)


@dataclass(frozen=True)
class OfflineChapter(Chapter):
    """What is also shown of a run of `bench offline`."""

    run: Run

    @property
    def first(self) -> Table:
        return offline_table(self.run.results)

    @property
    def defined(self) -> list[Metric]:
        return [METRICS[name] for name in rates("offline")]

    @property
    def repeats(self) -> int:
        """The most repeats that any engine has."""
        return max((result.repeat for result in self.run.results.results), default=0) + 1

    @property
    def batch_ratios(self) -> Table | None:
        """Of several engines: which pairs of them differ."""
        return batch_ratios_table(self.run.results) if self.run.results.comparisons else None

    @property
    def each_repeat(self) -> Table:
        return offline_repeats_table(self.run.results.results)


def make_chapter(run: Run, charts: Charts, folder: Path) -> Chapter:
    """The chapter of a run, in a page that lies in `folder`."""
    if not run.is_batch:
        return OnlineChapter(run, charts, folder)
    return OfflineChapter(run, charts, folder)
