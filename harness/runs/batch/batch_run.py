"""A run of `bench offline` on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from harness.errors import UsageError
from harness.files import now, write_json
from harness.metrics.batches import compare_batches
from harness.runs.base_run import BaseRun, begun_before
from harness.runs.folder import JOURNAL, OFFLINE_RESULTS, RUN
from harness.runs.journal import BatchEntry, append_journal, read_entries
from harness.schema.results import OfflineResult, OfflineResults, Skipped
from harness.schema.run_info import OfflineRunInfo
from harness.schema.settings import OfflineSettings
from harness.schema.stored import read_of_run


@dataclass
class BatchRun(BaseRun[OfflineRunInfo]):
    """A run of `bench offline`. A cell is an engine in a repeat, its number the place in `info.order`;
    `measured` has the results by number."""

    measured: dict[int, OfflineResult] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, info: OfflineRunInfo, missing: list[Skipped]) -> Self:
        """A run that begins in an empty folder. `info` has the order."""
        run = cls(folder, info, list(missing))
        run._keep_skipped()
        write_json(folder / RUN, info)  # last: a folder with it holds a whole run
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A run that was begun before.

        Raises:
            UsageError: There is none, it is not an offline run, or its files do not belong together.
        """
        run = cls(folder, *begun_before(folder, OfflineRunInfo))
        entries = read_entries(folder / JOURNAL, BatchEntry)
        run._check_journal(entries)
        for entry in entries:
            turn = (entry.result.label, entry.result.repeat)
            if entry.cell >= len(run.info.order) or run.info.order[entry.cell] != turn:
                raise run._foreign(entry.cell)
            run._take(entry)
        return run

    @property
    def settings(self) -> OfflineSettings:
        """As resolved when the run began."""
        return self.info.settings

    @property
    def is_measured(self) -> bool:
        """Whether no cell is left."""
        return len(self.done) == len(self.info.order)

    def finish(self, cell: int, result: OfflineResult) -> None:
        """A cell is measured."""
        entry = BatchEntry(cell=cell, finished=now(), result=result)
        append_journal(self.folder / JOURNAL, entry)
        self._take(entry)

    def write_results(self) -> OfflineResults:
        """Write what is known by now, in the order of the run. A cell that failed at first and was measured
        later is not missing."""
        rows = [self.measured[cell] for cell in sorted(self.measured)]
        done = {(row.label, row.repeat) for row in rows}
        results = OfflineResults(
            meta=self.info,
            results=rows,
            comparisons=compare_batches(rows),
            skipped=[fault for fault in self.skipped if (fault.label, fault.repeat) not in done],
        )
        write_json(self.folder / OFFLINE_RESULTS, results)
        return results

    def _take(self, entry: BatchEntry) -> None:
        self.done.add(entry.cell)
        self.measured[entry.cell] = entry.result

    def _check_journal(self, entries: Sequence[BatchEntry]) -> None:
        """Raises UsageError where results are not in the journal, or there are no cells: a profile alone."""
        if not self.info.order:
            raise UsageError(f"nothing was to be measured in the run in {self.folder}", "start a new run")
        if entries or not (self.folder / OFFLINE_RESULTS).exists():
            return
        if read_of_run(self.folder, OFFLINE_RESULTS, OfflineResults).results:
            raise self._no_journal()
