"""`bench tune` on an engine that is the mock server, whose best settings are known."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import psutil
import pytest
import yaml

from harness.cluster.this_machine import ThisMachine, ThisTestbed
from harness.compare.stored_run import StoredRun
from harness.engines import registry
from harness.engines.base import Engine, EngineSettings, Installation, Launch, Server
from harness.engines.local import LocalEngine
from harness.engines.placement import CpuSplit
from harness.errors import UsageError
from harness.runs.events import CellDone, CellsExpected, Started
from harness.runs.folder import resume_command
from harness.runs.reader import load_run
from harness.runs.tune_plan import plan_tuning
from harness.runs.tuning import Halving
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from harness.schema.tune import TunePlan
from tests.harness.measured import resume_online, run_online

from .conftest import Watcher, interrupted, journal, report_of

Plan = Callable[..., tuple[OnlineSettings, TunePlan]]
MODULE = "harness.mock_server"


class Mock(LocalEngine):
    name = "roseinfer"  # whose place it takes: names of engines are those that are installed
    display = "Mock"
    distributions = ("rosebench",)
    install = "it is there"
    module = MODULE

    def find(self) -> Installation:
        return Installation(self.name, "1", "rosebench", Path(sys.executable), "here")

    def command(self, installation: Installation, settings: EngineSettings, port: int) -> Launch:
        words = (*self.program(installation), "--host", settings.host, "--port", str(port))
        argv = (*words, "--ttft-ms", "5", "--itl-ms", "8")
        return Launch(argv, settings.served_name, ready_path="/v1/models")


@pytest.fixture
def mock_engine(monkeypatch: pytest.MonkeyPatch, integration: None) -> None:
    monkeypatch.setitem(registry.LOCAL, "roseinfer", Mock())


@pytest.fixture
def plan_for(tmp_path: Path, mock_engine: None) -> Plan:
    """Plans a short tuning over a space."""

    def make(args: dict[str, Any], **given: Any) -> tuple[OnlineSettings, TunePlan]:
        file = tmp_path / "space.yaml"
        file.write_text(yaml.safe_dump({"engine": "roseinfer", "args": args}))
        off = ("calibrate", "check_answers", "accuracy", "server_metrics")
        quick: dict[str, Any] = dict.fromkeys(off, False)
        quick |= {"warmup": 0, "n": 6, "concurrency": [2], "input_len": 4, "output_len": 6, "device": "cpu"}
        settings = OnlineSettings(
            engines=["roseinfer"], model="random:gpt2-tiny", out=tmp_path / "runs", repeats=2, **quick
        )
        usual: dict[str, Any] = {"configurations": 3, "reduction": 2, "finalists": 1}
        usual |= {"objective": "tpot_p50", "limits": None}
        return plan_tuning(settings, file, **usual | given)

    return make


def outcome(results: OnlineResults) -> dict[object, object]:
    assert results.tune is not None
    return {found.settings.get("--itl-ms"): found.state for found in results.tune.configurations}


def mock_servers() -> set[psutil.Process]:
    """Mock servers of this process: those of the test, and those that other tests of the session share."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if MODULE in " ".join(child.cmdline())}


def test_the_best_setting_is_found_after_an_interruption(plan_for, monkeypatch):
    settings, plan = plan_for({"--itl-ms": [2, 20]}, configurations=2)
    shared = mock_servers()
    folder = interrupted(settings, 1, None, plan)
    assert mock_servers() <= shared
    assert resume_command(folder) == f"bench tune --resume {folder}"
    before = journal(folder)
    again = Watcher()
    _, results = resume_online(folder, again)
    assert journal(folder)[:2] == before and len(again.of(CellDone)) == len(journal(folder)) - 2
    assert outcome(results)[2] == "finalist" and outcome(results)[None] == "default"
    assert results.tune is not None
    [finalist] = results.tune.finalists
    assert finalist.repeats == (2, 2) and (finalist.ratio or 1) < 0.7
    assert {summary.label for summary in results.summaries} == {"Mock", finalist.label}
    assert all(s.repeat is None or s.repeat >= plan.rounds for s in results.summaries)
    read = load_run(folder)
    assert read.disagreements == []
    assert read.results.tune == results.tune
    kept = StoredRun.read(folder)
    assert {label: [len(each) for each in loads.values()] for label, loads in kept.cells.items()} == {
        "Mock": [2],
        finalist.label: [2],
    }
    monkeypatch.setattr("harness.runs.online.machines_of", lambda settings: pytest.fail("nothing is left"))
    _, same = resume_online(folder, last := Watcher())
    assert same.tune == results.tune and not last.of(CellDone)
    assert last.of(Started)[0].done == last.of(Started)[0].cells


class NamedTestbed(ThisTestbed):
    """This machine under a name. Its first server waits until all of `both` are asked for one."""

    def __init__(self, name: str, both: Barrier) -> None:
        super().__init__(CpuSplit(None, None))
        self.node, self._both, self._first = name, both, True

    @contextmanager
    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> Iterator[Server]:
        if self._first:
            self._first = False
            self._both.wait(60)
        with super().serve(engine, settings, log) as server:
            yield server


class TwoMachines(ThisMachine):
    """Two sets of machines."""

    def __init__(self, both: Barrier) -> None:
        self.testbeds = [NamedTestbed(name, both) for name in ("a", "b")]


def test_configurations_are_measured_side_by_side(plan_for: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter([Barrier(2), Barrier(1)])  # of the run, and of what is left of it

    @contextmanager
    def machines_of(settings: OnlineSettings) -> Iterator[TwoMachines]:
        yield TwoMachines(next(first))

    monkeypatch.setattr("harness.runs.online.machines_of", machines_of)
    settings, plan = plan_for({"--itl-ms": [2, 20]}, configurations=2)
    settings = settings.model_copy(update={"cluster": "auto", "side_by_side": 2})
    shared = mock_servers()
    folder = interrupted(settings, 1, None, plan)
    assert mock_servers() <= shared
    before = journal(folder)
    _, results = resume_online(folder)
    entries = journal(folder)
    assert entries[: len(before)] == before
    cells = [(entry["label"], entry["repeat"]) for entry in entries]
    assert len({*cells}) == len(cells) and len({entry["cell"] for entry in entries}) == len(cells)
    assert {entry["node"] for entry in entries if entry["repeat"] == 0} == {"a", "b"}
    compared = {(entry["repeat"], entry["node"]) for entry in entries if entry["repeat"] >= plan.rounds}
    assert compared == {(plan.rounds + repeat, "ab"[repeat]) for repeat in range(settings.repeats)}
    assert results.tune is not None and outcome(results)[2] == "finalist"
    [finalist] = results.tune.finalists
    assert finalist.repeats == (2, 2) and (finalist.ratio or 1) < 0.7
    assert {summary.label for summary in results.summaries} == {"Mock", finalist.label}


def test_a_setting_with_which_the_server_does_not_start_is_left_out(plan_for, monkeypatch):
    """Others are measured as often as can be, and no cell has a number above the expected."""
    monkeypatch.setattr(Halving, "goes_on", lambda *measured: True)
    settings, plan = plan_for({"--itl-ms": ["fast", 2, 9]})
    folder, results = run_online(settings, ["bench"], watch := Watcher(), tune=plan)
    found = outcome(results)
    assert (found[None], found["fast"], found[2]) == ("default", "failed", "finalist")
    assert results.skipped == []
    assert results.tune is not None
    [failed] = [found for found in results.tune.configurations if found.state == "failed"]
    log = folder / "logs" / f"roseinfer.{failed.variant}.server.log"
    assert "invalid float value: 'fast'" in failed.reason and str(log) in failed.reason
    assert "invalid float value" in log.read_text()
    assert failed.reason in html.unescape(report_of(folder))

    expected, numbers = 0, []
    for event in watch.events:
        match event:
            case Started(_, expected) | CellsExpected(expected):
                pass
            case CellDone(cell, _):
                numbers.append(cell.index + 1)
                assert cell.index < expected
    assert numbers[-1] == expected >= plan.cells(settings.repeats)


@pytest.mark.parametrize(
    ("args", "given", "says"),
    [
        ({"--fast": [1]}, {}, "has no option --fast"),
        ({}, {}, "has neither args nor env"),
        ({"--itl-ms": {"values": [1], "device": "cuda"}}, {}, "has nothing for a cpu device"),
        ({"--itl-ms": [2]}, {"objective": "speed"}, "there is no statistic 'speed'"),
        ({"--itl-ms": [2]}, {"objective": "error_rate"}, "cannot be improved"),
        ({"--itl-ms": [2]}, {"limits": "ttft_p99<=1s"}, "at least 100 requests"),
        ({"--itl-ms": [2]}, {"limits": "goodput_req_per_s>=1"}, "is on requests within limits"),
    ],
)
def test_what_cannot_be_tuned_says_why(plan_for: Plan, args: Any, given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan_for(args, **given)
