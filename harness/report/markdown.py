"""`summary.md`: the run as text that pastes into an issue."""

from __future__ import annotations

from harness.metrics.rankings import best_labels
from harness.plain_text import one_line
from harness.report.answer import answer, rankings_of, terms
from harness.report.decision import decide
from harness.report.notices import notices
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
from harness.report.tables.latency import headline_table, latency_table, shown_latencies
from harness.report.tables.offline import batch_ratios_table, offline_table
from harness.report.tables.ranking import ranking_table
from harness.report.tables.rates import costs_table, throughput_table
from harness.report.tables.table import Table
from harness.report.tables.tuning import tuning_tables
from harness.report.text.heading import facts, title
from harness.runs.reader import Run


def summary(run: Run) -> str:
    """The whole run: what was compared, warnings, the verdict, the tables."""
    parts = [f"# {_text(title(run))}\n"]
    lines = [f"- {_text(name)}: {_text(value)}" for name, value in facts(run)]
    parts.append("\n".join(lines) + "\n")
    parts += [f"> **{_text(notice.title)}** {_text(notice.detail, 4000)}\n" for notice in notices(run)]
    parts.append(_text(" ".join([*map(str, answer(run)), *terms(run)]), 2000) + "\n")
    rankings = [ranking for ranking in rankings_of(run) if ranking.load is not None]
    if rankings:
        parts.append(table(ranking_table(rankings)))
    if not run.has_results:
        return "\n".join(parts)
    if not run.is_batch:
        if run.results.search is not None:
            parts += [table(found) for found in capacity_tables(run.results.search)]
        if run.results.tune is not None:
            parts += [table(found) for found in tuning_tables(run.results.tune)]
        best = best_labels(run.pooled, run.results.comparisons)
        parts.append(table(headline_table(run.pooled, best)))
        parts += [table(latency_table(run.pooled, metric, best)) for metric in shown_latencies(run.pooled)]
        parts.append(table(throughput_table(run.pooled)))
        parts += [table(found) for found in decision_tables(decide(run))]
        if lengths := lengths_table(run.groups):
            parts.append(table(lengths))
        if costs := costs_table(run.pooled, run.results.machines):
            parts.append(table(costs))
        if said := server_table(run.groups, run.server):
            parts.append(table(said))
        pairs, launches = run.results.comparisons, run.meta.launches
        repeats = noise_tables(pairs, launches) if run.meta.settings.aa else planning_tables(pairs)
        parts += [table(found) for found in repeats]
        if waterfall := waterfall_table(run.pooled):
            parts.append(table(waterfall))
        if run.results.answers is not None:
            parts.append(table(answers_table(run.results.answers)))
        if run.results.accuracy is not None:
            parts.append(table(accuracy_table(run.results.accuracy)))
        if run.results.ledger is not None:
            parts.append(table(ledger_table(run.results.ledger)))
        if prefixes := prefix_table(run.results.prefixes):
            parts.append(table(prefixes))
        if nodes := nodes_table(run.groups, run.results.senders, run.meta.hosts):
            parts.append(table(nodes))
        if effect := node_effect_table(run.groups, run.results.nodes):
            parts.append(table(effect))
        if drafted := speculation_table(run.results.speculation, run.results.summaries):
            parts.append(table(drafted))
    else:
        parts.append(table(offline_table(run.results)))
        if run.results.comparisons:
            parts.append(table(batch_ratios_table(run.results)))
    return "\n".join(parts)


def table(given: Table) -> str:
    """A pipe table under a heading, with its notes and what its marks mean."""
    heads = [_text(head) for head in given.headers]
    rule = ["---:" if column.numeric else "---" for column in given.columns]
    lines = [heads, rule, *([_text(text) for text in line] for line in given.lines)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join(
        [
            f"## {_text(given.title)}\n",
            body,
            "",
            *(f"{_text(note, 1000)}\n" for note in (*given.legend, *given.notes)),
        ]
    )


def _text(text: str, limit: int = 300) -> str:
    """Text from outside that cannot end a cell, start markup or open a tag."""
    line = one_line(text, limit).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]":
        line = line.replace(mark, f"\\{mark}")
    return line
