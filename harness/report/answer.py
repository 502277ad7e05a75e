"""The answer of a run: one sentence, the rankings under it, and what it rests on."""

from __future__ import annotations

from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES
from harness.metrics.rankings import Ranking, capacity_ranking, rankings, shown_load
from harness.report.compared import first_choice, verdict
from harness.report.grouping import grouped
from harness.report.notices import invalid_count, notices
from harness.report.tables.capacity import capacity_answer
from harness.report.tables.decision import limits_text
from harness.report.tables.latency import slo_met
from harness.report.tables.tuning import tuning_answer
from harness.report.text.load_words import where
from harness.report.text.numbers import decimals, few, number, plural
from harness.report.wording import Sentence, sentence
from harness.runs.reader import Run

#: So many requests in flight at most are no load.
FEW_IN_FLIGHT = 2


def rankings_of(run: Run) -> list[Ranking]:
    """Rank the engines of a run; nothing of a tuning, which compares settings with a default."""
    if run.results.search is not None:
        return [capacity_ranking(run.results.search)]
    return [] if run.results.tune is not None else rankings(run.pooled, run.results.comparisons)


def answer(run: Run) -> list[Sentence]:
    """Say what a run shows, in one sentence; a tuning and a search have some more of their own."""
    if not run.has_results:
        return [sentence("no_result")]
    if run.results.search is not None:
        return capacity_answer(run.results.search)
    if run.results.tune is not None:
        return tuning_answer(run.results.tune)
    if not any(summary.valid for summary in run.pooled):
        invalid, cells = invalid_count(run)
        gravest = next((notice for notice in notices(run) if notice.severity == "invalid"), None)
        why = f" {gravest.title} {gravest.wording.hint}".rstrip() if gravest else ""
        return [sentence("nothing_valid", invalid=invalid, cells=plural(cells, "cell"), why=why)]
    return [verdict(run, first_choice(run))]


def terms(run: Run) -> list[str]:
    """Say what the answer rests on: what intervals of one repeat assume, and what variants of engines do."""
    by_about = grouped(run.meta.launches, lambda launch: launch.about)
    variants = [f"{few([each.label for each in same])}: {about}" for about, same in by_about.items() if about]
    return [*filter(None, (assumption(run), _few_in_flight(run))), *variants]


def assumption(run: Run) -> str:
    """Say what intervals of one repeat rest on; empty where every engine has more, and of a search."""
    single = any(min(pair.repeats) < 2 and pair.ci is not None for pair in run.results.comparisons)
    if not single or run.results.search is not None:
        return ""
    least, most = 100 * ASSUMED_OF_RATES, 100 * ASSUMED_OF_LATENCIES["p99"]
    return f"One repeat: intervals assume that repeats differ by {least:.0f} % (rates) to {most:.0f} % (p99)."


def _few_in_flight(run: Run) -> str:
    if run.is_batch or not run.pooled or run.results.search is not None:
        return ""
    load = shown_load(run.pooled)
    cells = [cell for cell in run.pooled if cell.load == load]
    peaks = [cell.peak_in_flight for cell in cells if cell.peak_in_flight]
    shared = any(fact.kind == "others_requests" for cell in cells for fact in cell.notices)
    if not peaks or max(peaks) > FEW_IN_FLIGHT or shared:
        return ""
    return f"At most {max(peaks)} in flight at once, which stresses no engine."


def goodput(run: Run) -> str:
    """Say what each engine answers within the run's service level at the shown load; empty without one."""
    if run.is_batch or (slo := run.meta.settings.slo) is None or not run.pooled:
        return ""
    load = shown_load(run.pooled)
    cells = [cell for cell in run.pooled if cell.load == load and cell.goodput_req_per_s is not None]
    rates = [cell.goodput_req_per_s for cell in cells]
    parts = [
        f"{cell.label} {number(rate, decimals(rates))} requests/s ({slo_met(cell).text} of all)"
        for cell, rate in zip(cells, rates, strict=True)
    ]
    return f"Goodput {where(load)} ({limits_text(slo)}): {'; '.join(parts)}." if parts else ""
