"""What follows an engine's cells: the second answer check, the accuracy task and the end of its server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from harness.cli.ending import conclude
from harness.cli.progress import make_display
from harness.engines import selection
from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.running.address import Address
from harness.errors import BenchError, EngineError, UsageError
from harness.fairness.answer_check import LENGTHS
from harness.models.model_folder import resolve
from harness.report.notices import facts_of
from harness.runs.accuracy import score_engine
from harness.runs.events import CellDone, EngineNotAsked, EngineStarting, Started
from harness.runs.folder import ANSWERS
from harness.runs.reader import load_run
from harness.schema.facts import Fact, FactKind, Scope
from harness.schema.run_info import Unasked
from harness.schema.search import SearchPlan
from tests.harness.measured import results_so_far, resume_online, run_online

from .conftest import Make, Watcher, interrupted, press_ctrl_c

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag")]


@pytest.fixture
def scored(tmp_path: Path) -> dict[str, Any]:
    """Settings of one cell with the accuracy task."""
    model = shutil.copytree(resolve("random:gpt2-tiny").path, tmp_path / "model")
    return {
        "concurrency": 1,
        "n": 3,
        "input_len": 8,
        "output_len": 4,
        "engines": "openai",
        "model": str(model),
    }


def facts(folder: Path, kind: FactKind) -> list[Fact]:
    """The facts of that kind which the report of a run states."""
    return [fact for fact in facts_of(load_run(folder)) if fact.kind == kind]


def test_an_interrupted_accuracy_task_is_asked_on_resume(
    start_mock: Any, settings_for: Make, scored: dict[str, Any]
) -> None:
    server = start_mock("--ttft-ms", "1", "--itl-ms", "0.1")
    folder = interrupted(settings_for(server.url, **scored))
    assert results_so_far(folder) is not None
    [fact] = facts(folder, "interrupted")
    assert fact.values == {"measured": 1, "cells": 1, "lacking": "openai", "subcommand": "online"}
    before = (folder / "journal.jsonl").read_bytes()

    _, results = resume_online(folder, watch := Watcher())
    assert results.accuracy is not None and [score.label for score in results.accuracy.scores] == ["openai"]
    assert len(watch.of(EngineStarting)) == 1 and not watch.of(CellDone)
    assert (folder / "journal.jsonl").read_bytes() == before and results.meta.unasked == []

    server.end()
    assert resume_online(folder, Watcher())[1] == results


def test_an_interrupted_second_answer_check_is_asked_on_resume(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    folder = interrupted(settings_for(server.url, scales=[0.01], check_answers=True, repeats=2), cell=1)
    _, results = resume_online(folder, watch := Watcher())
    assert results.answers is not None and not watch.measured
    [check] = results.answers.checks
    assert len(check.answers) == 4 * len(LENGTHS) and results.meta.unasked == []


def test_the_last_check_of_a_search_is_asked_on_resume(start_mock: Any, settings_for: Make) -> None:
    plan = SearchPlan.make("concurrency", "ttft_p50<=10s", lowest=1, highest=32, first=2, cells=3)
    given = plan.settings() | {"input_len": 4, "output_len": 4, "n": 4, "rounds": 1, "check_answers": True}
    settings = settings_for(start_mock().url, scales=[1.0], min_duration=None, **given)
    watch = Watcher({2: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        run_online(settings, ["bench"], watch, plan)
    folder = watch.of(Started)[0].folder
    _, results = resume_online(folder, again := Watcher())
    assert len(again.of(EngineStarting)) == 1 and not again.measured and results.meta.unasked == []
    [found] = json.loads((folder / ANSWERS).read_text())["given"].values()
    assert len(found) == 2 and results.search is not None and len(results.search.engines[0].trials) == 3


@pytest.mark.parametrize("gone", ["the server", "the engine"])
def test_what_cannot_be_asked_on_resume_is_said(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """The cells count all the same, without an engine or a GPU."""
    server = start_mock()
    folder = interrupted(settings_for(server.url, scales=[0.01], check_answers=True))
    if gone == "the server":
        server.end()
    else:
        refuse = Mock(side_effect=UsageError("openai is not here any more", "bring it back"))
        monkeypatch.setattr("harness.runs.online.resolve_online", refuse)
    _, results = resume_online(folder, watch := Watcher())
    [fault] = results.meta.unasked
    assert fault.what == ["answers"] and fault.reason and fault.hint
    assert [event.unasked for event in watch.of(EngineNotAsked)] == [fault]
    assert len(results.summaries) == 2 and not results.meta.interrupted
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=0) and fact.values["checks"] == "second answer check"


def test_where_nothing_follows_the_last_cell_no_engine_is_needed(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    folder = interrupted(settings_for(server.url, scales=[0.01]))
    server.end()
    assert len(resume_online(folder, Watcher())[1].summaries) == 2


def test_an_accuracy_task_that_fails_is_said_and_tried_again(
    start_mock: Any,
    settings_for: Make,
    scored: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails = Mock(side_effect=BenchError("the client process ended", "try it without limits"))
    monkeypatch.setattr("harness.runs.block.score_engine", fails)
    server = start_mock("--ttft-ms", "1", "--itl-ms", "0.1")
    folder, results = run_online(settings_for(server.url, **scored), ["bench"], watch := Watcher())
    fault = Unasked(
        label="openai",
        repeat=0,
        what=["accuracy"],
        reason="the client process ended",
        hint="try it without limits",
    )
    assert results.meta.unasked == [fault] and results.skipped == [] and len(results.summaries) == 2
    assert [event.unasked for event in watch.of(EngineNotAsked)] == [fault]
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=0)
    assert fact.values == {
        "reason": "the client process ended; try it without limits",
        "checks": "accuracy task",
        "subcommand": "online",
    }
    with make_display(quiet=False) as display:
        display.show(watch.of(EngineNotAsked)[0])
    assert (
        "openai lacks its accuracy task, repeat 1: the client process ended\n  hint: try it"
        in capsys.readouterr().err
    )
    with pytest.raises(typer.Exit) as ended:
        conclude(results, folder, None, as_json=False, open_report=False)
    assert ended.value.exit_code == 3

    monkeypatch.setattr("harness.runs.block.score_engine", score_engine)
    _, results = resume_online(folder, again := Watcher())
    assert results.accuracy is not None and results.meta.unasked == []
    assert not again.measured and not facts(folder, "failed_after")


class FailsAtItsEnd(OpenAI):
    """A server that cannot be ended in an orderly way."""

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        with super().open(settings, log) as server:
            yield server
        raise EngineError("it crashed as it ended", "see its log")


def test_a_server_that_fails_at_its_end_is_said(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(name: Any, *given: Address | None) -> Engine:
        return FailsAtItsEnd(*given)

    monkeypatch.setattr(selection, "get_engine", get)
    settings = settings_for(start_mock().url, scales=[0.01], check_answers=True)
    folder, results = run_online(settings, ["bench"], watch := Watcher())
    [event] = watch.of(EngineNotAsked)
    assert results.meta.unasked == [event.unasked] and event.unasked.what == []
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=0)
    assert fact.values == {"reason": "it crashed as it ended; see its log"}
    replies = json.loads((folder / ANSWERS).read_text())["given"]["openai"]
    assert len(replies) == 2
    assert resume_online(folder, again := Watcher())[1] == results and not again.of(EngineStarting)
