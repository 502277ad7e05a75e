"""A run as it is kept: interrupted, gone on with, failing, refused. Against real mock servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.registry import get_engine
from harness.errors import BenchError, CleanupError, UsageError
from harness.records.cell import CellRecords
from harness.records.columns import REQUESTS
from harness.records.parquet import write_cell
from harness.report.render import write_run_outputs
from harness.runs import resolve
from harness.runs.events import CellDone, EngineSkipped, EngineStarting, Event, Started
from harness.runs.journal import JournalEntry
from harness.runs.online import resume_online, run_online
from harness.runs.run_state import Run
from harness.schema.load import ClosedLoop, TraceLoad, load_text
from harness.schema.results import OnlineResults, OnlineRunInfo, Versions
from harness.schema.settings import OnlineSettings

pytestmark = pytest.mark.integration

Act = Callable[[], object]
Make = Callable[..., OnlineSettings]


@dataclass
class Watcher:
    """Takes a run's events; when a cell is done it does what it was told to do then."""

    after_cell: dict[int, Act] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, CellDone):
            self.after_cell.get(event.cell.index, lambda: None)()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def measured(self) -> list[int]:
        return [event.cell.index for event in self.of(CellDone)]


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def settings_for(tmp_path: Path) -> Callable[..., OnlineSettings]:
    """Settings of a short run against a server at an address."""

    def make(url: str, **given: Any) -> OnlineSettings:
        quick = {"max_model_len": 1024, "n": 4, "scales": [0.02, 0.01], "warmup": 0}
        quick |= {"calibrate": False, "check_answers": False}
        return OnlineSettings(base_url=url, out=tmp_path / "runs", **quick | given)

    return make


def interrupted(settings: OnlineSettings, cell: int = 0) -> Path:
    """The folder of a run that the user ended when `cell` was done."""
    watch = Watcher({cell: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        run_online(settings, ["bench"], watch)
    folder: Path = watch.of(Started)[0].folder
    assert not (folder / "online_results.json").exists()
    return folder


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_run_that_was_interrupted_is_finished(start_mock: Any, settings_for: Make) -> None:
    folder = interrupted(settings_for(start_mock().url, repeats=2, warmup=1))
    before = (folder / "journal.jsonl").read_text()
    watch = Watcher()
    same, results = resume_online(folder, watch)
    assert same == folder
    assert watch.of(Started)[0].done == 1
    assert watch.measured == [1, 2, 3]
    assert (folder / "journal.jsonl").read_text().startswith(before)
    assert [line["cell"] for line in journal(folder)] == [0, 1, 2, 3]
    requests = pd.read_parquet(folder / "requests.parquet")
    assert not requests.duplicated(["cell", "request"]).any() and len(requests) == 4 * 4
    assert results == OnlineResults.model_validate_json((folder / "online_results.json").read_bytes())
    assert {(one.load.value, one.repeat) for one in results.summaries} == {
        (scale, repeat) for scale in (0.02, 0.01) for repeat in (0, 1, None)
    }
    assert results.skipped == [] and not (folder / "raw").exists()


def in_flight(requests: pd.DataFrame) -> int:
    """The most requests of a cell that were sent and had not ended."""
    begun, ended = requests["t_sent"], requests["t_end"]
    return max(int(((begun <= t) & (ended > t)).sum()) for t in begun)


def test_a_sweep_interrupted_in_its_middle_is_finished(start_mock: Any, settings_for: Make) -> None:
    """1, 2 and 4 requests in flight against one server, whichever order they are asked for in."""
    closed = {"concurrency": "4,1,2", "n": 5, "rounds": 3, "input_len": 9, "output_len": 4}
    folder = interrupted(settings_for(start_mock().url, scales=[1.0], **closed), cell=1)
    watch = Watcher()
    _, results = resume_online(folder, watch)
    assert watch.measured == [2]
    assert [line["load"]["concurrency"] for line in journal(folder)] == [1, 2, 4]
    pooled = [one for one in results.summaries if one.repeat is None]
    assert [(one.load, one.num_success) for one in pooled] == [
        (ClosedLoop(concurrency=count), sent) for count, sent in ((1, 5), (2, 6), (4, 12))
    ]
    requests = pd.read_parquet(folder / "requests.parquet")
    found = {json.loads(load)["concurrency"]: in_flight(rows) for load, rows in requests.groupby("load")}
    assert found == {1: 1, 2: 2, 4: 4}
    assert [one.possible for one in results.prefixes] == [0, 0, 0]
    page = write_run_outputs(folder).read_text()
    assert all(f"{held} in flight" in page for held in (1, 2, 4)) and "scale 1" not in page
    assert "Load grows to the right." in page and "<summary>4 in flight</summary>" in page


def test_a_complete_run_is_only_written_again(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    folder, results = run_online(settings_for(server.url, scales=[0.01]), ["bench"], Watcher())
    server.end()
    kept = {path: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".jsonl")}
    (folder / "online_results.json").unlink()
    watch = Watcher()
    assert resume_online(folder, watch) == (folder, results)
    assert watch.of(CellDone) == watch.of(EngineStarting) == []
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_server_that_goes_costs_the_cells_that_are_left(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    watch = Watcher({1: server.end})
    folder, results = run_online(settings_for(server.url, repeats=2), ["bench"], watch)
    assert [(one.load and one.load.value, one.repeat) for one in results.skipped] == [(0.02, 1), (0.01, 1)]
    assert "no server answers" in results.skipped[0].reason and results.skipped[0].hint
    assert [event.skipped for event in watch.of(EngineSkipped)] == results.skipped
    assert {one.num_error for one in results.summaries} == {0}

    start_mock("--port", str(server.port))
    again = Watcher({2: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        resume_online(folder, again)
    assert OnlineResults.model_validate_json((folder / "online_results.json").read_bytes()) == results
    _, results = resume_online(folder, again)
    assert again.measured == [2, 3]
    assert results.skipped == [] and len(results.summaries) == 6
    kept = json.loads((folder / "skipped.json").read_text())
    assert [(one["load"]["scale"], one["repeat"]) for one in kept] == [(0.02, 1), (0.01, 1)]


def test_a_fault_of_the_first_part_is_in_the_results_of_the_second(
    start_mock: Any, settings_for: Make
) -> None:
    server = start_mock()
    folder, _ = run_online(settings_for(server.url), ["bench"], Watcher({0: server.end}))
    _, results = resume_online(folder, Watcher())
    assert [(one.label, one.load) for one in results.skipped] == [("openai", TraceLoad(scale=0.01))]
    assert len(json.loads((folder / "skipped.json").read_text())) == 1


def test_a_cell_that_its_server_did_not_outlive_is_none(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()

    class EndsIt(Watcher):
        def __call__(self, event: Any) -> None:
            super().__call__(event)
            if len(self.of(EngineStarting)) == 1 and getattr(event, "progress", None):
                server.end()

    with pytest.raises(BenchError, match="nothing could be measured: openai: no server answers") as raised:
        run_online(settings_for(server.url), ["bench"], EndsIt())
    assert raised.value.message.count("no server answers") == 1 and raised.value.exit_code == 3


def test_nothing_listens(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    server.end()
    watch = Watcher()
    with pytest.raises(BenchError, match=f"no server answers at 127.0.0.1:{server.port}") as raised:
        run_online(settings_for(server.url), ["bench"], watch)
    assert "start it" in raised.value.hint
    folder = watch.of(Started)[0].folder
    start_mock("--port", str(server.port))
    assert len(resume_online(folder, Watcher())[1].summaries) == 4


def test_one_at_a_time(start_mock: Any, settings_for: Make) -> None:
    def meddle() -> None:
        with pytest.raises(UsageError, match="is still going on"):
            resume_online(watch.of(Started)[0].folder, Watcher())
        told.append(True)

    told: list[bool] = []
    watch = Watcher({0: meddle})
    run_online(settings_for(start_mock().url, scales=[0.01]), ["bench"], watch)
    assert told == [True]


@pytest.fixture
def python_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str]], None]:
    """Makes an interpreter that says it has these versions, and names it for an engine."""

    def make(engine: str, versions: dict[str, str]) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho '{json.dumps({'python': '3', **versions})}'\n")
        python.chmod(0o755)
        config = tmp_path / "engines.yaml"
        config.write_text(f"{engine}: {{python: {python}}}\n")
        monkeypatch.setenv("BENCH_ENGINES", str(config))

    return make


def test_an_engine_that_is_not_there(start_mock: Any, settings_for: Make, python_with: Any) -> None:
    python_with("vllm", {})
    server = start_mock()
    settings = settings_for(server.url, engines="vllm,openai", model="random:gpt2-tiny", scales=[0.01])
    watch = Watcher()
    folder, results = run_online(settings, ["bench"], watch)
    [skipped] = results.skipped
    assert (skipped.label, skipped.load) == ("vLLM", None) and "not installed" in skipped.reason
    assert skipped.hint and [event.skipped for event in watch.of(EngineSkipped)] == [skipped]

    python_with("vllm", {"vllm": "1"})
    (folder / "journal.jsonl").unlink()
    again = Watcher()
    assert resume_online(folder, again)[1].skipped == [skipped]
    assert again.measured == [0]


def test_none_is_there(settings_for: Make, python_with: Any, tmp_path: Path) -> None:
    python_with("vllm", {})
    with pytest.raises(UsageError, match="none of the engines is installed: vLLM: not installed: "):
        run_online(OnlineSettings(engines="vllm", out=tmp_path / "runs"), ["bench"], Watcher())
    assert not (tmp_path / "runs").exists()


def test_what_has_changed_since_is_refused(
    start_mock: Any, settings_for: Make, python_with: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n0.1,6,6\n")
    settings = settings_for(
        start_mock().url, engines="openai,roseinfer", model="random:gpt2-tiny", trace=str(trace)
    )
    folder = interrupted(settings)

    python_with("roseinfer", {})
    with pytest.raises(UsageError, match="roseinfer is part of the run and not here any more"):
        resume_online(folder, Watcher())

    launch = {"engine": "roseinfer", "label": "roseinfer", "version": "0.1"}
    edit(folder / "run.json", lambda run: run["launches"].append(launch))
    python_with("roseinfer", {"rosebench": "0.2"})
    with pytest.raises(UsageError, match=r"roseinfer was 0\.1 in the run and is 0\.2 now"):
        resume_online(folder, Watcher())

    edit(folder / "run.json", lambda run: run["launches"].pop())
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n0.1,6,7\n")
    with pytest.raises(UsageError, match="the trace is not the one"):
        resume_online(folder, Watcher())

    edit(folder / "run.json", lambda run: run["settings"].update(scales=[3.0]))
    with pytest.raises(UsageError, match=r"cell 0 of .* is not one of the run's settings"):
        resume_online(folder, Watcher())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no run: there is no run\.json"),
        ("{", r"run\.json is not as .*: Invalid JSON"),
        ({"created": None}, r"run\.json is not as .*: online.created: Input should be"),
        ({"settings": {"nn": 1}}, r"run\.json is not as .*: online.settings.nn: "),
        ({"schema_version": 1}, r"run\.json is of schema 1"),
        ({"kind": "offline"}, "is an offline run, which cannot be resumed"),
    ],
)
def test_what_is_no_run(content: Any, message: str, tmp_path: Path) -> None:
    whole = {
        "schema_version": 2, "kind": "online", "created": "now", "command": [], "settings": {},
        "versions": {"rosebench": "1", "python": "3"},
    }  # fmt: skip
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(whole | content)
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message) as raised:
        resume_online(tmp_path, Watcher())
    assert "\n" not in raised.value.message
    with pytest.raises(UsageError, match="holds no run: No such file"):
        resume_online(tmp_path / "absent", Watcher())


def test_a_variant_that_the_installed_version_does_not_know(
    settings_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "roseinfer.yaml").write_text("variants: {x: {label: x, args: [--no-such-option]}}")
    monkeypatch.setattr("harness.engines.base.CONFIGS", tmp_path)
    settings = OnlineSettings(engines="roseinfer@x", model="random:gpt2-tiny", out=tmp_path / "runs")
    with pytest.raises(UsageError, match="has no option --no-such-option"):
        run_online(settings, ["bench"], Watcher())
    assert not (tmp_path / "runs").exists()


class Clinging(OpenAI):
    """A server of which something stays behind."""

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        with super().open(settings, log) as server:
            yield server
        raise CleanupError("it could not be ended: PID 7", "kill -9 7")


def test_nothing_is_measured_beside_what_was_left_behind(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(name: Any, url: str | None, key: str | None) -> Engine:
        return Clinging(url, key)

    monkeypatch.setattr(resolve, "get_engine", get)
    watch = Watcher()
    with pytest.raises(CleanupError):
        run_online(settings_for(start_mock().url, repeats=2), ["bench"], watch)
    assert watch.measured == [0, 1]
    monkeypatch.setattr(resolve, "get_engine", get_engine)
    assert resume_online(watch.of(Started)[0].folder, watch)[1].skipped == []
    assert watch.measured == [0, 1, 2, 3]


def test_engines_stand_in_the_order_asked_for(tmp_path: Path) -> None:
    """Whatever the order in which they were measured: this seed takes the second engine first."""
    settings = OnlineSettings(engines="vllm,roseinfer", repeats=2, seed=3)
    info = OnlineRunInfo(
        created="now", command=[], settings=settings,
        versions=Versions(rosebench="1", python="3"),
    )  # fmt: skip
    run = Run.create(tmp_path, info, [])
    cells = [cell for block in run.blocks() for cell in block.cells]
    assert [cell.contender.label for cell in cells][:2] == ["roseinfer", "vLLM"]
    for cell in cells:
        ref = cell.contender.ref
        known = {
            "cell": cell.index, "engine": ref.name, "label": cell.contender.label,
            "load": load_text(cell.load),
            "repeat": cell.repeat, "request": 0, "input_tokens": 1, "output_tokens": 2, "t_sched": 0.0,
            "t_sent": 0.0, "t_first": 0.1, "t_last": 0.2, "t_end": 0.2, "completion_tokens": 2, "chunks": 2,
        }  # fmt: skip
        requests = pd.DataFrame([{name: known.get(name) for name in REQUESTS.names}])
        chunks = pd.DataFrame({"cell": cell.index, "request": 0, "t": [0.1, 0.2], "tokens": 1})
        write_cell(tmp_path, cell.index, CellRecords(requests, chunks))
        entry = JournalEntry(
            cell=cell.index, engine=ref.name, label=cell.contender.label, load=cell.load,
            repeat=cell.repeat, finished="now",
        )  # fmt: skip
        run.finish(entry)
    _, results = resume_online(tmp_path, Watcher())
    assert list(dict.fromkeys(one.label for one in results.summaries)) == ["vLLM", "roseinfer"]
    assert {(one.a, one.b) for one in results.comparisons} == {("vLLM", "roseinfer")}
