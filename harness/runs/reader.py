"""A run with its results: read back from its folder, computed again from its raw tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pandas as pd

from harness.engines.registry import in_order
from harness.errors import UsageError
from harness.metrics.contrast import compare_points
from harness.metrics.estimates import measure
from harness.metrics.recovery import recoveries
from harness.metrics.samples import Group, by_load, split
from harness.metrics.summary import SummaryInputs, summarize_points
from harness.metrics.validity import with_harmless_lag
from harness.records.cell import CellRecords
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.parquet import has_parts, read_records
from harness.runs.checks import judged_answers, task_scores
from harness.runs.folder import (
    JOURNAL,
    OFFLINE_RESULTS,
    ONLINE_RESULTS,
    REQUESTS_TABLE,
    check_folder,
    read_info,
    results_name,
    resume_command,
)
from harness.runs.run_state import read_skipped
from harness.schema.base import repeat_text
from harness.schema.facts import Fact
from harness.schema.files import OTHER_VERSION, read_stored
from harness.schema.metrics import METRICS
from harness.schema.results import Comparison, OnlineResults, OnlineSummary
from harness.schema.run_info import RunInfo, gpus_used

#: Floating-point sums may differ this much between machines.
_CLOSE = {"rel_tol": 1e-9, "abs_tol": 1e-9}
#: Fields of a summary that are not compared: later versions notice more, and judge lag otherwise.
_UNLIKE = {"notices", "valid", "invalid_reasons"}
#: What depends on TPOT, which versions that do not store `resent` divided by N - 1.
_OF_OLD_TPOT = {"tpot_ms", "goodput_req_per_s", "slo_met"}


@dataclass(frozen=True)
class Run:
    """Results of a run and the raw tables they come from.

    `groups` are the raw tables cell by cell, engines in the order of the results; `disagreements` the values
    of the stored results that they do not give; `server` what servers said of themselves meanwhile.
    """

    path: Path
    results: OnlineResults
    requests: pd.DataFrame
    chunks: pd.DataFrame
    server: pd.DataFrame
    groups: Sequence[Group] = ()
    disagreements: Sequence[str] = ()

    @property
    def meta(self) -> RunInfo:
        return self.results.meta

    @property
    def has_results(self) -> bool:
        """True if it says anything of an engine, be it of configurations that a tuning left out."""
        return bool(self.results.summaries or self.results.search or self.results.tune)

    @property
    def engines(self) -> list[tuple[str, str]]:
        """Name and label of each engine with a result, in the order of `pooled`."""
        return list(dict.fromkeys((summary.engine, summary.label) for summary in self.pooled))

    @property
    def pooled(self) -> list[OnlineSummary]:
        """One summary per engine and load, engines by name, those of rosebench's own authors last."""
        return in_order(summary for summary in self.results.summaries if summary.repeat is None)

    @property
    def repeats(self) -> list[OnlineSummary]:
        """One summary per cell, in the same order."""
        return in_order(summary for summary in self.results.summaries if summary.repeat is not None)

    @property
    def is_batch(self) -> bool:
        """True if its one load is a batch, of which throughput is what counts."""
        return self.meta.settings.num_prompts is not None


@dataclass(frozen=True)
class RawRun:
    """A run by its raw tables. `wrong` is why an engine's answers are wrong, by label."""

    path: Path
    info: RunInfo
    records: CellRecords
    wrong: dict[str, Fact]

    @cached_property
    def groups(self) -> list[Group]:
        """Cell by cell, cut as the settings say."""
        return split(self.records.requests, self.records.chunks, self.info.settings.cut)


def load_run(path: str | Path, *, trust: bool = False) -> Run:
    """Read a run folder; summaries and comparisons of an online run are computed again from its raw tables.

    Args:
        trust: Take those stored: they have just been computed.

    Raises:
        UsageError: it is not a run folder, is unfinished, or a file in it is missing or broken.
    """
    path = Path(path)
    check_folder(path)
    if (name := results_name(path)) is not None:
        again = f"remove it, and `bench report {path}` computes it again"
        hint = again if (path / JOURNAL).is_file() else OTHER_VERSION
        stored = read_stored(path / name, OnlineResults, hint)
        tables = vars(read_records(path))
        groups = regroup(stored, tables["requests"], tables["chunks"])
        if trust:
            return Run(path, stored, **tables, groups=groups)
        computed = recompute(stored, groups, tables["server"])
        return Run(path, computed, **tables, groups=groups, disagreements=disagreements(stored, computed))
    if (info := read_info(path)).kind == "online" or info.order:
        raise UsageError(f"the run in {path} is not finished", f"finish it: {resume_command(path)}")
    raise UsageError(
        f"{path} holds neither {ONLINE_RESULTS} nor {OFFLINE_RESULTS}", "name the folder of a finished run"
    )


def is_unfinished(path: Path) -> bool:
    """Return whether it is a run with cells that its results, if it has any, are not of."""
    return (path / JOURNAL).is_file() and (results_name(path) is None or has_parts(path))


def load_unmeasured(path: Path) -> Run:
    """A run of which no cell could be measured: why, and what it was to measure.

    Raises:
        UsageError: It is not a run, or a file of it is broken.
    """
    info, skipped = read_info(path), read_skipped(path)
    nothing = CellRecords(*(schema.empty_table().to_pandas() for schema in (REQUESTS, CHUNKS)))
    return Run(path, OnlineResults(meta=info, summaries=[], skipped=skipped), **vars(nothing))


def read_raw(path: Path, *, finished: bool = False) -> RawRun:
    """A run by its raw tables, with or without results.

    Args:
        finished: A run of which cells are left is an error.

    Raises:
        UsageError: It is no run, or its tables are missing or broken.
    """
    info = read_info(path)
    if finished and (info.interrupted or not (path / REQUESTS_TABLE).is_file()):
        raise UsageError(f"the run in {path} is not finished", f"finish it: {resume_command(path)}")
    answers, scores = judged_answers(path), task_scores(path)
    below = {score.label: score.below for score in (scores.scores if scores else ())}
    worse = {label: fact for label, fact in below.items() if fact and fact.kind == "inaccurate"}
    return RawRun(path, info, read_records(path), worse | (answers.wrong if answers else {}))


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read several run folders, in order."""
    if not paths:
        raise UsageError("no run is named", "name one or more run folders")
    return [load_run(path) for path in paths]


def regroup(results: OnlineResults, requests: pd.DataFrame, chunks: pd.DataFrame) -> list[Group]:
    """The raw tables as groups, engines in the order of the results, cut as the run's settings say; without
    the repeats of a tuning that chose what it compares."""
    labels = dict.fromkeys(summary.label for summary in results.summaries)
    requests = final_rows(results.meta, requests)
    return split(requests, chunks, results.meta.settings.cut, labels)


def final_rows(info: RunInfo, requests: pd.DataFrame) -> pd.DataFrame:
    """All rows; of a tuning those of its final comparison, as earlier repeats chose the finalists."""
    if info.tune is None:
        return requests
    return requests[requests["repeat"] >= info.tune.rounds]


def recompute(results: OnlineResults, groups: Sequence[Group], server: pd.DataFrame) -> OnlineResults:
    """The results with summaries and comparisons made of the raw tables, under the run's own settings.

    A metric that was added since the run was measured has summaries and is not compared: the verdicts, which
    hold for all comparisons together, stay those of the run. `server` has the readings of servers' pages.
    """
    settings = results.meta.settings
    labels = dict.fromkeys(group.label for group in groups)
    gpus = {label: gpus_used(results.meta, label) for label in labels}
    measured = partial(
        measure, slo=settings.slo, machines=results.machines, gpus=gpus, looks=len(settings.looks)
    )
    with ThreadPoolExecutor(2) as threads:
        points = list(threads.map(measured, by_load(groups)))
    inputs = SummaryInputs(
        slo=settings.slo,
        calibration=results.meta.client_calibration,
        reported=results.reported,
        wrong=results.answers.wrong if results.answers else {},
        machines=results.machines,
        prefixes=results.prefixes,
        wanted_s=settings.measured_s,
        scores=results.accuracy,
        drafted=results.speculation,
        server=server,
    )
    stored = {name for summary in results.summaries for name in summary.model_fields_set}
    added = {*METRICS} - stored if results.summaries else set()
    comparisons = compare_points(points, added)
    judged = with_harmless_lag(summarize_points(points, inputs), comparisons)
    recovered = [recovery for group in groups for recovery in recoveries(group)]
    return results.model_copy(
        update={"summaries": judged, "comparisons": comparisons, "recoveries": recovered}
    )


def disagreements(stored: OnlineResults, computed: OnlineResults) -> list[str]:
    """List where two results of one run differ, a line a value; floating-point dust does not count, nor what
    an older version did not store or had by another formula, nor notices.

    Metrics that are not installed here are left out, and where there are such the comparisons too: these were
    corrected for other metrics.
    """
    absent = {*map(_name, computed.summaries)} - {*map(_name, stored.summaries)}
    foreign = {name for summary in stored.summaries for name in summary.model_extra or {}} - {*METRICS}
    if any("resent" not in summary.model_fields_set for summary in stored.summaries):
        foreign |= _OF_OLD_TPOT
    return [
        *(f"{name}: not stored" for name in sorted(absent)),
        *_between(_named(stored.summaries, foreign, stored=True), _named(computed.summaries)),
        *(() if foreign else _between(_paired(stored.comparisons), _paired(computed.comparisons))),
    ]


def _between(stored: dict[str, object], computed: dict[str, object]) -> Iterator[str]:
    for place, a in stored.items():
        b = computed.get(place)
        close = isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, **_CLOSE)
        if a != b and not close:
            yield f"{place}: stored {_text(a)}, computed {_text(b)}"


def _named(
    summaries: list[OnlineSummary], without: Set[str] = frozenset(), *, stored: bool = False
) -> dict[str, object]:
    """Return the values of summaries by their names; of stored ones those that were stored."""
    exclude = dict.fromkeys((*without, *_UNLIKE), True) | {"rates_ci": {*without}}
    dumps = ((s, s.model_dump(exclude=exclude, exclude_unset=stored)) for s in summaries)
    leaves = (leaf for summary, values in dumps for leaf in _leaves(_name(summary), values))
    return {place: value for place, value in leaves if not place.endswith(", source")}  # as notices have it


def _name(summary: OnlineSummary) -> str:
    return f"{summary.label}, {summary.load}, {repeat_text(summary.repeat)}"


def _paired(comparisons: list[Comparison]) -> dict[str, object]:
    """Return the values of comparisons by their names."""
    places = (f"{c.a} against {c.b}, {c.load}, {c.metric} {c.statistic}" for c in comparisons)
    dumps = (comparison.model_dump() for comparison in comparisons)
    return dict(leaf for pair in zip(places, dumps, strict=True) for leaf in _leaves(*pair))


def _leaves(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield each value within, by its place."""
    match value:
        case dict():
            for name, part in value.items():
                yield from _leaves(f"{place}, {name}", part)
        case list() | tuple():
            for number, part in enumerate(value):
                yield from _leaves(f"{place}, {number}", part)
        case _:
            yield place, value


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "nothing" if value is None else str(value)
