"""Summaries and comparisons of a run from its raw tables: when it is measured, and whenever it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd

from harness.metrics.contrast import compare_points
from harness.metrics.estimates import measure
from harness.metrics.samples import Group, by_load, split
from harness.metrics.summary import summarize_points
from harness.schema.base import repeat_text
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineResults, OnlineSummary
from harness.schema.run_info import RunInfo, gpus_used

#: Floating-point sums may differ this much between machines.
_CLOSE = 1e-9
#: Not compared: later versions notice more.
_UNLIKE = {"notices"}


def regroup(results: OnlineResults, requests: pd.DataFrame, chunks: pd.DataFrame) -> list[Group]:
    """The raw tables as groups, engines in the order of the results, cut as the run's settings say; without
    the repeats of a tuning that chose what it compares."""
    labels = dict.fromkeys(summary.label for summary in results.summaries)
    requests = compared_rows(results.meta, requests)
    return split(requests, chunks, results.meta.settings.cut, labels)


def compared_rows(info: RunInfo, requests: pd.DataFrame) -> pd.DataFrame:
    """The rows that summaries and comparisons are of."""
    if info.tune is None:
        return requests
    return requests[requests["repeat"] >= info.tune.rounds]


def recompute(results: OnlineResults, groups: Sequence[Group]) -> OnlineResults:
    """The results with summaries and comparisons made of the raw tables, under the run's own settings.

    A metric that was added since the run was measured has summaries and is not compared: the verdicts, which
    hold for all comparisons together, stay those of the run.
    """
    settings, calibration = results.meta.settings, results.meta.client_calibration
    wrong = results.answers.wrong if results.answers else None
    labels = dict.fromkeys(group.label for group in groups)
    gpus = {label: gpus_used(results.meta, label) for label in labels}
    measured = partial(measure, slo=settings.slo, machines=results.machines, gpus=gpus)
    with ThreadPoolExecutor(2) as threads:
        points = list(threads.map(measured, by_load(groups)))
    summaries = summarize_points(
        points,
        slo=settings.slo,
        calibration=calibration,
        reported=results.reported,
        wrong=wrong,
        machines=results.machines,
        prefixes=results.prefixes,
        wanted_s=settings.measured_s,
        scores=results.accuracy,
        drafted=results.speculation,
        gpus=gpus,
    )
    stored = {name for summary in results.summaries for name in summary.model_fields_set}
    added = {*METRICS} - stored if results.summaries else set()
    return results.model_copy(update={"summaries": summaries, "comparisons": compare_points(points, added)})


def disagreements(stored: OnlineResults, computed: OnlineResults) -> list[str]:
    """Where two results of one run differ, a line a value; floating-point dust does not count, nor what an
    older version did not store, nor notices.

    Metrics that are not installed here are left out, and where there are such the comparisons too: these were
    corrected for other metrics.
    """
    absent = {*map(_name, computed.summaries)} - {*map(_name, stored.summaries)}
    foreign = {name for summary in stored.summaries for name in summary.model_extra or {}} - {*METRICS}
    return [
        *(f"{name}: not stored" for name in sorted(absent)),
        *_between(_named(stored.summaries, foreign, stored=True), _named(computed.summaries)),
        *(() if foreign else _between(_paired(stored.comparisons), _paired(computed.comparisons))),
    ]


def _between(stored: dict[str, object], computed: dict[str, object]) -> Iterator[str]:
    for place, a in stored.items():
        b = computed.get(place)
        if not _alike(a, b):
            yield f"{place}: stored {_say(a)}, computed {_say(b)}"


def _named(
    summaries: list[OnlineSummary], without: Set[str] = frozenset(), *, stored: bool = False
) -> dict[str, object]:
    found: dict[str, object] = {}
    for summary in summaries:
        found |= _leaves(
            _name(summary),
            summary.model_dump(
                exclude=dict.fromkeys((*without, *_UNLIKE), True) | {"rates_ci": {*without}},
                exclude_unset=stored,
            ),
        )
    return found


def _name(summary: OnlineSummary) -> str:
    return f"{summary.label}, {summary.load}, {repeat_text(summary.repeat)}"


def _paired(comparisons: list[Comparison]) -> dict[str, object]:
    found: dict[str, object] = {}
    for comparison in comparisons:
        place = f"{comparison.a} against {comparison.b}, {comparison.load}"
        place += f", {comparison.metric} {comparison.statistic}"
        found |= _leaves(place, comparison.model_dump())
    return found


def _leaves(place: str, values: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(f"{place}, {name}", value)
        elif isinstance(value, list | tuple):
            found |= _leaves(f"{place}, {name}", {str(i): item for i, item in enumerate(value)})
        else:
            found[f"{place}, {name}"] = value
    return found


def _alike(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_CLOSE, abs_tol=_CLOSE)
    return a == b


def _say(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)
