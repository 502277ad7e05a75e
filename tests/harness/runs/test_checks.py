"""Checks of an engine beside its cells: the answer check and the accuracy task."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import typer

from harness.cli.measure import conclude
from harness.cli.progress import make_display
from harness.compare.stored_run import StoredRun
from harness.engines import selection
from harness.engines.adapters.openai import OpenAI
from harness.engines.base import Engine, EngineSettings, Server
from harness.engines.running.address import Address
from harness.errors import BenchError, EngineError, UsageError
from harness.fairness.answer_check import LENGTHS
from harness.fairness.asking import ask_all
from harness.fairness.reference import Reference, ReferenceAnswer
from harness.fairness.task import make_items
from harness.models.model_folder import resolve
from harness.report.notices import facts_of
from harness.runs import checks
from harness.runs.checks import score_engine
from harness.runs.events import CellDone, EngineNotAsked, EngineStarting
from harness.runs.folder import ACCURACY, ANSWERS
from harness.runs.reader import load_run
from harness.runs.resolved import resolve_online
from harness.schema.facts import Fact, FactKind, Scope
from harness.schema.results import OnlineResults
from harness.schema.run_info import Unasked
from harness.schema.search import SearchPlan
from tests.harness.measured import results_so_far, resume_online, run_online

from .conftest import Make, Watcher, edit, interrupted

pytestmark = pytest.mark.usefixtures("any_lag")


#: Settings of a cell with the answer check, and without the task.
CHECKED: dict[str, Any] = {"n": 3, "scales": [0.01], "check_answers": True, "accuracy": False}


def other_answers(python: Path, model: Path, device: str, dtype: str, prompts: Any, *rest: Any) -> Reference:
    """Return answers that are far from those of a server: the same token, 16 times."""
    position = [(1, 0.0), (2, 9.0)]
    answer = ReferenceAnswer(tokens=[1] * 16, candidates=[position] * 16)
    return Reference(version="transformers", noise=0.01, spread=1.0, answers=[answer] * len(prompts))


def test_an_engine_that_answers_wrongly_wins_nothing(shared_mock, settings_for, monkeypatch):
    monkeypatch.setattr("harness.runs.checks.ask_reference", other_answers)
    model = {"model": "random:gpt2-tiny", "engines": "openai"}
    folder, results = run_online(settings_for(shared_mock.url, **CHECKED | model))
    assert results.answers is not None
    [check] = results.answers.checks
    assert check.verdict == "wrong" and results.answers.wrong == {"openai": check.reason}
    assert [answer.prompt_tokens for answer in check.answers] == [*LENGTHS, *LENGTHS]
    assert {answer.outcome for answer in check.answers} == {"different"}
    assert {answer.got for answer in check.answers} == {16}
    assert results.answers.reference and results.answers.tolerance > 0
    for summary in results.summaries:
        assert summary.num_error == 0 and not summary.valid
        assert summary.invalid_reasons[-1].kind == check.reason.kind == "wrong_answers"
        assert summary.invalid_reasons[-1].values == check.reason.values
    assert StoredRun.read(folder).invalid("openai")

    before = (folder / ANSWERS).read_bytes()
    assert resume_online(folder)[1] == results
    assert (folder / ANSWERS).read_bytes() == before


def test_a_server_whose_model_nobody_knows_is_judged_by_lengths_alone(shared_mock, settings_for):
    folder, results = run_online(settings_for(shared_mock.url, **CHECKED))
    [check] = results.answers.checks
    unchecked = Fact(kind="unchecked_answers", values={"unknown": 12, "answers": 12})
    assert (check.verdict, check.reason) == ("unknown", unchecked)
    assert results.answers.reference is None
    kinds = {reason.kind for summary in results.summaries for reason in summary.invalid_reasons}
    assert "wrong_answers" not in kinds and "failed_answers" not in kinds

    edit(folder / ANSWERS, lambda replies: replies.update(judged=None))  # it ended before the verdict
    assert resume_online(folder)[1] == results


def test_a_run_that_ended_before_its_verdict_is_judged_without_engine_and_gpu(
    start_mock: Any, settings_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(python: Path, model: Path, device: str, dtype: str, *rest: Any) -> str:
        asked.append((device, dtype))
        if len(asked) == 1:
            raise KeyboardInterrupt
        return "the test has none"

    monkeypatch.setattr("harness.runs.checks.ask_reference", ask)
    monkeypatch.setattr("harness.telemetry.gpu.available", lambda: False)
    server = start_mock()
    model = {"model": "random:gpt2-tiny", "engines": "openai", "dtype": "bf16"}
    folder = interrupted(settings_for(server.url, **CHECKED | model), cell=None)
    server.end()
    edit(folder / "run.json", lambda info: info["settings"].update(device="cuda"))
    _, results = resume_online(folder, watch := Watcher())
    assert asked == [("cpu", "bfloat16")] * 2 and not watch.of(CellDone)
    assert results.answers is not None and "the test has none" in results.answers.rule
    [check] = results.answers.checks
    assert (check.label, check.verdict) == ("openai", "unknown") and len(check.answers) == 2 * len(LENGTHS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the user's, of whose weights nothing says that they are random."""
    folder = tmp_path_factory.mktemp("user") / "model"
    return Path(shutil.copytree(resolve("random:gpt2-tiny").path, folder))


def without_tokenizer(model: Path) -> dict[str, Any]:
    other = model.with_name("other")
    shutil.copytree(model, other)
    (other / "tokenizer.json").rename(other / "tokenizer.model")
    return {"model": str(other)}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "answers", "task"),
    [
        (lambda model: {}, True, True),
        (without_tokenizer, True, False),
        (lambda model: {"model": "random:gpt2-tiny"}, True, False),
        (lambda model: {"accuracy": False}, True, False),
        (lambda model: {"max_model_len": 32, "input_len": 4, "output_len": 4}, True, False),
        (lambda model: {"max_model_len": 16, "input_len": 4, "output_len": 4}, False, False),
        (lambda model: {"check_answers": False}, False, True),
    ],
)
def test_an_engine_is_asked_what_is_wanted_and_fits(settings_for, model, tmp_path, change, answers, task):
    given = {"model": str(model), "engines": "openai", "concurrency": 1, "check_answers": True}
    settings = settings_for("http://127.0.0.1:1", **given | change(model))
    resolved = resolve_online(settings, lambda event: None)
    run: Any = SimpleNamespace(folder=tmp_path)
    asked = checks.checks_after_cells(run, resolved, "openai")
    assert ("answers" in asked, "accuracy" in asked) == (answers, task)


@pytest.fixture
def scored(model: Path) -> dict[str, Any]:
    """Settings of one cell with the accuracy task."""
    load = {"concurrency": 1, "n": 3, "input_len": 8, "output_len": 4}
    return {"engines": "openai", "model": str(model), **load}


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items()[::4]
    monkeypatch.setattr(checks, "make_items", lambda: items)


@pytest.mark.usefixtures("few_items")
def test_a_server_with_too_much_to_do_has_no_score(start_mock, settings_for, scored, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "ask_all", partial(ask_all, pauses_s=()))
    script = tmp_path / "script.json"
    script.write_text(json.dumps([*[{}] * 40, {"status": 429}]))
    server = start_mock("--script", str(script), "--ttft-ms", "1", "--itl-ms", "0.1")
    _, results = run_online(settings_for(server.url, **scored | {"concurrency": 3}))
    assert results.accuracy is None and len(results.summaries) == 2
    [fault] = results.meta.unasked
    assert fault.what == ["accuracy"] and "http_429" in fault.reason


@pytest.mark.parametrize(("logprob", "perplexity"), [(-1.0, pytest.approx(math.e)), (-9999.0, None)])
def test_a_perplexity_that_is_no_number_is_none(monkeypatch, logprob, perplexity):
    choices = [{"logprobs": {"token_logprobs": [None, logprob, logprob]}}]
    monkeypatch.setattr(checks, "request", Mock(return_value=(200, json.dumps({"choices": choices}))))
    assert checks._perplexity(Mock(served_name="m"), [1, 2, 3], 64) == perplexity


def facts(folder: Path, kind: FactKind) -> list[Fact]:
    """The facts of that kind which the report of a run states."""
    return [fact for fact in facts_of(load_run(folder)) if fact.kind == kind]


def test_an_interrupted_run_of_until_has_some_of_the_cells_that_it_may_have(start_mock, settings_for):
    folder = interrupted(settings_for(start_mock().url, until=0.1, repeats=3), cell=1)
    assert results_so_far(folder) is not None
    [fact] = facts(folder, "interrupted")
    assert fact.values == {"measured": 2, "cells": 6, "until": True, "subcommand": "online"}


@pytest.mark.usefixtures("few_items")
def test_an_interrupted_accuracy_task_is_asked_on_resume(start_mock, settings_for, scored):
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
    assert resume_online(folder)[1] == results


def test_a_check_that_cannot_be_asked_on_resume_is_said_and_tried_again(
    start_mock, settings_for, monkeypatch
):
    """The cells count all the same, without an engine or a GPU."""
    server = start_mock()
    settings = settings_for(server.url, scales=[0.01], check_answers=True, repeats=2)
    folder = interrupted(settings, cell=1)

    def resume() -> OnlineResults:
        _, results = resume_online(folder, watch := Watcher())
        assert not watch.measured and len(results.summaries) == 3 and not results.meta.interrupted
        assert [event.unasked for event in watch.of(EngineNotAsked)] == results.meta.unasked
        return results

    with monkeypatch.context() as without_engine:
        refuse = Mock(side_effect=UsageError("openai is not here any more", "bring it back"))
        without_engine.setattr("harness.runs.online.resolve_online", refuse)
        [no_engine] = resume().meta.unasked
    server.end()
    [no_server] = resume().meta.unasked
    for fault in (no_engine, no_server):
        assert fault.what == ["answers"] and fault.reason and fault.hint
    assert "not here any more" in no_engine.reason and "no server answers" in no_server.reason
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=1) and fact.values["checks"] == "second answer check"

    start_mock("--port", str(server.port))
    results = resume()
    assert results.answers is not None and results.meta.unasked == []
    [check] = results.answers.checks
    assert len(check.answers) == 4 * len(LENGTHS)


def test_the_last_check_of_a_search_is_asked_on_resume(shared_mock: Any, settings_for: Make) -> None:
    plan = SearchPlan.make("concurrency", "ttft_p50<=10s", lowest=1, highest=32, first=2, cells=3)
    given = plan.settings() | {"input_len": 4, "output_len": 4, "n": 4, "rounds": 1, "check_answers": True}
    settings = settings_for(shared_mock.url, scales=[1.0], min_duration=None, **given)
    folder = interrupted(settings, 2, plan)
    _, results = resume_online(folder, again := Watcher())
    assert len(again.of(EngineStarting)) == 1 and not again.measured and results.meta.unasked == []
    [replies] = json.loads((folder / ANSWERS).read_text())["by_engine"].values()
    assert len(replies) == 2 and results.search is not None and len(results.search.engines[0].trials) == 3


def test_where_nothing_follows_the_last_cell_no_engine_is_needed(start_mock: Any, settings_for: Make) -> None:
    server = start_mock()
    folder = interrupted(settings_for(server.url, scales=[0.01]))
    server.end()
    assert len(resume_online(folder)[1].summaries) == 2


def test_an_accuracy_task_that_fails_is_tried_again_and_what_says_anything_scores_nothing(
    start_mock: Any,
    settings_for: Make,
    scored: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails = Mock(side_effect=BenchError("the client process ended", "try it without limits"))
    monkeypatch.setattr("harness.runs.block.score_engine", fails)
    server = start_mock("--ttft-ms", "1", "--itl-ms", "0.1")
    settings = settings_for(server.url, **scored | {"concurrency": 64})
    folder, results = run_online(settings, notify=(watch := Watcher()))
    reason, hint = "the client process ended", "try it without limits"
    fault = Unasked(label="openai", repeat=0, what=["accuracy"], reason=reason, hint=hint)
    assert results.meta.unasked == [fault] and results.skipped == [] and len(results.summaries) == 2
    assert [event.unasked for event in watch.of(EngineNotAsked)] == [fault]
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=0)
    assert fact.values == {"reason": f"{reason}; {hint}", "checks": "accuracy task", "subcommand": "online"}
    with make_display(quiet=False) as display:
        display.show(watch.of(EngineNotAsked)[0])
    shown = capsys.readouterr().err
    assert reason in shown and hint in shown
    with pytest.raises(typer.Exit) as ended:
        conclude(load_run(folder, trust=True), folder, None, as_json=False, open_report=False)
    assert ended.value.exit_code == 3

    monkeypatch.setattr("harness.runs.block.score_engine", score_engine)
    asked_before = len(server.served_requests)
    _, results = resume_online(folder, again := Watcher())
    assert not again.measured and not facts(folder, "failed_after") and results.meta.unasked == []
    assert len(server.served_requests) - asked_before >= len(make_items())
    assert results.accuracy is not None
    [score] = results.accuracy.scores
    assert (score.label, score.right, score.items, score.failed) == ("openai", 0, len(make_items()), 0)
    assert score.ci[0] == 0 < score.ci[1] < 0.02
    assert score.perplexity is None and score.below is None
    assert {(summary.accuracy, summary.accuracy_ci) for summary in results.summaries} == {(0.0, score.ci)}
    kinds = {reason.kind for summary in results.summaries for reason in summary.invalid_reasons}
    assert "inaccurate" not in kinds  # nobody is better
    before = (folder / ACCURACY).read_bytes()
    assert resume_online(folder)[1] == results
    assert (folder / ACCURACY).read_bytes() == before


class FailsAtItsEnd(OpenAI):
    """A server that cannot be ended in an orderly way."""

    @contextmanager
    def open(self, settings: EngineSettings, log: Path) -> Iterator[Server]:
        with super().open(settings, log) as server:
            yield server
        raise EngineError("it crashed as it ended", "see its log")


def test_a_server_that_fails_at_its_end_is_said(shared_mock, settings_for, monkeypatch):
    def get(name: Any, *given: Address | None) -> Engine:
        return FailsAtItsEnd(*given)

    monkeypatch.setattr(selection, "get_engine", get)
    settings = settings_for(shared_mock.url, scales=[0.01], check_answers=True)
    folder, results = run_online(settings, notify=(watch := Watcher()))
    [event] = watch.of(EngineNotAsked)
    assert results.meta.unasked == [event.unasked] and event.unasked.what == []
    [fact] = facts(folder, "failed_after")
    assert fact.scope == Scope(engine="openai", repeat=0)
    assert fact.values == {"reason": "it crashed as it ended; see its log"}
    replies = json.loads((folder / ANSWERS).read_text())["by_engine"]["openai"]
    assert len(replies) == 2
    assert resume_online(folder, again := Watcher())[1] == results and not again.of(EngineStarting)
