"""What the cells of a tuning say: which finalists are better than the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.metrics.contrast import Contrast, contrast, judged
from harness.metrics.estimates import Point, measure
from harness.metrics.samples import Group, by_load
from harness.runs.search_state import holds, value_of
from harness.runs.tune.tuning import Tuning
from harness.schema.limits import Slo
from harness.schema.metrics import METRICS
from harness.schema.online_summary import OnlineSummary
from harness.schema.tune import FinalistFound, TuneResults


def tune_results(
    tuning: Tuning, groups: Sequence[Group], summaries: Sequence[OnlineSummary], slo: Slo | None
) -> TuneResults:
    """The verdict on each finalist, by the repeats of the comparison alone.

    Args:
        groups: The raw tables of the comparison.
        summaries: Of the comparison, pooled ones among them.
    """
    points = {repeats[0].label: measure(repeats, slo) for repeats in by_load(groups)}
    pooled = {summary.label: summary for summary in summaries if summary.repeat is None}
    contrasts = _contrasts(tuning, points)
    finalists = [
        _finalist(tuning, label, contrasts.get(label), pooled.get(label)) for label in tuning.finalists
    ]
    default = pooled.get(tuning.default)
    better = [
        found
        for found in finalists
        if default is not None and default.valid
        if found.verdict == "better" and found.within is not False and pooled[found.label].valid
    ]
    sign = 1 if METRICS[tuning.metric].lower_is_better else -1
    best = min(better, key=lambda found: sign * (found.ratio or 1.0), default=None)
    return TuneResults(
        plan=tuning.plan,
        configurations=tuning.found(points.keys()),
        finalists=finalists,
        best=best and best.label,
        default_invalid="" if default is None else next(iter(default.invalid_reasons), ""),
    )


def _contrasts(tuning: Tuning, points: Mapping[str, Point]) -> dict[str, Contrast]:
    """Of each finalist that was measured against the default, corrected for all of them."""
    default, key = points.get(tuning.default), (tuning.metric, tuning.statistic)
    if default is None:
        return {}
    found = {
        label: made[0]
        for label in tuning.finalists
        if label in points
        and (made := contrast(default.pooled.load, points[label].found, default.found, [key]))
    }
    return dict(zip(found, judged(list(found.values())), strict=True))


def _finalist(
    tuning: Tuning, label: str, found: Contrast | None, pooled: OnlineSummary | None
) -> FinalistFound:
    within = None
    if tuning.terms and pooled is not None:
        within = all(holds(term, value_of(pooled, term)) for term in tuning.terms)
    return FinalistFound(
        label=label,
        value=None if found is None else found.a.value,
        default=None if found is None else found.b.value,
        ratio=None if found is None else found.ratio.value,
        ci=None if found is None else found.ratio.ci,
        verdict="not enough data" if found is None else found.verdict,
        repeats=(0, 0) if found is None else found.repeats,
        within=within,
    )
