"""A run as it is kept: measured, failing, refused. Against real mock servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

from harness.engines import selection
from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.registry import get_engine
from harness.engines.running.address import Address
from harness.errors import BenchError, CleanupError, EngineError, UsageError
from harness.metrics.samples import split
from harness.records.cell import CellRecords
from harness.records.columns import REQUESTS
from harness.report.text import provenance
from harness.runs.events import EngineSkipped, EngineStarting, Started
from harness.runs.run_state import Run
from harness.schema.load import load_text
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.run_info import RunInfo, Versions
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, press_ctrl_c

pytestmark = pytest.mark.integration


def test_a_server_that_goes_costs_the_cells_that_are_left(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    watch = Watcher({1: server.end})
    folder, results = run_online(settings_for(server.url, repeats=2), notify=watch)
    faults = [(fault.load and fault.load.value, fault.repeat) for fault in results.skipped]
    assert faults == [(0.02, 1), (0.01, 1)]
    assert "no server answers" in results.skipped[0].reason and results.skipped[0].hint
    assert [event.skipped for event in watch.of(EngineSkipped)] == results.skipped
    assert {summary.num_error for summary in results.summaries} == {0}

    start_mock("--port", str(server.port))
    again = Watcher({2: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        resume_online(folder, again)
    assert OnlineResults.model_validate_json((folder / "online_results.json").read_bytes()) == results
    _, results = resume_online(folder, again)
    assert again.measured == [2, 3]
    assert results.skipped == [] and len(results.summaries) == 6
    kept = json.loads((folder / "skipped.json").read_text())
    assert [(entry["load"]["scale"], entry["repeat"]) for entry in kept] == [(0.02, 1), (0.01, 1)]


def test_a_cell_that_its_server_did_not_outlive_is_none(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()

    class EndsIt(Watcher):
        def __call__(self, event: Any) -> None:
            super().__call__(event)
            if len(self.of(EngineStarting)) == 1 and getattr(event, "progress", None):
                server.end()

    watch = EndsIt()
    with pytest.raises(BenchError, match="nothing could be measured: openai: no server answers") as raised:
        run_online(settings_for(server.url), notify=watch)
    said = "; this was in the middle of the cell: 0 of 4 requests had been answered, and none of them count"
    assert raised.value.message.count("no server answers") == 1 and raised.value.exit_code == 3
    assert raised.value.message.endswith(said)
    first, *others = [event.skipped for event in watch.of(EngineSkipped)]
    assert others and (first.reason, first.cause) == (others[0].reason + said, others[0].reason)
    assert {other.cause for other in others} == {""}


def test_reasons_of_which_one_begins_like_another_are_both_said(shared_mock, settings_for, monkeypatch):
    """The same text, and more: two reasons, unless the cell was lost in its middle."""
    faults = iter(["it is full", "it is full; the disk too"])

    class Full:
        def __init__(self, *given: Any) -> None:
            raise EngineError(next(faults), "")

    monkeypatch.setattr("harness.runs.block.CellRunner", Full)
    with pytest.raises(BenchError) as raised:
        run_online(settings_for(shared_mock.url, repeats=2))
    assert raised.value.message.endswith("openai: it is full; openai: it is full; the disk too")


def test_one_at_a_time(shared_mock: Any, settings_for: Make) -> None:
    def meddle() -> None:
        with pytest.raises(UsageError, match="is still going on"):
            resume_online(watch.of(Started)[0].folder, Watcher())
        refused.append(True)

    refused: list[bool] = []
    watch = Watcher({0: meddle})
    run_online(settings_for(shared_mock.url, scales=[0.01]), notify=watch)
    assert refused == [True]


def test_an_engine_that_is_not_there(start_mock: Any, settings_for: Make, python_with: Any) -> None:
    python_with("vllm", {})
    server = start_mock()
    given = {"engines": "vllm,openai", "model": "random:gpt2-tiny", "accuracy": False, "scales": [0.01]}
    settings = settings_for(server.url, **given)
    watch = Watcher()
    folder, results = run_online(settings, notify=watch)
    [skipped] = results.skipped
    assert (skipped.label, skipped.load) == ("vLLM", None) and "not installed" in skipped.reason
    assert skipped.hint and [event.skipped for event in watch.of(EngineSkipped)] == [skipped]

    python_with("vllm", {"vllm": "1"})
    for name in ("journal.jsonl", "requests.parquet", "chunks.parquet"):
        (folder / name).unlink()
    again = Watcher()
    assert resume_online(folder, again)[1].skipped == [skipped]
    assert again.measured == [0]


def test_a_variant_that_the_installed_version_does_not_know(settings_for, tmp_path, monkeypatch):
    file = tmp_path / "engines.yaml"
    file.write_text("roseinfer: {variants: {x: {label: x, args: [--no-such-option]}}}")
    monkeypatch.setenv("BENCH_ENGINES", str(file))
    settings = OnlineSettings(engines="roseinfer@x", model="random:gpt2-tiny", out=tmp_path / "runs")
    with pytest.raises(UsageError, match="has no option --no-such-option"):
        run_online(settings)
    assert not (tmp_path / "runs").exists()


class Clinging(OpenAI):
    """A server that leaves a process."""

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        with super().open(settings, log) as server:
            yield server
        raise CleanupError("it could not be ended: PID 7", "kill -9 7")


def test_nothing_is_measured_beside_what_was_left_behind(shared_mock, settings_for, monkeypatch):
    def get(name: Any, *given: Address | None) -> Engine:
        return Clinging(*given)

    monkeypatch.setattr(selection, "get_engine", get)
    watch = Watcher()
    with pytest.raises(CleanupError):
        run_online(settings_for(shared_mock.url, scales=[0.01], repeats=2), notify=watch)
    assert watch.measured == [0]
    monkeypatch.setattr(selection, "get_engine", get_engine)
    assert resume_online(watch.of(Started)[0].folder, watch)[1].skipped == []
    assert watch.measured == [0, 1]


def test_a_folder_with_run_json_holds_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed as it begins leaves no run rather than one that has lost what is missing."""
    info = RunInfo(
        created="now", command=[], settings=OnlineSettings(engines="vllm"),
        versions=Versions(rosebench="1", python="3"),
    )  # fmt: skip
    write_whole = Mock(side_effect=OSError("no space"))
    monkeypatch.setattr("harness.runs.run_state.write_whole", write_whole)
    with pytest.raises(OSError, match="no space"):
        Run.create(tmp_path, info, [])
    assert not [*tmp_path.iterdir()]


def test_engines_are_in_the_order_asked_for(tmp_path: Path) -> None:
    """In the order of the settings: this seed measures the second engine first."""
    settings = OnlineSettings(engines="vllm,roseinfer", repeats=2, seed=2)
    info = RunInfo(
        created="now", command=[], settings=settings,
        versions=Versions(rosebench="1", python="3"),
    )  # fmt: skip
    run = Run.create(tmp_path, info, [])
    cells = run.cells()
    order = [("roseinfer", 0), ("vLLM", 0), ("vLLM", 1), ("roseinfer", 1)]
    assert [(cell.engine_variant.label, cell.repeat) for cell in cells] == order == info.order
    measured: Any = SimpleNamespace(meta=info, repeats=[SimpleNamespace(label="roseinfer", repeat=0)])
    assert provenance.order(measured) == ["repeat 1: roseinfer, vLLM", "repeat 2: vLLM, roseinfer"]
    measured.meta = info.model_copy(update={"interrupted": True})
    assert provenance.order(measured) == ["repeat 1: roseinfer"]
    for cell in cells:
        ref = cell.engine_variant.ref
        known = {
            "cell": cell.index, "engine": ref.name, "label": cell.engine_variant.label,
            "load": load_text(cell.load),
            "repeat": cell.repeat, "request": 0, "input_tokens": 1, "output_tokens": 2, "t_sched": 0.0,
            "t_sent": 0.0, "t_first": 0.1, "t_last": 0.2, "t_end": 0.2, "completion_tokens": 2, "chunks": 2,
        }  # fmt: skip
        requests = pd.DataFrame([{name: known.get(name) for name in REQUESTS.names}])
        chunks = pd.DataFrame({"cell": cell.index, "request": 0, "t": [0.1, 0.2], "tokens": 1})
        [group] = split(requests, chunks)
        run.keep(cell, CellRecords(requests, chunks), group, lambda event: None)
    _, results = resume_online(tmp_path)
    assert list(dict.fromkeys(summary.label for summary in results.summaries)) == ["vLLM", "roseinfer"]
    assert {(comparison.a, comparison.b) for comparison in results.comparisons} == {("vLLM", "roseinfer")}
