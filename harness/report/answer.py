"""The answer of a run: one sentence, the rankings under it, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from harness.metrics.contrast import compared_by
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES
from harness.metrics.rankings import Ranking, capacity_ranking, rankings, shown_load
from harness.report.grouping import grouped
from harness.report.notices import invalid_count, notices
from harness.report.tables.capacity import capacity_answer
from harness.report.tables.decision import limits_text
from harness.report.tables.latency import slo_met
from harness.report.tables.tuning import tuning_answer
from harness.report.text.load_words import where, with_rate
from harness.report.text.numbers import decimals, few, number, plural, several
from harness.report.wording import Sentence, sentence, wins
from harness.runs.reader import Run
from harness.schema.metrics import METRICS

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
    load = shown_load(run.pooled)
    place = with_rate(load, (each.offered_req_per_s for each in run.pooled if each.load == load))
    labels = [each.label for each in run.pooled if each.load == load and each.valid]
    at_load = [ranking for ranking in rankings_of(run) if ranking.load == load]
    metrics = [METRICS[name].label for name in compared_by(load)]
    return [_of_load(place[:1].upper() + place[1:], at_load, metrics, labels)]


def _of_load(
    place: str, at_load: Sequence[Ranking], metrics: Sequence[str], labels: Sequence[str]
) -> Sentence:
    """Choose the sentence by the rankings of one load."""
    if len(labels) == 1:
        return sentence("alone", place=place, label=labels[0])
    first = [ranking for ranking in at_load if ranking.headline]
    if not first:
        return sentence("too_few_requests", place=place, metrics=several(metrics))
    by_winner = grouped(first, lambda ranking: ranking.winner)
    won = {label: list(map(_with_losers, ranks)) for label, ranks in by_winner.items() if label is not None}
    if not won:
        names = several(ranking.name for ranking in first)
        return sentence("no_difference", place=place, labels=few(labels), metrics=names)
    return wins(place, won, _costs(next(iter(won)), at_load) if len(won) == 1 else {})


def _with_losers(ranking: Ranking) -> str:
    """Name of a statistic, with the engines that the winner is better than where these are not all others."""
    losers = [row.label for row in ranking.valid if row.significant]
    return ranking.name if len(losers) == len(ranking.valid) - 1 else f"{ranking.name} (than {few(losers)})"


def _costs(label: str, at_load: Sequence[Ranking]) -> dict[str, list[str]]:
    """Names of the statistics in which another engine is significantly better than `label`, by its label."""
    costs: dict[str, list[str]] = {}
    for ranking in at_load:
        row = ranking.row(label)
        if ranking.best is not None and row is not None and row.significant:
            costs.setdefault(ranking.best.label, []).append(ranking.name)
    return costs


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
