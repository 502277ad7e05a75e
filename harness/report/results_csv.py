"""`results.csv`: every number of a run in one tidy table, a row each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from harness.plain_text import one_line
from harness.runs.reader import Run
from harness.schema.metrics import METRICS, STATISTICS
from harness.schema.results import OnlineSummary


def csv_text(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV, with seven significant digits; a value that is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_field(value) for value in row] for row in rows)
    return text.getvalue()


def results_csv(run: Run) -> str:
    """Return the table as text.

    `load` is the scale of a trace, or the requests in flight of a closed loop. `lo` and `hi` are the ends of
    the 95 % interval, `notices` the kinds of the cell's notices. Without a repeat a row is of all of them.
    What is one number, such as a rate, has the statistic `value`. `mark` is `withheld` for a percentile of
    too few samples, as in `online_results.json`, and `inferred` where the server does not say when tokens
    came.
    """
    rows = result_rows(run)
    return csv_text(rows[0] if rows else [], (row.values() for row in rows))


def result_rows(run: Run) -> list[dict[str, object]]:
    """Return the rows of the table."""
    return [row for summary in run.results.summaries for row in _rows(summary)]


def _rows(result: OnlineSummary) -> Iterator[dict[str, object]]:
    cell = {name: getattr(result, name) for name in ("engine", "variant", "label")}
    cell |= {"load_kind": result.load.kind, "load": result.load.value, "repeat": result.repeat}
    notices = " ".join(dict.fromkeys(fact.kind for fact in (*result.invalid_reasons, *result.notices)))
    for name, metric in METRICS.items():
        numbers = {"value": getattr(result, name, None)}
        if metric.is_latency:
            distribution = result.latency(name)
            numbers = {statistic: getattr(distribution, statistic) for statistic in (*STATISTICS, "max", "n")}
        for statistic, value in numbers.items():
            if value is None:
                continue
            lo, hi = result.interval(name, statistic) or (None, None)
            yield cell | {
                "metric": name,
                "statistic": statistic,
                "value": value,
                "lo": lo,
                "hi": hi,
                "unit": "" if statistic == "n" else metric.unit,
                "valid": result.valid,
                "notices": notices,
                "mark": _mark(result, name, statistic),
            }


def _mark(result: OnlineSummary, metric: str, statistic: str) -> str:
    if not METRICS[metric].is_latency or statistic == "n":
        return ""
    latency = result.latency(metric)
    if statistic in latency.withheld:
        return "withheld"
    return "inferred" if latency.source == "inferred" else ""


def _field(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return f"{value:.7g}" if isinstance(value, float) else value
