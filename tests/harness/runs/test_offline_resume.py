"""Runs of `bench offline` that continue where they ended, and folders that cannot; no engine is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.engines.base import EngineSettings
from harness.engines.local import LocalEngine
from harness.errors import EngineError, NothingMeasuredError, UsageError
from harness.runs.batch.measured import Measured
from harness.runs.batch.through_worker import Batch
from harness.runs.events import BatchDone, BatchStarting, Event, Started
from harness.runs.folder import lock_run
from harness.runs.offline import batches_so_far, resume_offline, run_offline
from harness.runs.reader import load_run
from harness.schema.results import OfflineResults
from harness.schema.run_info import LaunchRecord
from harness.schema.settings import OfflineSettings

from .conftest import edit, journal, report_of

pytestmark = pytest.mark.integration

REPEATS = 2
CELLS = 2 * REPEATS


class Engines:
    """Take as long as the prompts and the label say. `ends` has the errors that end cells, by number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: dict[int, BaseException] = {}

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def measure(
        self, engine: LocalEngine, launch: EngineSettings, batch: Batch, *_: Any
    ) -> tuple[Measured, LaunchRecord]:
        begun = [event for event in self.events if isinstance(event, BatchStarting)]
        if (error := self.ends.pop(begun[-1].index, None)) is not None:
            raise error
        label = launch.engine_variant.label
        seconds = 1 + int(batch.requests[0].prompt[0]) / 100 + len(label) / 10
        record = LaunchRecord(
            engine=engine.name, label=label, version=engine.installed().version, ready_s=begun[-1].index
        )
        return Measured(seconds, tuple(request.output_tokens for request in batch.requests)), record

    @property
    def measured(self) -> list[str]:
        found = (event.result for event in self.events if isinstance(event, BatchDone))
        return [f"{row.label}, {row.repeat}" for row in found]

    @property
    def begun(self) -> int:
        """How many cells were begun."""
        return sum(isinstance(event, BatchStarting) for event in self.events)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Engines:
    made = Engines()
    monkeypatch.setattr("harness.runs.offline.through_server", made.measure)
    monkeypatch.setattr("harness.runs.offline.through_worker", made.measure)
    monkeypatch.setattr("harness.runs.batch.measured.disturbed", lambda machine: [])  # other tests run too
    return made


@pytest.fixture
def settings(tmp_path: Path) -> OfflineSettings:
    return OfflineSettings(
        engines="roseinfer,openai", model="random:gpt2-tiny", device="cpu", out=tmp_path / "runs",
        num_prompts=3, input_len=8, output_len="uniform:2:5", repeats=REPEATS, max_model_len=64,
    )  # fmt: skip


def ended_early(settings: OfflineSettings, engines: Engines, cell: int) -> Path:
    """The folder of a run that its user ended in `cell`."""
    engines.ends[cell] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_offline(settings, ["bench"], engines)
    [started] = [event for event in engines.events if isinstance(event, Started)]
    engines.events.clear()
    return started.folder


@pytest.mark.parametrize("cell", range(CELLS))
def test_a_resumed_run_is_that_of_an_uninterrupted_one(
    cell: int, settings: OfflineSettings, engines: Engines
) -> None:
    _, whole = run_offline(settings, ["bench"], engines)
    assert sorted(launch.later_ready_s[0] for launch in whole.meta.launches) == [2, 3]
    names = engines.measured
    engines.events.clear()
    folder = ended_early(settings, engines, cell)
    before = journal(folder) if cell else []
    so_far = batches_so_far(folder)
    if cell:
        assert so_far is not None and so_far.results == whole.results[:cell]
        assert so_far.left == whole.meta.order[cell:]
        found = load_run(folder)
        assert found.results == so_far
        title = f"The run was interrupted with {cell} of {CELLS} cells measured."
        assert title in report_of(folder)
    else:
        assert so_far is None
        with pytest.raises(UsageError, match="is not finished") as raised:
            load_run(folder)
        assert raised.value.hint == f"finish it: bench offline --resume {folder}"
    same, results = resume_offline(folder, engines)
    assert same == folder and engines.measured == names[cell:]
    assert journal(folder)[:cell] == before and [line["cell"] for line in journal(folder)] == [*range(CELLS)]
    here = {"created": whole.meta.created, "environment": whole.meta.environment}
    assert results.model_copy(update={"meta": results.meta.model_copy(update=here)}) == whole
    assert results == OfflineResults.model_validate_json((folder / "offline_results.json").read_bytes())
    assert "interrupted" not in report_of(folder)


def test_what_failed_is_tried_again_and_stands_in_its_place(
    settings: OfflineSettings, engines: Engines
) -> None:
    engines.ends[0] = EngineError("it died", "see its log")
    folder, results = run_offline(settings, ["bench"], engines)
    assert len(results.results) == CELLS - 1 and results.left == []
    assert [fault.repeat for fault in results.skipped] == [None, 0]
    engines.events.clear()
    _, again = resume_offline(folder, engines)
    assert engines.begun == 1 and [fault.label for fault in again.skipped] == ["openai"]
    assert [(row.label, row.repeat) for row in again.results] == again.meta.order


def test_where_everything_failed_it_is_said_why(settings: OfflineSettings, engines: Engines) -> None:
    engines.ends = {cell: EngineError("it died", "see its log") for cell in range(CELLS)}
    with pytest.raises(NothingMeasuredError) as raised:
        run_offline(settings, ["bench"], engines)
    reasons = raised.value.message.removeprefix("nothing could be measured: ").split("; ")
    assert sorted(reasons) == ["roseinfer (in-process): it died", "roseinfer: it died"]
    assert raised.value.hint == "see its log"


def test_an_engine_that_the_interruption_ended_has_not_failed(
    settings: OfflineSettings, engines: Engines
) -> None:
    error = EngineError("it ended", "")
    error.__context__ = KeyboardInterrupt()
    engines.ends[1] = error
    with pytest.raises(KeyboardInterrupt):
        run_offline(settings, ["bench"], engines)
    [folder] = (settings.out or Path()).iterdir()
    assert [fault["label"] for fault in json.loads((folder / "skipped.json").read_text())] == ["openai"]


def test_a_complete_run_is_only_written_again(
    settings: OfflineSettings, engines: Engines, python_with: Any
) -> None:
    folder, results = run_offline(settings, ["bench"], engines)
    kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (folder / "offline_results.json").unlink()
    engines.events.clear()
    python_with("roseinfer", {})  # nothing is needed of it
    assert resume_offline(folder, engines) == (folder, results)
    assert engines.begun == 0
    assert [event.done for event in engines.events if isinstance(event, Started)] == [CELLS]
    assert {path: path.read_bytes() for path in kept} == kept


def test_what_has_changed_since_is_refused(
    settings: OfflineSettings, engines: Engines, python_with: Any
) -> None:
    folder = ended_early(settings.model_copy(update={"repeats": 1}), engines, 1)
    with lock_run(folder), pytest.raises(UsageError, match="is still going on"):
        resume_offline(folder, engines)
    kept = (folder / "run.json").read_text()
    edit(folder / "run.json", lambda run: run["versions"].update(source="f" * 16))
    with pytest.raises(UsageError, match="the run began with other code"):
        resume_offline(folder, engines)
    (folder / "run.json").write_text(kept)
    edit(folder / "run.json", lambda run: run["environment"]["cpu"].update(usable_cores=999))
    with pytest.raises(UsageError, match=r"the run began on .*, 999, and this is"):
        resume_offline(folder, engines)
    (folder / "run.json").write_text(kept)
    python_with("roseinfer", {"rosebench": "0.0"})
    with pytest.raises(UsageError, match=r"roseinfer.* was .* in the run and is 0\.0 now"):
        resume_offline(folder, engines)
    lines = (folder / "journal.jsonl").read_text()
    edit(folder / "run.json", lambda run: run["order"].reverse())
    with pytest.raises(UsageError, match=r"cell 0 of .* is not one of the run's settings"):
        resume_offline(folder, engines)
    (folder / "journal.jsonl").write_text("{}\n" + lines)
    with pytest.raises(UsageError, match=r"journal\.jsonl, line 1: cell: is missing"):
        resume_offline(folder, engines)
    (folder / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"has results and no journal\.jsonl"):
        resume_offline(folder, engines)
    (folder / "journal.jsonl").unlink()
    with pytest.raises(UsageError, match=r"has results and no journal\.jsonl"):
        resume_offline(folder, engines)
    edit(folder / "run.json", lambda run: run["order"].clear())
    with pytest.raises(UsageError, match="nothing was to be measured"):
        resume_offline(folder, engines)
    assert engines.begun == 0
