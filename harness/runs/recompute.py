"""Summaries and comparisons of a stored run, once more from its raw tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd

from harness.metrics.comparison import compare_points
from harness.metrics.estimates import measure
from harness.metrics.samples import Group, by_load, split
from harness.metrics.summary import summarize_points
from harness.schema.calibration import client_ceiling
from harness.schema.metrics import LATENCIES
from harness.schema.results import Comparison, OnlineResults, OnlineSummary

#: Floating-point sums may differ this much between machines.
_CLOSE = 1e-9


def regroup(results: OnlineResults, requests: pd.DataFrame, chunks: pd.DataFrame) -> list[Group]:
    """The raw tables as groups, engines in the order of the results, cut as the run's settings say."""
    known = list(dict.fromkeys(one.label for one in results.summaries))
    rank = {label: position for position, label in enumerate(known)}
    rows = requests.sort_values("label", key=lambda labels: labels.astype(object).map(rank), kind="stable")
    return split(rows, chunks, results.meta.settings.cut)


def recompute(results: OnlineResults, groups: Sequence[Group]) -> OnlineResults:
    """The results with summaries and comparisons made of the raw tables, under the run's own settings."""
    settings, ceiling = results.meta.settings, client_ceiling(results.meta)
    wrong = results.answers.wrong if results.answers else None
    with ThreadPoolExecutor(2) as threads:
        points = list(threads.map(partial(measure, slo=settings.slo), by_load(groups)))
    summaries = summarize_points(points, settings.slo, ceiling, results.reported, wrong, results.machines)
    return results.model_copy(update={"summaries": summaries, "comparisons": compare_points(points)})


def disagreements(stored: OnlineResults, computed: OnlineResults) -> list[str]:
    """Where two results of one run differ, a line a value; floating-point dust does not count.

    Metrics that are not installed here are left out, and where there are such the comparisons too: these were
    corrected for other metrics.
    """
    absent = {_name(one) for one in computed.summaries} - {_name(one) for one in stored.summaries}
    foreign = {name for one in stored.summaries for name in one.model_extra or {}} - {*LATENCIES}
    return [
        *(f"{name}: not stored" for name in sorted(absent)),
        *_between(_named(stored.summaries, foreign), _named(computed.summaries)),
        *(() if foreign else _between(_paired(stored.comparisons), _paired(computed.comparisons))),
    ]


def _between(stored: dict[str, object], computed: dict[str, object]) -> Iterator[str]:
    for place, a in stored.items():
        b = computed.get(place)
        if not _alike(a, b):
            yield f"{place}: stored {_say(a)}, computed {_say(b)}"


def _named(summaries: list[OnlineSummary], without: Set[str] = frozenset()) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in summaries:
        found |= _leaves(_name(one), one.model_dump(exclude=set(without)))
    return found


def _name(one: OnlineSummary) -> str:
    return f"{one.label}, {one.load}, {'all repeats' if one.repeat is None else f'repeat {one.repeat}'}"


def _paired(comparisons: list[Comparison]) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in comparisons:
        place = f"{one.a} against {one.b}, {one.load}, {one.metric} {one.statistic}"
        found |= _leaves(place, one.model_dump())
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
