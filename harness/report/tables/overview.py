"""The run in one table that fits a terminal: a row a load and engine."""

from __future__ import annotations

from dataclasses import replace

from harness.metrics.percentiles import supported
from harness.metrics.primary import LATENCIES
from harness.report.best import BestLabels
from harness.report.tables.latency import grid, loads_of
from harness.report.tables.table import Cell, Column, Table
from harness.report.text.load_words import head_of, load_number
from harness.report.text.verdict import shown_percentile
from harness.runs.reader import OnlineRun
from harness.schema.load import ClosedLoop
from harness.schema.metrics import METRICS


def overview_table(run: OnlineRun, best_labels: BestLabels) -> Table:
    """TTFT and TPOT at the median and a higher percentile, the achieved rate, that offered by other than
    closed loops, and output tokens, in the order of the loads."""
    pooled = run.pooled
    shown = [(metric, f"p{q}") for metric in LATENCIES for q in sorted({50, _higher(run, metric)})]
    rates = [("req_per_s", "req/s"), ("offered_req_per_s", "offered"), ("output_tok_per_s", "tok/s")]
    if all(isinstance(summary.load, ClosedLoop) for summary in pooled):
        del rates[1]  # it offers what is answered
    columns = [
        Column(head_of(summary.load for summary in pooled)),
        Column("engine", numeric=False),
        *(Column(statistic, METRICS[metric].label) for metric, statistic in shown),
        *(Column(head) for _, head in rates),
    ]
    statistics = [*shown, *((name, name) for name, _ in rates)]
    rows = []
    for load in loads_of(pooled):
        engines = [summary for summary in pooled if summary.load == load]
        keys = [(load, metric, statistic) for metric, statistic in statistics]
        for label, *cells in grid(engines, keys, best_labels):
            plain = (replace(cell, interval="") for cell in cells)
            rows.append([Cell(load_number(load), load.value), label, *plain])
    return Table("overview", "Latencies in ms, requests and output tokens a second", columns, rows)


def _higher(run: OnlineRun, metric: str) -> int:
    """The percentile of the verdict, or where that is the median the highest that every cell supports."""
    sizes = [summary.latency(metric).n for summary in run.pooled if summary.num_success]
    found = shown_percentile(run, metric)
    return found if found != 50 else supported((99, 90), sizes) or 50
