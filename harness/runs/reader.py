"""A finished run, read back from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.errors import UsageError
from harness.metrics.samples import Group, split
from harness.records.cell import CellRecords
from harness.records.parquet import no_records, read_records, read_server
from harness.runs.accuracy import task_scores
from harness.runs.answers import judged_answers
from harness.runs.folder import (
    OFFLINE_RESULTS,
    ONLINE_RESULTS,
    REQUESTS_TABLE,
    RUN,
    read_info,
    results_name,
    resume_command,
)
from harness.runs.recompute import disagreements, recompute, regroup
from harness.runs.run_state import read_skipped
from harness.schema.facts import Fact
from harness.schema.files import read_of_run
from harness.schema.results import OnlineResults, OnlineSummary
from harness.schema.run_info import RunInfo

_TEXT = ("engine", "variant", "label", "load", "token_source", "error", "finish_reason")


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
    groups: Sequence[Group] = ()
    disagreements: Sequence[str] = ()
    server: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def meta(self) -> RunInfo:
        return self.results.meta

    @property
    def has_results(self) -> bool:
        """Whether it says anything of an engine, be it of configurations that a tuning left out."""
        return bool(self.results.summaries or self.results.search or self.results.tune)

    @property
    def engines(self) -> list[tuple[str, str]]:
        """Name and label of each engine with a result, in the order in which they were asked for."""
        return list(dict.fromkeys((summary.engine, summary.label) for summary in self.pooled))

    @property
    def pooled(self) -> list[OnlineSummary]:
        """One summary per engine and load, engines in the order in which they were asked for."""
        return self._in_order(summary for summary in self.results.summaries if summary.repeat is None)

    @property
    def repeats(self) -> list[OnlineSummary]:
        """One summary per cell, in the same order."""
        return self._in_order(summary for summary in self.results.summaries if summary.repeat is not None)

    @property
    def is_batch(self) -> bool:
        """Whether its one load is a batch, of which throughput is what counts."""
        return self.meta.settings.num_prompts is not None

    def _in_order(self, summaries: Iterable[OnlineSummary]) -> list[OnlineSummary]:
        """In the order of the settings: cells are measured in a shuffled one."""
        asked = self.meta.settings.engines
        rank: dict[tuple[str, str | None], int]
        rank = {(ref.name, ref.variant): position for position, ref in enumerate(asked)}
        return sorted(summaries, key=lambda s: rank.get((s.engine, s.variant), len(rank)))


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


def load_run(path: Path, *, trust: bool = False) -> Run:
    """Read a run folder; summaries and comparisons of an online run are computed again from its raw tables.

    Args:
        trust: Take those stored: they have just been computed.

    Raises:
        UsageError: it is not a run folder, is unfinished, or a file in it is missing or broken.
    """
    if not path.is_dir():
        why = "is not a folder" if path.exists() else "does not exist"
        raise UsageError(f"{path} {why}", "name the folder of a run, such as outputs/…/online_…")
    if (name := results_name(path)) is not None:
        stored = read_of_run(path, name, OnlineResults)
        raw, server = with_categories(read_records(path)), read_server(path)
        groups = regroup(stored, raw.requests, raw.chunks)
        if trust:
            return Run(path, stored, raw.requests, raw.chunks, groups, server=server)
        computed = recompute(stored, groups)
        differ = disagreements(stored, computed)
        return Run(path, computed, raw.requests, raw.chunks, groups, differ, server)
    if (path / RUN).is_file() and ((info := read_info(path, "")).kind == "online" or info.order):
        raise UsageError(f"the run in {path} is not finished", f"finish it: {resume_command(path)}")
    raise UsageError(
        f"{path} holds neither {ONLINE_RESULTS} nor {OFFLINE_RESULTS}", "name the folder of a finished run"
    )


def load_unmeasured(path: Path) -> Run:
    """A run of which no cell could be measured: why, and what it was to measure.

    Raises:
        UsageError: It is not a run, or a file of it is broken.
    """
    info, skipped = read_info(path, "name the folder of a run"), read_skipped(path)
    nothing = no_records()
    results = OnlineResults(meta=info, summaries=[], skipped=skipped)
    return Run(path, results, nothing.requests, nothing.chunks)


def read_raw(path: Path, *, finished: bool = False) -> RawRun:
    """A run by its raw tables, with or without results.

    Args:
        finished: A run of which cells are left is an error.

    Raises:
        UsageError: It is no run, or its tables are missing or broken.
    """
    info = read_info(path, "name the folder of a run")
    if finished and (info.interrupted or not (path / REQUESTS_TABLE).is_file()):
        raise UsageError(f"the run in {path} is not finished", f"finish it: {resume_command(path)}")
    answers, scores = judged_answers(path), task_scores(path)
    below = {score.label: score.below for score in (scores.scores if scores else ())}
    worse = {label: fact for label, fact in below.items() if fact and fact.kind == "inaccurate"}
    return RawRun(path, info, with_categories(read_records(path)), worse | (answers.wrong if answers else {}))


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read several run folders, in order."""
    if not paths:
        raise UsageError("no run is named", "name one or more run folders")
    return [load_run(path) for path in paths]


def with_categories(records: CellRecords) -> CellRecords:
    """Return raw tables whose repeated text is in categories, so that 10⁵ rows stay small."""
    return CellRecords(records.requests.astype(dict.fromkeys(_TEXT, "category")), records.chunks)
