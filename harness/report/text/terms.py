"""What the verdict of a run rests on: how much of the load was answered, and what intervals assume."""

from __future__ import annotations

from math import floor

from harness.report.text.numbers import MANY, several
from harness.report.text.provenance import assumed
from harness.report.text.verdict import shown_load
from harness.runs.reader import OnlineRun, Run
from harness.schema.load import ClosedLoop
from harness.schema.results import OnlineSummary

#: So many requests in flight at most are no load; this share of what was offered is as good as all of it.
FEW, KEPT_UP = 2, 0.9


def terms(run: Run) -> list[str]:
    """Sentences about the load that the verdict speaks of; none of a search, which has its own."""
    if not isinstance(run, OnlineRun) or not run.pooled or run.results.search is not None:
        return []
    load = shown_load(run)
    cells = [summary for summary in run.pooled if summary.load == load and summary.num_success]
    answered = "" if isinstance(load, ClosedLoop) else _answered(cells).replace("%", " %")
    return [sentence for sentence in (answered, _few(cells), assumption(run)) if sentence]


def assumption(run: Run) -> str:
    """What intervals of one repeat rest on in addition to the samples; empty where the verdict has none."""
    if not isinstance(run, OnlineRun) or not run.pooled:
        return ""
    load = shown_load(run)
    valid = {cell.label for cell in run.pooled if cell.load == load and cell.valid}
    compared = (c for c in run.results.comparisons if c.load == load and {c.a, c.b} <= valid)
    if not any(c.ci is not None and max(c.repeats) < 2 for c in compared):
        return ""
    return f"There is one repeat: the intervals assume that repeats differ by {assumed}."


def _answered(cells: list[OnlineSummary]) -> str:
    """How much of what was offered, by engine where one fell behind."""
    shares = {cell.label: cell.req_per_s / cell.offered_req_per_s for cell in cells if cell.offered_req_per_s}
    slow = {label: share for label, share in shares.items() if share < KEPT_UP}
    if not shares:
        return ""
    if slow:
        behind = several(f"{label} answered {share:.0%}" for label, share in slow.items())
        if len(slow) > MANY:
            behind = f"{len(slow)} engines answered {min(slow.values()):.0%} to {max(slow.values()):.0%}"
        grow = "Latencies of an engine that falls behind grow with the length of the run."
        return f"{behind} of the requests that were offered. {grow}"
    who = "Every engine" if len(shares) > 1 else next(iter(shares))
    least = "at least " if len(shares) > 1 else ""
    share = min(shares.values())
    answered = "all" if share >= 1 else f"{least}{floor(100 * share)}%"
    return f"{who} answered {answered} of the requests that were offered."


def _few(cells: list[OnlineSummary]) -> str:
    peaks = [cell.peak_in_flight for cell in cells if cell.peak_in_flight is not None]
    if not peaks or max(peaks) > FEW:
        return ""
    return f"At most {max(peaks)} were in flight at once, which stresses no engine."
