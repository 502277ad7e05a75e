"""The page of a run that is being measured: what its finished cells show. It reads the run folder alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.metrics.summary import SummaryInputs, summarize
from harness.records.cell import CellRecords
from harness.report.charts.by_load import by_load
from harness.report.charts.chart import Chart, data_block
from harness.report.charts.looks import looks, on_dark
from harness.report.charts.over_time import latency_over_time, load_over_time
from harness.report.page import render_page
from harness.report.tables.rates import repeats_table
from harness.report.text.heading import machine, model
from harness.report.text.load_words import where
from harness.report.text.numbers import plural
from harness.runs.folder import JOURNAL
from harness.runs.journal import JournalEntry, read_journal
from harness.runs.reader import RawRun, read_raw
from harness.schema.metrics import latencies
from harness.schema.results import OnlineSummary


def version(folder: Path) -> str:
    """Another text whenever the page would be another one."""
    journal = folder / JOURNAL
    return str(journal.stat().st_size) if journal.exists() else "0"


def live_page(folder: Path) -> str:
    """The page as HTML.

    Raises:
        UsageError: The folder holds no run, or a file in it is damaged.
    """
    journal, at = read_journal(folder / JOURNAL), version(folder)
    raw = _finished(read_raw(folder), {entry.cell for entry in journal}) if journal else None
    summaries: list[OnlineSummary] = []
    if raw is not None:
        inputs = SummaryInputs(raw.info.settings.slo, raw.info.client_calibration)
        summaries = summarize(raw.groups, inputs)
    styles = looks((summary.engine, summary.label) for summary in summaries)
    pooled = [summary for summary in summaries if summary.repeat is None and summary.num_success]
    charts: list[Chart] = []
    if raw is not None and pooled:
        shown = [by_load(pooled, metric, raw.info.settings.slo) for metric in latencies("headline")]
        charts = [chart for chart in shown if chart.series]
    latest = _latest(raw, journal[-1]) if raw is not None else []
    every = {chart.name: chart for chart in (*charts, *latest)}
    dark = {look.color: on_dark(look.color) for look in styles.values()}
    cells, counted = None, plural(len(journal), "cell")
    if raw is not None and not raw.info.is_adaptive:
        cells = len(raw.info.order) * len(raw.info.settings.loads)
        counted = f"{len(journal)} of {plural(cells, 'cell')}"
    return render_page(
        "live.html.j2",
        ("charts.js", "report.js", "live.js"),
        folder=folder,
        done=len(journal),
        counted=counted,
        cells=cells,
        chapter={"styles": styles},
        about="" if raw is None else f"{model(raw.info)} · {machine(raw.info)}",
        last=f"{journal[-1].label} {where(journal[-1].load)}" if journal else "",
        table=repeats_table([s for s in summaries if s.repeat is not None]) if summaries else None,
        charts=charts,
        latest=latest,
        dark=dark,
        data=data_block({"live": (every, styles)}, dark),
        version=at,
    )


def _finished(raw: RawRun, cells: set[int]) -> RawRun:
    """The run without the records of cells that are not in the journal."""
    tables = (raw.records.requests, raw.records.chunks)
    return replace(raw, records=CellRecords(*(table[table["cell"].isin(cells)] for table in tables)))


def _latest(raw: RawRun, last: JournalEntry) -> list[Chart]:
    """The cell that was finished last, over time."""
    groups = [group for group in raw.groups if group.cell == last.cell]
    if not groups or not len(groups[0].metrics):
        return []
    whole = [groups[0].whole]
    return [
        replace(chart, title=f"{last.label}: {chart.title}")
        for chart in (latency_over_time(whole), load_over_time(whole))
    ]
