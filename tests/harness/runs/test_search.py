"""Searches whose server goes away and comes back."""

from __future__ import annotations

from typing import Any

import pytest

from harness.runs.events import CellDone, CellProgress, EngineWarming, Event, WarmupProgress
from harness.schema.results import OnlineResults
from harness.schema.search import SearchPlan
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, journal

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag")]

FAILED = "its server could not be measured any further"


def trials(results: OnlineResults) -> list[tuple[float, bool | None]]:
    assert results.search is not None
    [found] = results.search.engines
    return [(trial.value, trial.met) for trial in found.trials]


def test_a_search_survives_a_server_that_fails_three_times(start_mock, settings_for, monkeypatch):
    """Four requests at once in 90 ms; the fifth waits."""
    capacity = ("--slots", "4", "--ttft-ms", "90", "--itl-ms", "1")
    server = start_mock(*capacity)
    plan = SearchPlan.make(
        "concurrency", "ttft_p50<=135ms", lowest=1, highest=16, first=2, cells=5, cells_per_start=4
    )
    loads = plan.settings() | {"input_len": 4, "output_len": 4, "n": 8, "rounds": 2, "accuracy": False}
    loads["server_metrics"] = False
    settings = settings_for(server.url, scales=[1.0], **loads)

    watch = Watcher({2: server.end})
    folder, results = run_online(settings, ["bench"], watch, plan)
    first = trials(results)
    assert len(first) == 3 and len(results.skipped) == 1
    assert results.search is not None
    assert results.search.engines[0].ended == FAILED

    _, still = resume_online(folder)
    assert trials(still) == first and len(still.skipped) == 1 and len(journal(folder)) == 3
    assert "no server answers" in still.skipped[0].reason

    again = start_mock(*capacity, "--port", str(server.port))

    def end_in_the_cell(event: Event) -> None:
        if isinstance(event, CellProgress):
            again.end()

    _, still = resume_online(folder, end_in_the_cell)
    assert trials(still) == first and len(still.skipped) == 1 and len(journal(folder)) == 3
    assert still.search is not None and still.search.engines[0].ended == FAILED

    start_mock(*capacity, "--port", str(server.port))
    whole = Watcher()
    _, results = resume_online(folder, whole)
    assert trials(results)[:3] == first and len(whole.of(CellDone)) == len(trials(results)) - 3
    assert results.skipped == []
    cells = [entry["cell"] for entry in journal(folder)]
    assert cells == sorted(set(cells))
    assert all(met == (value <= 4) for value, met in trials(results) if not 4 <= value <= 8)

    monkeypatch.setattr("harness.runs.online.machines_of", lambda settings: pytest.fail("nothing is left"))
    assert resume_online(folder)[1] == results


def test_a_search_ends_when_its_time_is_over_and_goes_on_when_resumed(start_mock, settings_for):
    """A cell alone takes longer than the time, and every session measures one at least."""
    server = start_mock("--slots", "4", "--ttft-ms", "90", "--itl-ms", "1")
    plan = SearchPlan.make(
        "concurrency", "ttft_p50<=135ms", lowest=1, highest=16, first=2, cells=5, max_seconds=0.1
    )
    loads = plan.settings() | {"input_len": 4, "output_len": 4, "n": 4, "rounds": 1, "accuracy": False}
    settings = settings_for(server.url, scales=[1.0], server_metrics=False, **loads)
    folder, results = run_online(settings, ["bench"], Watcher(), plan)
    for cells in (1, 2):
        assert len(trials(results)) == cells and results.skipped == [] and results.search is not None
        assert results.search.engines[0].ended == "the time was over"
        _, results = resume_online(folder)
    assert results.search is not None
    assert [trial.start for trial in results.search.engines[0].trials] == [0, 1, 2]


def test_a_search_warms_up_for_the_loads_that_it_measures(shared_mock: Any, settings_for: Make) -> None:
    plan = SearchPlan.make("concurrency", "ttft_p50<=10s", lowest=1, highest=512, first=2, cells=3)
    loads = plan.settings() | {"input_len": 4, "output_len": 4, "n": 4, "rounds": 1, "accuracy": False}
    settings = settings_for(
        shared_mock.url, scales=[1.0], server_metrics=False, warmup="auto", min_duration=None, **loads
    )
    watch = Watcher()
    _, results = run_online(settings, ["bench"], watch, plan)
    heaviest = max(value for value, _ in trials(results))
    assert heaviest < 512
    assert [event.requests for event in watch.of(EngineWarming)] == [1 + 2]
    sent = [event.requests for event in watch.of(WarmupProgress) if event.done == event.requests]
    assert max(sent) <= heaviest
