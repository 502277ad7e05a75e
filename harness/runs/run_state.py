"""A run on disk: what it was asked, what of it is measured, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from harness.engines.base import EngineVariant
from harness.engines.selection import make_engine_variants
from harness.files import write_json
from harness.runs.base_run import BaseRun, begun_before, place
from harness.runs.folder import JOURNAL, REQUESTS_TABLE, RUN
from harness.runs.journal import JournalEntry, append_journal, read_journal
from harness.runs.schedule import Block, measured_blocks, plan
from harness.schema.calibration import Calibration
from harness.schema.fairness import EngineFact
from harness.schema.load import Load
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import Skipped
from harness.schema.run_info import Check, OnlineRunInfo, Unasked
from harness.schema.stored import client_calibration

#: How long before the end of a run a node may be lost as it ends, too.
SAME_MOMENT_S = 5.0


@dataclass
class Run(BaseRun[OnlineRunInfo]):
    """A run of `bench online`. `clients` is the most client processes of one of its cells."""

    clients: int = 0
    #: By engine and load: how many requests a closed loop was measured with; None: as many as the settings
    #: say. The next repeat starts with these and needs no trial.
    lasted: dict[tuple[str, Load], int | None] = field(default_factory=dict)
    #: In the seeds of a running server's prompts in place of the settings' nonce; None: as they have it.
    nonce: int | None = None
    #: Cells whose node was lost, and when (monotonic).
    lost: list[tuple[float, Skipped]] = field(default_factory=list)
    #: Whether the user, or an error elsewhere, ends the run: what fails from then on is no fault of its cell.
    is_ending: bool = False

    @classmethod
    def create(cls, folder: Path, info: OnlineRunInfo, missing: list[Skipped]) -> Self:
        """A run that begins in an empty folder."""
        run = cls(folder, info, list(missing))
        info.order = [(block.engine_variant.label, block.cells[0].repeat) for block in run.blocks()]
        run._keep_skipped()
        write_json(folder / RUN, info)  # last: a folder with it holds a whole run
        return run

    @classmethod
    def open(cls, folder: Path) -> Self:
        """A run that was begun before.

        Raises:
            UsageError: There is none, it is not an online run, or its files do not belong together.
        """
        run = cls(folder, *begun_before(folder, OnlineRunInfo))
        run._read_journal()
        return run

    @property
    def settings(self) -> OnlineSettings:
        """As resolved when the run began."""
        return self.info.settings

    @property
    def settings_now(self) -> OnlineSettings:
        """The settings with the nonce of what is measured now."""
        nonce = {} if self.nonce is None else {"prompt_nonce": self.nonce}
        return self.settings.model_copy(update=nonce)

    @property
    def calibration(self) -> Calibration | None:
        """What the run's client processes sustain; None where that was not measured."""
        return client_calibration(self.info)

    @property
    def engine_variants(self) -> list[EngineVariant]:
        """The engines that were there when the run began."""
        return [
            engine_variant
            for engine_variant in make_engine_variants(self.settings)
            if engine_variant.label not in self.absent
        ]

    def blocks(self) -> list[Block]:
        """Every block of the run, measured or not: the same whenever it is asked, but for the prompts of a
        running server, which it may have answered before the run was resumed.

        A search or tuning has those that are measured: what comes next depends on them.
        """
        if self.info.is_adaptive:
            return measured_blocks(self.engine_variants, read_journal(self.folder / JOURNAL))
        return plan(self.settings_now, self.engine_variants)

    def knows_idle_cores(self, label: str) -> bool:
        """Whether an engine's cores that are busy with waiting are known."""
        return any("idle_cores" in known.facts for known in self.info.launches if known.label == label)

    def keep_idle_cores(self, label: str, cores: EngineFact) -> None:
        """Keep how many cores of a launched engine are busy with waiting."""
        with self.lock:
            for known in self.info.launches:
                if known.label == label:
                    known.facts["idle_cores"] = cores
            write_json(self.folder / RUN, self.info)

    def to_ask(self, label: str, repeat: int, what: list[Check], reason: str = "", hint: str = "") -> Unasked:
        """Keep what an engine is to be asked after its cells of a repeat; with a reason, what it was not."""
        asked = Unasked(label=label, repeat=repeat, what=what, reason=reason, hint=hint)
        with self.lock:
            others = [old for old in self.info.unasked if (old.label, old.repeat) != (label, repeat)]
            self._keep_unasked([*others, asked] if what or reason else others)
        return asked

    def left_to_ask(self, label: str, repeat: int) -> list[Check]:
        """What an engine was not asked yet after its cells of a repeat."""
        left = (old.what for old in self.info.unasked if (old.label, old.repeat) == (label, repeat))
        return list(next(left, ()))

    def asked(self, label: str, repeat: int, what: Check) -> None:
        """An engine was asked that. Its accuracy counts for the whole run, as do all servers of a search."""
        kept, whole = [], what == "accuracy" or self.info.search is not None
        with self.lock:
            for old in self.info.unasked:
                if old.label == label and (whole or old.repeat == repeat) and what in old.what:
                    old = old.model_copy(update={"what": [other for other in old.what if other != what]})
                    if not old.what:
                        continue
                kept.append(old)
            self._keep_unasked(kept)

    def interrupted(self, *, is_so: bool) -> None:
        """Keep whether the user ended it early."""
        if self.info.interrupted != is_so:
            self.info.interrupted = is_so
            write_json(self.folder / RUN, self.info)

    def finish(self, entry: JournalEntry) -> None:
        """A cell is measured, and its records are written."""
        with self.lock:
            append_journal(self.folder / JOURNAL, entry)
            self._take(entry)

    def skip(self, fault: Skipped, *, lost_node: bool = False) -> None:
        """A cell failed; with `lost_node`, as its node was lost."""
        with self.lock:
            if self.is_ending:
                return
            if lost_node:
                self.lost.append((monotonic(), fault))
            super().skip(fault)

    def end_early(self) -> None:
        """The run ends before its last cell. Nodes that were lost at the same moment ended for the same
        reason, so their cells did not fail: the run did not come to them."""
        with self.lock:
            self.is_ending = True
            since = monotonic() - SAME_MOMENT_S
            lost = [fault for when, fault in self.lost if when > since]
            self.lost.clear()
            if lost:
                self.skipped = [fault for fault in self.skipped if fault not in lost]
                self._keep_skipped()

    def left_out(self) -> list[Skipped]:
        """What is missing from the results. A cell that failed at first and was measured later is not
        missing."""
        done = {
            (cell.engine_variant.label, cell.load, cell.repeat)
            for block in self.blocks()
            for cell in block.cells
            if cell.index in self.done
        }
        return [fault for fault in self.skipped if place(fault) not in done]

    def _keep_unasked(self, unasked: list[Unasked]) -> None:
        if unasked != self.info.unasked:
            self.info.unasked = unasked
            write_json(self.folder / RUN, self.info)

    def _take(self, entry: JournalEntry) -> None:
        self.done.add(entry.cell)
        self.clients = max(self.clients, len(entry.clients))

    def _read_journal(self) -> None:
        cells = {cell.index: cell for block in self.blocks() for cell in block.cells}
        entries = read_journal(self.folder / JOURNAL)
        if not entries and _has_rows(self.folder / REQUESTS_TABLE):
            raise self._no_journal()
        for entry in entries:
            cell = cells.get(entry.cell)
            measured = (entry.label, entry.load, entry.repeat)
            if cell is None or measured != (cell.engine_variant.label, cell.load, cell.repeat):
                raise self._foreign(entry.cell)
            self._take(entry)


def _has_rows(table: Path) -> bool:
    """Whether a table is there and not known to be empty."""
    try:
        return int(pq.read_metadata(table).num_rows) > 0
    except (OSError, pa.ArrowInvalid):
        return table.exists()
