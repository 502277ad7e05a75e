"""A finished run, read back from its folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.metrics.samples import Group
from harness.records.columns import CHUNKS, REQUESTS
from harness.runs.folder import JOURNAL, OFFLINE_RESULTS, ONLINE_RESULTS
from harness.runs.recompute import disagreements, recompute, regroup
from harness.schema.results import OfflineResults, OfflineRunInfo, OnlineResults, OnlineRunInfo, OnlineSummary
from harness.schema.stored import read_of_run

_NEEDED = {
    *("cell", "engine", "label", "load", "repeat", "request", "output_tokens", "input_tokens", "error"),
    *("t_sched", "t_sent", "t_first", "t_last", "t_end", "completion_tokens", "chunks", "t", "tokens"),
}
_TEXT = ("engine", "variant", "label", "load", "token_source", "error", "finish_reason")


@dataclass(frozen=True)
class OnlineRun:
    """Results of `bench online` and the raw tables they come from.

    `groups` are the raw tables cell by cell, engines in the order of the results; `disagreements` the values
    of the stored results that they do not give.
    """

    path: Path
    results: OnlineResults
    requests: pd.DataFrame
    chunks: pd.DataFrame
    groups: Sequence[Group] = ()
    disagreements: Sequence[str] = ()

    @property
    def meta(self) -> OnlineRunInfo:
        return self.results.meta

    @property
    def pooled(self) -> list[OnlineSummary]:
        """One summary per engine and load, engines in the order in which they were asked for."""
        return self._in_order(summary for summary in self.results.summaries if summary.repeat is None)

    @property
    def repeats(self) -> list[OnlineSummary]:
        """One summary per cell, in the same order."""
        return self._in_order(summary for summary in self.results.summaries if summary.repeat is not None)

    def _in_order(self, summaries: Iterable[OnlineSummary]) -> list[OnlineSummary]:
        """Cells are measured in a shuffled order: that of the settings is the reader's."""
        asked = self.meta.settings.engines
        rank: dict[tuple[str, str | None], int]
        rank = {(one.name, one.variant): position for position, one in enumerate(asked)}
        return sorted(summaries, key=lambda one: rank.get((one.engine, one.variant), len(rank)))


@dataclass(frozen=True)
class OfflineRun:
    """Results of `bench offline`."""

    path: Path
    results: OfflineResults

    @property
    def meta(self) -> OfflineRunInfo:
        return self.results.meta


Run = OnlineRun | OfflineRun


def load_run(path: Path, *, trust: bool = False) -> Run:
    """Read a run folder; summaries and comparisons of an online run are computed again from its raw tables.

    Args:
        trust: Take those stored: they have just been computed.

    Raises:
        UsageError: it is not a run folder, is unfinished, or a file in it is missing or broken.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder", "name the folder of a run, such as outputs/…/online_…")
    if (path / ONLINE_RESULTS).is_file():
        stored = read_of_run(path, ONLINE_RESULTS, OnlineResults)
        requests = _table(path / "requests.parquet", REQUESTS)
        chunks = _table(path / "chunks.parquet", CHUNKS)
        groups = regroup(stored, requests, chunks)
        if trust:
            return OnlineRun(path, stored, requests, chunks, groups)
        computed = recompute(stored, groups)
        return OnlineRun(path, computed, requests, chunks, groups, disagreements(stored, computed))
    if (path / OFFLINE_RESULTS).is_file():
        return OfflineRun(path, read_of_run(path, OFFLINE_RESULTS, OfflineResults))
    if (path / JOURNAL).is_file():
        raise UsageError(f"the run in {path} is not finished", f"finish it with bench online --resume {path}")
    raise UsageError(
        f"{path} holds neither {ONLINE_RESULTS} nor {OFFLINE_RESULTS}", "name the folder of a finished run"
    )


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Read several run folders, in order."""
    if not paths:
        raise UsageError("no run is named", "name one or more run folders")
    return [load_run(path) for path in paths]


def _table(path: Path, schema: pa.Schema) -> pd.DataFrame:
    """The columns of `schema`; repeated text as categories, so that 10⁵ rows stay small.

    A column that a table lacks and that no figure is made without is null in every row.
    """
    hint = "restore the file: it holds the raw times of the run"
    if not path.is_file():
        raise UsageError(f"{path} is missing", hint)
    try:
        table = pq.read_table(path, read_dictionary=[name for name in _TEXT if name in schema.names])
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path} is not a readable parquet file: {error}", hint) from error
    absent = [field for field in schema if field.name not in table.column_names]
    if names := [field.name for field in absent if field.name in _NEEDED]:
        raise UsageError(f"{path} has no column {', '.join(names)}", hint)
    for unknown in absent:
        table = table.append_column(unknown, pa.nulls(len(table), unknown.type))
    frame: pd.DataFrame = table.select(schema.names).to_pandas()
    return frame
