"""Runs of `bench offline` that continue where they ended; no engine is started."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.base import EngineSettings
from harness.engines.local import LocalEngine
from harness.errors import EngineError, NothingMeasuredError, UsageError
from harness.runs.events import CellDone, CellProgress, Event, Started
from harness.runs.in_process import Batch, BatchTimes
from harness.runs.reader import load_run
from harness.schema.online_settings import OnlineSettings
from harness.schema.run_info import LaunchRecord
from harness.schema.settings import OfflineSettings
from harness.telemetry.cell_monitor import CellMonitor
from tests.harness.measured import results_so_far, resume_online, run_online

from .conftest import edit, journal, report_of

pytestmark = pytest.mark.integration

CELLS = 3


class Engines:
    """Takes as long as the prompts say. `ends` has the errors that end cells, by number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: dict[int, BaseException] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def measure(
        self, engine: LocalEngine, launch: EngineSettings, batch: Batch, *_: Any
    ) -> tuple[list[BatchTimes], LaunchRecord]:
        cell = self.of(CellProgress)[-1].cell.index
        if (error := self.ends.pop(cell, None)) is not None:
            raise error
        version = engine.installed().version
        label = launch.engine_variant.label
        record = LaunchRecord(engine=engine.name, label=label, version=version, ready_s=cell)
        begin, seconds = monotonic(), 1 + int(batch.requests[0].prompt[0]) / 100
        lengths = [request.output_tokens for request in batch.requests]
        return [BatchTimes(begin, begin + seconds, lengths)], record

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr(Roseinfer, "batches_by_server", False)
    monkeypatch.setattr("harness.runs.in_process.time_batches", made.measure)
    monkeypatch.setattr(CellMonitor, "summary", lambda *window: None)  # other tests run too
    return made


@pytest.fixture
def settings(tmp_path: Path) -> OnlineSettings:
    batch = OfflineSettings(
        engines="roseinfer,openai", model="random:gpt2-tiny", device="cpu", out=tmp_path / "runs",
        num_prompts=3, input_len=8, output_len="uniform:2:5", repeats=CELLS, max_model_len=64,
    )  # fmt: skip
    return OnlineSettings.of_batch(batch)


def ended_early(settings: OnlineSettings, engines: Engines, cell: int) -> Path:
    """The folder of a run that its user ended in `cell`."""
    engines.ends[cell] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_online(settings, ["bench"], engines)
    folder: Path = engines.of(Started)[0].folder
    engines.events.clear()
    return folder


@pytest.mark.parametrize("cell", [0, CELLS - 1])
def test_a_resumed_run_is_that_of_an_uninterrupted_one(
    cell: int, settings: OnlineSettings, engines: Engines
) -> None:
    _, whole = run_online(settings, ["bench"], engines)
    engines.events.clear()
    folder = ended_early(settings, engines, cell)
    before = journal(folder) if cell else []
    so_far = results_so_far(folder)
    if cell:
        assert so_far is not None and len(so_far.results) == cell
        assert f"{cell} of {CELLS} cells are measured" in report_of(folder)
    else:
        assert so_far is None
        with pytest.raises(UsageError, match="is not finished") as raised:
            load_run(folder)
        assert raised.value.hint == f"finish it: bench offline --resume {folder}"
    same, results = resume_online(folder, engines)
    assert same == folder and [e.cell.index for e in engines.of(CellDone)] == [*range(cell, CELLS)]
    assert journal(folder)[:cell] == before and [line["cell"] for line in journal(folder)] == [*range(CELLS)]
    assert [row.completion_tokens for row in results.results] == [
        row.completion_tokens for row in whole.results
    ]
    assert [row.total_s for row in results.results] == pytest.approx([row.total_s for row in whole.results])
    assert "interrupted" not in report_of(folder)


def test_what_failed_is_tried_again_and_stands_in_its_place(
    settings: OnlineSettings, engines: Engines
) -> None:
    engines.ends[0] = EngineError("it died", "see its log")
    folder, results = run_online(settings, ["bench"], engines)
    assert len(results.results) == CELLS - 1
    assert [fault.repeat for fault in results.skipped] == [None, 0]
    engines.events.clear()
    _, again = resume_online(folder, engines)
    assert [e.cell.index for e in engines.of(CellDone)] == [0]
    assert [fault.label for fault in again.skipped] == ["openai"]
    assert [(row.label, row.repeat) for row in again.results] == again.meta.order


def test_where_everything_failed_it_is_said_why(settings: OnlineSettings, engines: Engines) -> None:
    engines.ends = {cell: EngineError("it died", "see its log") for cell in range(CELLS)}
    with pytest.raises(NothingMeasuredError) as raised:
        run_online(settings, ["bench"], engines)
    assert raised.value.message == "nothing could be measured: roseinfer: it died"
    assert raised.value.hint == "see its log"


def test_an_engine_that_the_interruption_ended_has_not_failed(
    settings: OnlineSettings, engines: Engines
) -> None:
    error = EngineError("it ended", "")
    error.__context__ = KeyboardInterrupt()
    engines.ends[1] = error
    with pytest.raises(KeyboardInterrupt):
        run_online(settings, ["bench"], engines)
    [folder] = (settings.out or Path()).iterdir()
    assert [fault["label"] for fault in json.loads((folder / "skipped.json").read_text())] == ["openai"]


def test_a_folder_in_which_nothing_was_to_be_measured(settings: OnlineSettings, engines: Engines) -> None:
    folder = ended_early(settings, engines, 1)
    edit(folder / "run.json", lambda run: run["order"].clear())
    with pytest.raises(UsageError, match="nothing was to be measured"):
        resume_online(folder, engines)
