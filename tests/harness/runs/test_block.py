"""A run that is interrupted as its nodes end: their loss is no fault of the cells."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.testbed import Testbed
from harness.cluster.this_machine import ThisMachine, ThisTestbed
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.placement import physical_cores, split
from harness.errors import BenchError, LostNodeError
from harness.runs.events import EngineSkipped, Event, Started
from harness.runs.run_state import Run
from tests.harness.measured import resume_online, run_online

from .conftest import Watcher, press_ctrl_c

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag")]


def here() -> ThisTestbed:
    return ThisTestbed(split(physical_cores()))


class Lost(ThisTestbed):
    """Its node is lost, at once or when the run ends."""

    def __init__(self, *, at_the_end: bool) -> None:
        super().__init__(split(physical_cores()))
        self._ends = threading.Event()
        if not at_the_end:
            self._ends.set()

    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> Any:
        assert self._ends.wait(60)
        raise LostNodeError("node vm-1 was lost: its process ended", "see `ray status`")

    def abandon(self) -> None:
        self._ends.set()


class FailsToStop(ThisTestbed):
    """Its node does not end the server any more."""

    @contextmanager
    def serve(self, engine: Engine, settings: EngineSettings, log: Path) -> Iterator[Server]:  # type: ignore[override]
        with super().serve(engine, settings, log) as server:
            try:
                yield server
            finally:
                raise BenchError("node vm-1: RuntimeError: it is shutting down")


class AtASkip(Watcher):
    """Presses Ctrl-C where a cell is skipped."""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, EngineSkipped):
            press_ctrl_c()


class AtTheEnd(Watcher):
    """Presses Ctrl-C as the machines of a run of which nothing could be measured are given back."""

    @contextmanager
    def machines(self, settings: Any) -> Iterator[ThisMachine]:
        try:
            yield ThisMachine()
        except BenchError:
            press_ctrl_c()


@pytest.fixture
def interrupted_on(start_mock, settings_for, monkeypatch):
    """The run, read back, of two repeats on these machines."""

    def run(testbeds: list[Testbed], watch: Watcher) -> Run:
        settings = settings_for(start_mock().url, repeats=2, scales=[0.01])
        with monkeypatch.context() as patch:
            patch.setattr(ThisMachine, "__init__", lambda self: setattr(self, "testbeds", testbeds))
            with pytest.raises(KeyboardInterrupt):
                run_online(settings, notify=watch)
        return Run.open(watch.of(Started)[0].folder)

    return run


def test_a_node_that_is_lost_after_the_interruption(interrupted_on: Any) -> None:
    watch = Watcher({0: press_ctrl_c})
    run = interrupted_on([here(), Lost(at_the_end=True)], watch)
    assert run.done == {0} and run.skipped == [] and not watch.of(EngineSkipped)
    assert resume_online(run.folder, Watcher())[1].skipped == []


def test_a_node_that_is_lost_a_moment_before(interrupted_on: Any) -> None:
    watch = AtASkip()
    run = interrupted_on([Lost(at_the_end=False)], watch)
    assert run.skipped == []
    [event] = watch.of(EngineSkipped)
    run.skip(event.skipped, lost_node=True)
    run.end_early(moment_s=0.0)
    [earlier] = Run.open(run.folder).skipped
    assert earlier.reason.startswith("node vm-1 was lost")


def test_nodes_that_are_all_lost_a_moment_before(interrupted_on, monkeypatch):
    """The run was about to say that nothing could be measured."""
    watch = AtTheEnd()
    monkeypatch.setattr("harness.runs.online.machines_of", watch.machines)
    run = interrupted_on([Lost(at_the_end=False), Lost(at_the_end=False)], watch)
    assert len(watch.of(EngineSkipped)) == 2 and run.skipped == []


def test_a_server_that_cannot_be_stopped_meanwhile_hides_no_interruption(interrupted_on: Any) -> None:
    watch = Watcher({0: press_ctrl_c})
    run = interrupted_on([FailsToStop(split(physical_cores()))], watch)
    assert watch.measured == [0] and run.skipped == [] and run.info.unasked == []
