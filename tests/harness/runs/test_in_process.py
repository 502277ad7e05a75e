"""Runs of `bench offline`: with the real roseinfer, failing, and continued where they ended."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from harness.compare.stored_run import StoredRun
from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.base import EngineSettings, EngineVariant, Installation, Launch
from harness.engines.local import LocalEngine, OfflineFactory
from harness.engines.registry import LOCAL
from harness.engines.variants import Variant
from harness.errors import CleanupError, EngineError, NothingMeasuredError, UsageError
from harness.models.model_folder import resolve
from harness.report.notices import facts_of
from harness.runs import in_process
from harness.runs.events import CellDone, CellProgress, Event, Started
from harness.runs.in_process import Batch, BatchTimes, time_batches
from harness.runs.reader import load_run
from harness.schema.machines import MachineLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.run_info import LaunchRecord
from harness.schema.setting_types import EngineRef
from harness.schema.settings import OfflineSettings
from harness.telemetry import gpu
from harness.telemetry.cell_monitor import CellMonitor
from harness.telemetry.gpu import GpuReader
from harness.workload import warmup
from tests.harness.measured import results_so_far, resume_online, run_online

from .conftest import edit, journal

pytestmark = pytest.mark.integration


def small(out: Path, engines: str = "roseinfer", **given: Any) -> OnlineSettings:
    quick: dict[str, Any] = {
        "engines": engines, "model": "random:gpt2-tiny", "device": "cpu", "dtype": "fp32", "out": out,
        "num_prompts": 3,
        "input_len": "uniform:2:20", "output_len": "uniform:1:7", "seed": 4, "max_model_len": 64,
    }  # fmt: skip
    return OnlineSettings.of_batch(OfflineSettings(**quick | given))


class ServedByMock(Roseinfer):
    """The mock server, which starts soon, beside the engine's own in-process API."""

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        words = (sys.executable, "-m", "harness.mock_server", "--host", settings.host, "--port", str(port))
        return Launch(words, settings.served_name, ready_path="/v1/models")


def test_both_ways_are_measured_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOCAL, "roseinfer", ServedByMock())
    windows: list[float] = []

    def busy(monitor: CellMonitor, begin: float, end: float) -> MachineLoad:
        assert monitor.readings[0].t <= begin < end <= monitor.readings[-1].t
        assert monitor.readings[0].gpus == (), "of this machine's GPUs, none: the engine is on its CPU"
        windows.append(end - begin)
        others = {"foreign_cores_mean": 0.9, "foreign_cores_max": 1, "steal_share": 0}
        return MachineLoad(seconds=end - begin, samples=2, cpus=2, own_cpu_s=1, **others)

    monkeypatch.setattr(CellMonitor, "summary", busy)
    no_gpus = lambda reader, most: reader.__dict__.update(_handles=[None][:most])  # noqa: E731
    monkeypatch.setattr(GpuReader, "__init__", no_gpus)
    monkeypatch.setattr(GpuReader, "close", lambda reader: None)
    settings = small(tmp_path, "roseinfer,openai", settle=0.1, min_duration=0.3)
    folder, results = run_online(settings)
    assert all(row.batches * row.total_s >= 0.3 and row.batches > 1 for row in results.results)
    assert max(windows) >= 0.3
    assert sorted(row.label for row in results.results) == ["roseinfer", "roseinfer (in-process)"]
    served, in_process = (
        [group for group in load_run(folder).groups if group.label == label]
        for label in ("roseinfer", "roseinfer (in-process)")
    )
    for [group] in (served, in_process):
        requests = group.requests
        assert len(requests) % 3 == 0 and requests["error"].isna().all()
        assert (requests["completion_tokens"] == requests["output_tokens"]).all()
        assert len(group.sample("ttft_ms").values) == len(requests), "each request has its own times"
    lengths = [[*group.requests["output_tokens"].head(3)] for [group] in (served, in_process)]
    assert lengths[0] == lengths[1]
    assert {row.completion_tokens for row in results.results} == {sum(lengths[0])}
    assert [skip.label for skip in results.skipped] == ["openai"]
    saved = OnlineResults.model_validate_json((folder / "offline_results.json").read_bytes())
    assert saved == results
    assert sorted(launch.label for launch in saved.meta.launches) == ["roseinfer", "roseinfer (in-process)"]
    [server, worker] = [launch.codes for launch in saved.meta.launches]
    assert server == worker and len(server) == 1
    run = json.loads((folder / "run.json").read_text())
    assert (run["settings"]["device"], run["settings"]["warmup"]) == ("cpu", 3)
    noticed = {(summary.label, notice.kind) for summary in results.summaries for notice in summary.notices}
    assert noticed >= {(row.label, kind) for row in results.results for kind in ("brief", "foreign_load")}
    stored = StoredRun.read(folder)
    disturbances = [stored.disturbed(label, load) for label in stored.cells for load in stored.loads]
    assert [facts[0].scope.repeat for facts in disturbances] == [0, 0]


class Quitting(Roseinfer):
    """An engine whose in-process API ends by a statement: the process as if all were well."""

    def __init__(self, folder: Path, statement: str = "os._exit(0)") -> None:
        self.script = folder / "quit.py"
        self.script.write_text(f"import os\nclass Quit:\n    def __init__(self, **_): {statement}\n")

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        return OfflineFactory(f"{self.script}:Quit", {}, {})


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise ValueError('no such setting')", r"(?s)exit code 1.*no such setting"),
        ("os._exit(0)", "ended with exit code 0: it wrote nothing"),
    ],
)
def test_a_worker_that_ends_without_a_result_has_failed(tmp_path: Path, statement: str, said: str):
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer"), Variant(), "roseinfer")
    settings = EngineSettings(engine_variant, resolve("random:gpt2-tiny").path, "m", "cpu", "fp32", 64)
    batch = Batch(warmup([(4, 2)], 100, 0), [], True)
    with pytest.raises(EngineError, match=said):
        time_batches(Quitting(tmp_path, statement), settings, batch, tmp_path / "x.log")


class Refusing(ServedByMock):
    """An in-process API that takes no such settings."""

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise UsageError("no such batch", "give another")


def test_what_one_engine_refuses_the_others_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOCAL, "roseinfer", Refusing())
    _, results = run_online(small(tmp_path))
    assert [row.label for row in results.results] == ["roseinfer"]
    [skip] = results.skipped
    assert (skip.label, skip.repeat) == ("roseinfer (in-process)", 0)
    assert (skip.reason, skip.hint) == ("no such batch", "give another")


def test_a_worker_gives_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readings = iter([[(10, 1000, [])], *[[(500, 1000, [42])]] * 1000])
    monkeypatch.setattr(gpu, "_memory", lambda: next(readings))
    monkeypatch.setattr(in_process, "memory_restored", partial(gpu.memory_restored, patience_s=0))
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer"), Variant(), "roseinfer")
    settings = EngineSettings(engine_variant, resolve("random:gpt2-tiny").path, "m", "cuda", "fp32", 64)
    batch = Batch(warmup([(4, 2)], 100, 0), [], True)
    with pytest.raises(CleanupError, match=r"(?s)ended with exit code 0.*GPU 0 still uses .*PIDs 42"):
        time_batches(Quitting(tmp_path), settings, batch, tmp_path / "x.log")


def test_a_batch_beyond_the_context(tmp_path: Path):
    settings = small(tmp_path, input_len=1000, output_len=100, max_model_len=None)
    with pytest.raises(UsageError, match="exceed the context of 1024"):
        run_online(settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [{"settle": 1}, {"min_duration": 1}])
def test_a_batch_is_not_run_again_with_a_prefix_cache(tmp_path: Path, given: dict[str, Any]) -> None:
    settings = small(tmp_path, prefix_cache=True, **given)
    with pytest.raises(UsageError, match="again from its prefix cache"):
        run_online(settings)


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
def batch(tmp_path: Path) -> OnlineSettings:
    batch = OfflineSettings(
        engines="roseinfer,openai", model="random:gpt2-tiny", device="cpu", out=tmp_path / "runs",
        num_prompts=3, input_len=8, output_len="uniform:2:5", repeats=CELLS, max_model_len=64,
    )  # fmt: skip
    return OnlineSettings.of_batch(batch)


def ended_early(batch: OnlineSettings, engines: Engines, cell: int) -> Path:
    """The folder of a run that its user ended in `cell`."""
    engines.ends[cell] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run_online(batch, notify=engines)
    folder: Path = engines.of(Started)[0].folder
    engines.events.clear()
    return folder


def test_a_resumed_run_is_that_of_an_uninterrupted_one(batch: OnlineSettings, engines: Engines) -> None:
    _, whole = run_online(batch, notify=engines)
    for cell in (0, CELLS - 1):
        engines.events.clear()
        folder = ended_early(batch, engines, cell)
        before = journal(folder) if cell else []
        so_far = results_so_far(folder)
        if cell:
            assert so_far is not None and len(so_far.results) == cell
            [fact] = [fact for fact in facts_of(load_run(folder)) if fact.kind == "interrupted"]
            assert (fact.values["measured"], fact.values["cells"]) == (cell, CELLS)
        else:
            assert so_far is None
            with pytest.raises(UsageError, match="is not finished") as raised:
                load_run(folder)
            assert f"bench offline --resume {folder}" in raised.value.hint
        same, results = resume_online(folder, engines)
        assert same == folder and [e.cell.index for e in engines.of(CellDone)] == [*range(cell, CELLS)]
        assert journal(folder)[:cell] == before
        assert [line["cell"] for line in journal(folder)] == [*range(CELLS)]
        for row, uninterrupted in zip(results.results, whole.results, strict=True):
            assert row.completion_tokens == uninterrupted.completion_tokens
            assert row.total_s == pytest.approx(uninterrupted.total_s)
        assert not results.meta.interrupted


def test_what_failed_is_tried_again_and_stands_in_its_place(batch: OnlineSettings, engines: Engines) -> None:
    engines.ends[0] = EngineError("it died", "see its log")
    folder, results = run_online(batch, notify=engines)
    assert len(results.results) == CELLS - 1
    assert [fault.repeat for fault in results.skipped] == [None, 0]
    engines.events.clear()
    _, again = resume_online(folder, engines)
    assert [e.cell.index for e in engines.of(CellDone)] == [0]
    assert [fault.label for fault in again.skipped] == ["openai"]
    assert [(row.label, row.repeat) for row in again.results] == again.meta.order


def test_where_everything_failed_it_is_said_why(batch: OnlineSettings, engines: Engines) -> None:
    engines.ends = {cell: EngineError("it died", "see its log") for cell in range(CELLS)}
    with pytest.raises(NothingMeasuredError) as raised:
        run_online(batch, notify=engines)
    assert raised.value.message.count("it died") == 1 and raised.value.hint == "see its log"


def test_an_engine_that_the_interruption_ended_has_not_failed(batch, engines):
    error = EngineError("it ended", "")
    error.__context__ = KeyboardInterrupt()
    engines.ends[1] = error
    with pytest.raises(KeyboardInterrupt):
        run_online(batch, notify=engines)
    [folder] = (batch.out or Path()).iterdir()
    assert [fault["label"] for fault in json.loads((folder / "skipped.json").read_text())] == ["openai"]


def test_a_folder_in_which_nothing_was_to_be_measured(batch: OnlineSettings, engines: Engines) -> None:
    folder = ended_early(batch, engines, 1)
    edit(folder / "run.json", lambda run: run["order"].clear())
    with pytest.raises(UsageError, match="nothing was to be measured"):
        resume_online(folder, engines)
