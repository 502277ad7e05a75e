"""Tables of a run, by the section of the page that shows them; `summary.md` has them in the same order."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.rankings import best_labels, shown_load
from harness.report.answer import rankings_of
from harness.report.decision import Decision
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
from harness.report.tables.comparisons import noise_tables, planning_tables
from harness.report.tables.decision import decision_tables
from harness.report.tables.fairness import accuracy_table, answers_table, ledger_table
from harness.report.tables.latency import first_table, headline_table, latency_table, shown_latencies
from harness.report.tables.ranking import ranking_table
from harness.report.tables.rates import (
    batch_ratios_table,
    costs_table,
    offline_repeats_table,
    offline_table,
    repeats_table,
    throughput_table,
)
from harness.report.tables.table import Table
from harness.report.tables.tuning import tuning_tables
from harness.runs.reader import Run
from harness.schema.load import Load

#: Sections whose tables are no part of `summary.md`: others there have their numbers, or they are long.
PAGE_ONLY = ("ranking", "first", "each_repeat")


def sections(run: Run, decided: Decision | None) -> dict[str, list[Table]]:
    """Build every table of a run with results; a section that has nothing to show has none.

    Args:
        decided: limits and prices that the run is held to.
    """
    rankings = {"ranking": [ranking_of(run, shown_load(run.pooled))]} if run.pooled else {"ranking": []}
    rankings["rankings"] = [ranking_of(run)]
    tables = rankings | (_of_batch(run) if run.is_batch else _of_loads(run, decided))
    return {name: [table for table in each if table is not None] for name, each in tables.items()}


def _of_batch(run: Run) -> dict[str, Sequence[Table | None]]:
    results, throughput = run.results, offline_table(run.results)
    return {
        "first": [throughput],
        "throughput": [throughput],
        "batch_ratios": [batch_ratios_table(results) if results.comparisons else None],
        "each_repeat": [offline_repeats_table(results.results)],
    }


def _of_loads(run: Run, decided: Decision | None) -> dict[str, Sequence[Table | None]]:
    results, pooled, pairs = run.results, run.pooled, run.results.comparisons
    best, is_aa = best_labels(pooled, pairs), run.meta.settings.aa
    searched = capacity_tables(results.search) if results.search else []
    searched = tuning_tables(results.tune) if results.tune else searched
    headline = headline_table(pooled, best)
    first = first_table(pooled, shown_load(pooled), best) if pooled else headline
    return {
        "first": [*searched, first][:1],
        "searched": searched,
        "headline": [headline],
        "latencies": [latency_table(pooled, metric, best) for metric in shown_latencies(pooled)],
        "throughput": [throughput_table(pooled)],
        "details": [
            lengths_table(run.groups),
            costs_table(pooled, results.machines),
            nodes_table(run.groups, results.senders, run.meta.hosts),
            node_effect_table(run.groups, results.nodes),
            speculation_table(results.speculation, results.summaries),
            prefix_table(results.prefixes),
        ],
        "decision": decision_tables(decided) if decided else [],
        "waterfall": [waterfall_table(pooled)],
        "server": [server_table(run.groups, run.server)],
        "noise": noise_tables(pairs, run.meta.launches) if is_aa else [],
        "planning": [] if is_aa else planning_tables(pairs),
        "each_repeat": [repeats_table(run.repeats)],
        "ledger": [ledger_table(results.ledger) if results.ledger else None],
        "accuracy": [accuracy_table(results.accuracy) if results.accuracy else None],
        "answers": [answers_table(results.answers) if results.answers else None],
    }


def ranking_of(run: Run, load: Load | None = None) -> Table | None:
    """Table of the rankings at `load`, or at every load; None where no load has several engines."""
    at_loads = [ranking for ranking in rankings_of(run) if ranking.load is not None]
    shown = [ranking for ranking in at_loads if load in (None, ranking.load)]
    return ranking_table(shown) if any(len(ranking.rows) > 1 for ranking in shown) else None
