"""Tables of a run, by the section of the page that shows them; `summary.md` has them in the same order."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.rankings import best_labels
from harness.report.answer import rankings_of
from harness.report.decision import Decision
from harness.report.tables import (
    capacity,
    cells,
    comparisons,
    fairness,
    latency,
    ranking,
    rates,
    saved_work,
    tuning,
)
from harness.report.tables.decision import decision_tables
from harness.report.tables.table import Table
from harness.runs.reader import Run
from harness.schema.run_info import gpus_used

#: Sections whose tables are no part of `summary.md`: others there have their numbers, or they are long.
PAGE_ONLY = ("first", "each_repeat")


def sections(run: Run, decided: Decision | None) -> dict[str, list[Table]]:
    """Build every table of a run with results; a section that has nothing to show has none.

    Args:
        decided: limits and prices that the run is held to.
    """
    tables: dict[str, Sequence[Table | None]] = {"rankings": [ranking_of(run)]}
    tables |= _of_batch(run) if run.is_batch else _of_loads(run, decided)
    return {name: [table for table in each if table is not None] for name, each in tables.items()}


def _of_batch(run: Run) -> dict[str, Sequence[Table | None]]:
    results, throughput = run.results, rates.offline_table(run.results)
    return {
        "first": [throughput],
        "throughput": [throughput],
        "batch_ratios": [rates.batch_ratios_table(results) if results.comparisons else None],
        "each_repeat": [rates.offline_repeats_table(results.results)],
    }


def _of_loads(run: Run, decided: Decision | None) -> dict[str, Sequence[Table | None]]:
    results, pooled, pairs = run.results, run.pooled, run.results.comparisons
    best, is_aa = best_labels(pooled, pairs), run.meta.settings.aa
    searched = capacity.capacity_tables(results.search) if results.search else []
    if results.search and decided:
        gpus = {engine.label: gpus_used(run.meta, engine.label) for engine in results.search.engines}
        agents = capacity.agents_table(results.search, gpus, decided.hourly, decided.gpus)
        searched += [agents] if agents else []
    searched = tuning.tuning_tables(results.tune) if results.tune else searched
    headline = latency.headline_table(pooled, best)
    return {
        "first": [*searched, headline][:1],
        "searched": searched,
        "headline": [headline],
        "latencies": [
            latency.latency_table(pooled, metric, best) for metric in latency.shown_latencies(pooled)
        ],
        "throughput": [rates.throughput_table(pooled)],
        "details": [
            cells.lengths_table(run.groups),
            cells.turns_table(run.groups),
            rates.costs_table(pooled, results.machines),
            cells.nodes_table(run.groups, results.senders, run.meta.hosts),
            cells.node_effect_table(run.groups, results.nodes),
            saved_work.speculation_table(results.speculation, results.summaries),
            saved_work.category_table(run.groups),
            saved_work.prefix_table(results.prefixes, run.meta.settings.shared_prefixes, run.groups),
            cells.recovery_table(results.recoveries),
        ],
        "decision": decision_tables(decided) if decided else [],
        "waterfall": [cells.waterfall_table(pooled)],
        "server": [cells.server_table(run.groups, run.server)],
        "noise": comparisons.noise_tables(pairs, run.meta.launches) if is_aa else [],
        "planning": [] if is_aa else comparisons.planning_tables(pairs),
        "each_repeat": [rates.repeats_table(run.repeats)],
        "ledger": [fairness.ledger_table(results.ledger) if results.ledger else None],
        "accuracy": [fairness.accuracy_table(results.accuracy) if results.accuracy else None],
        "answers": [fairness.answers_table(results.answers) if results.answers else None],
    }


def ranking_of(run: Run) -> Table | None:
    """Table of the rankings at every load; None where no load has several engines."""
    at_loads = [each for each in rankings_of(run) if each.load is not None]
    return ranking.ranking_table(at_loads) if any(len(each.rows) > 1 for each in at_loads) else None
