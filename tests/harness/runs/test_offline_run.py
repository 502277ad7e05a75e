"""`bench offline` with the real roseinfer: through its server and in the worker's process."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.cli.ending import print_ending
from harness.cli.progress import make_display
from harness.compare.stored_run import StoredRun
from harness.engines.adapters.roseinfer import Roseinfer
from harness.engines.base import EngineSettings, EngineVariant, Installation, Launch, Server
from harness.engines.local import OfflineFactory
from harness.engines.registry import LOCAL
from harness.engines.variants import Variant
from harness.errors import CleanupError, EngineError, UsageError
from harness.models import resolve
from harness.report.render import write_run_outputs
from harness.runs.events import EngineStarting
from harness.runs.in_process import Batch, time_batches
from harness.runs.reader import load_run
from harness.schema.machines import MachineLoad
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.setting_types import EngineRef
from harness.schema.settings import OfflineSettings
from harness.telemetry import gpu
from harness.telemetry.cell_monitor import CellMonitor
from harness.telemetry.gpu import GpuReader
from harness.workload import closed_loop
from tests.harness.measured import run_online

pytestmark = pytest.mark.integration


def small(out: Path, engines: str = "roseinfer", **given: Any) -> OnlineSettings:
    quick: dict[str, Any] = {
        "engines": engines, "model": "random:gpt2-tiny", "device": "cpu", "dtype": "fp32", "out": out,
        "num_prompts": 3,
        "input_len": "uniform:2:20", "output_len": "uniform:1:7", "seed": 4, "max_model_len": 64,
    }  # fmt: skip
    return OnlineSettings.of_batch(OfflineSettings(**quick | given))


def test_both_ways_are_measured_and_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    windows: list[float] = []

    def busy(monitor: CellMonitor, begin: float, end: float) -> MachineLoad:
        assert monitor.readings[0].t <= begin < end <= monitor.readings[-1].t
        assert monitor.readings[0].gpus == (), "of this machine's GPUs, none: the engine is on its CPU"
        windows.append(end - begin)
        others = {"foreign_cores_mean": 0.9, "foreign_cores_max": 1, "steal_share": 0}
        return MachineLoad(seconds=end - begin, samples=2, cpus=2, own_cpu_s=1, **others)

    monkeypatch.setattr(CellMonitor, "summary", busy)
    monkeypatch.setattr(
        GpuReader, "__init__", lambda reader, most: reader.__dict__.update(_handles=[None][:most])
    )
    monkeypatch.setattr(GpuReader, "close", lambda reader: None)
    settings = small(tmp_path, "roseinfer,openai", settle=0.1, min_duration=0.3)
    folder, results = run_online(settings, ["bench", "offline"], lambda event: None)
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
    check_what_is_noticed(folder, capsys)


def check_what_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was short, and the machine busy: in the terminal, the report, summary.md, the CSV and the JSON."""
    write_run_outputs(folder)
    with make_display(quiet=False) as display:
        print_ending(load_run(folder), display)
    shown = [
        capsys.readouterr().err,
        *((folder / file).read_text() for file in ("report.html", "summary.md")),
    ]
    for text in ("Cells are short.", "Other programs ran in cells of "):
        assert all(text in page for page in shown)
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert rows and all("foreign_load" in row["notices"].split() for row in rows)
    stored = StoredRun.read(folder)
    disturbances = [stored.disturbed(label, load) for label in stored.cells for load in stored.loads]
    assert [facts[0].scope.repeat for facts in disturbances] == [0, 0]


def test_a_worker_that_fails_shows_its_last_lines(tmp_path: Path):
    variant = Variant(label="x", offline={"no_such_setting": 1})
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer@x"), variant, "roseinfer (x)")
    model = resolve("random:gpt2-tiny").path
    settings = EngineSettings(engine_variant, model, "m", "cpu", "fp32", 64)
    batch = Batch(closed_loop(1, 4, 2, 100, 0), [], True)
    with pytest.raises(EngineError, match=r"(?s)exit code 1.*no_such_setting"):
        time_batches(LOCAL["roseinfer"], settings, batch, tmp_path / "x.log")


class Quitting(Roseinfer):
    """An engine whose in-process API ends the process as if all were well."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "quit.py"
        self.script.write_text("import os\nclass Quit:\n    def __init__(self, **_): os._exit(0)\n")

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        return OfflineFactory(f"{self.script}:Quit", {}, {})


def test_a_worker_that_ends_without_a_result_has_failed(tmp_path: Path):
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer"), Variant(), "roseinfer")
    settings = EngineSettings(engine_variant, resolve("random:gpt2-tiny").path, "m", "cpu", "fp32", 64)
    batch = Batch(closed_loop(1, 4, 2, 100, 0), [], True)
    with pytest.raises(EngineError, match="ended with exit code 0: it wrote nothing"):
        time_batches(Quitting(tmp_path), settings, batch, tmp_path / "x.log")


class Refusing(Roseinfer):
    """The mock server, which starts soon; an in-process API takes no such settings."""

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        words = (sys.executable, "-m", "harness.mock_server", "--host", settings.host, "--port", str(port))
        return Launch(words, settings.served_name, ready_path="/v1/models")

    def offline(self, installation: Installation, settings: EngineSettings) -> OfflineFactory:
        raise UsageError("no such batch", "give another")


class Clinging(Refusing):
    """An engine that leaves a process."""

    @contextmanager
    def open(self, settings: EngineSettings, log: Path, change: Any = None) -> Iterator[Server]:
        raise CleanupError("it could not be ended: PID 7", "kill -9 7")
        yield


def test_nothing_is_measured_beside_what_was_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOCAL, "roseinfer", Clinging())
    events: list[object] = []
    with pytest.raises(CleanupError, match="PID 7"):
        run_online(small(tmp_path, repeats=3), [], events.append)
    labels = [event.label for event in events if isinstance(event, EngineStarting)]
    assert labels[-1] == "roseinfer" and labels.count("roseinfer") == 1


def test_what_one_engine_refuses_the_others_may_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LOCAL, "roseinfer", Refusing())
    _, results = run_online(small(tmp_path), [], lambda event: None)
    assert [row.label for row in results.results] == ["roseinfer"]
    [skip] = results.skipped
    assert (skip.label, skip.repeat) == ("roseinfer (in-process)", 0)
    assert (skip.reason, skip.hint) == ("no such batch", "give another")


def test_a_worker_gives_its_memory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    readings = iter([[(10, 1000, [])], *[[(500, 1000, [42])]] * 1000])
    monkeypatch.setattr(gpu, "_memory", lambda: next(readings))
    monkeypatch.setattr(gpu, "PATIENCE_S", 0)
    engine_variant = EngineVariant(EngineRef.model_validate("roseinfer"), Variant(), "roseinfer")
    settings = EngineSettings(engine_variant, resolve("random:gpt2-tiny").path, "m", "cuda", "fp32", 64)
    batch = Batch(closed_loop(1, 4, 2, 100, 0), [], True)
    with pytest.raises(CleanupError, match=r"(?s)ended with exit code 0.*GPU 0 still uses .*PIDs 42"):
        time_batches(Quitting(tmp_path), settings, batch, tmp_path / "x.log")


def test_a_batch_beyond_the_context(tmp_path: Path):
    settings = small(tmp_path, input_len=1000, output_len=100, max_model_len=None)
    with pytest.raises(UsageError, match="exceed the context of 1024"):
        run_online(settings, [], lambda event: None)
    assert list(tmp_path.iterdir()) == []


def test_no_engine_at_all(tmp_path: Path):
    settings = small(tmp_path, "openai")
    with pytest.raises(UsageError, match="none of the engines can be measured"):
        run_online(settings, [], lambda event: None)


@pytest.mark.parametrize("given", [{"settle": 1}, {"min_duration": 1}])
def test_a_batch_is_not_run_again_with_a_prefix_cache(tmp_path: Path, given: dict[str, Any]) -> None:
    settings = small(tmp_path, prefix_cache=True, **given)
    with pytest.raises(UsageError, match="again from its prefix cache"):
        run_online(settings, ["bench"], lambda event: None)
