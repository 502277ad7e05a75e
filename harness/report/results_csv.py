"""`results.csv`: every number of a run in one tidy table, a row each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.metrics.percentiles import missing
from harness.plain_text import one_line
from harness.runs.reader import Run
from harness.schema.metrics import METRICS, STATISTICS
from harness.schema.results import OnlineSummary

_COLUMNS = (
    "engine",
    "variant",
    "label",
    "load_kind",
    "load",
    "repeat",
    "metric",
    "statistic",
    "value",
    "lo",
    "hi",
    "unit",
    "valid",
    "notices",
    "mark",
)

_Row = tuple[object, ...]


@dataclass(frozen=True)
class Data:
    """A table in long form."""

    heads: Sequence[str]
    rows: Sequence[tuple[object, ...]]

    def csv(self) -> str:
        """Return the table as CSV, with seven significant digits; a value that is not known is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([_field(value) for value in row] for row in self.rows)
        return text.getvalue()


def results_csv(run: Run) -> str:
    """The table as text.

    `load` is the scale of a trace, or the requests in flight of a closed loop. `lo` and `hi` are the ends of
    the 95 % interval, `notices` the kinds of the cell's notices. Without a repeat a row is of all of them.
    What is one number, such as a rate, has the statistic `value`. `mark` is `withheld` for a percentile of
    too few samples, as in `online_results.json`, and `inferred` where the server does not say when tokens
    came.
    """
    return Data(_COLUMNS, [row for summary in run.results.summaries for row in _rows(summary)]).csv()


def _rows(result: OnlineSummary) -> Iterator[_Row]:
    facts = [*result.invalid_reasons, *result.notices]
    notices = " ".join(dict.fromkeys(fact.kind for fact in facts))
    for name, metric in METRICS.items():
        if not metric.is_latency:
            numbers = {"value": getattr(result, name, None)}
        else:
            found = result.latency(name)
            numbers = {statistic: getattr(found, statistic) for statistic in (*STATISTICS, "max", "n")}
        for statistic, value in numbers.items():
            if value is not None:
                lo, hi = _ends(result, name, statistic)
                yield (
                    result.engine,
                    result.variant,
                    result.label,
                    result.load.kind,
                    result.load.value,
                    result.repeat,
                    name,
                    statistic,
                    value,
                    lo,
                    hi,
                    "" if statistic == "n" else metric.unit,
                    result.valid,
                    notices,
                    _mark(result, name, statistic),
                )


def _ends(result: OnlineSummary, metric: str, statistic: str) -> tuple[float | None, ...]:
    """Ends of the 95 % interval."""
    return result.interval(metric, statistic) or (None, None)


def _mark(result: OnlineSummary, metric: str, statistic: str) -> str:
    if not METRICS[metric].is_latency:
        return ""
    found = result.latency(metric)
    if statistic in STATISTICS and statistic.startswith("p") and missing(float(statistic[1:]), found.n):
        return "withheld"
    return "inferred" if found.source == "inferred" and statistic != "n" else ""


def _field(value: object) -> object:
    if isinstance(value, str):
        return one_line(value)
    return f"{value:.7g}" if isinstance(value, float) else value
