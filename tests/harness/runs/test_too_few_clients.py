"""Closed loops of `--clients auto` that turn out to need more client processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.calibration.calibrate import this_machine
from harness.cluster import this_machine as this_machine_module
from harness.records.parquet import read_records
from harness.runs.events import TooFewClients
from harness.schema.machines import Calibration, ClientCeiling
from tests.harness.measured import resume_online, run_online

from .conftest import Make, Watcher, interrupted, journal

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag", "few_figures")]

LOOP: dict[str, Any] = {"concurrency": [3, 4], "n": 12, "input_len": 32, "output_len": 7}
Can = Callable[[dict[int, float], int], None]


@pytest.fixture
def can(monkeypatch: pytest.MonkeyPatch) -> Can:
    """Says how many requests a second each of so many client processes can send, and how many this machine
    should run."""

    def say(requests_per_s: dict[int, float], most: int) -> None:
        ceilings = [
            ClientCeiling(
                processes=processes,
                chunks_per_s=1e9,
                chunks_per_cpu_s=1e9,
                requests_per_s=rate,
                limit="client",
            )
            for processes, rate in requests_per_s.items()
        ]
        found = Calibration(machine=this_machine(), created="now", quick=True, ceilings=ceilings, errors=[])
        monkeypatch.setattr(this_machine_module, "load_calibration", lambda: found)
        monkeypatch.setattr(this_machine_module.ThisMachine, "clients", lambda *_: (1, most))

    return say


def clients(folder: Path) -> list[int]:
    """How many client processes sent each cell."""
    return [len(line["clients"]) for line in journal(folder)]


def sent(server: Any) -> int:
    """Requests of cells that a server has answered; others, which look at what it can do, are shorter."""
    return sum(len(served.writes) == LOOP["output_len"] for served in server.served_requests)


def again(watch: Watcher) -> list[tuple[int, int, int]]:
    return [(event.cell.index, event.clients, event.more) for event in watch.of(TooFewClients)]


def test_a_cell_is_measured_again_by_more(
    start_mock: Any, settings_for: Make, can: Can, tmp_path: Path
) -> None:
    can({1: 0.01, 3: 1e9}, 3)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"ttft_ms": 30, "cached_ttft_ms": 1, "cached_tokens": 0}]))
    server, watch = start_mock("--script", str(script)), Watcher()
    folder, results = run_online(settings_for(server.url, **LOOP), ["bench"], watch)
    assert again(watch) == [(0, 1, 3)] and clients(folder) == [3, 3]
    assert all(summary.valid for summary in results.summaries)
    assert min(summary.ttft_ms.p50 for summary in results.summaries) > 25, "the prompts came before"
    requests = read_records(folder).requests
    assert (requests.groupby("cell").size() == 12).all() and {*requests["client"]} == {0, 1, 2}
    assert sent(server) == 3 * 12
    assert (results.meta.settings.clients, results.meta.most_clients) == (1, 3)


def test_a_run_that_is_resumed_goes_on_with_as_many(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01, 3: 1e9}, 3)
    folder = interrupted(settings_for(start_mock().url, **LOOP))
    watch = Watcher()
    resume_online(folder, watch)
    assert again(watch) == [] and clients(folder) == [3, 3]


def test_a_run_that_is_resumed_can_take_more(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01, 3: 1e9}, 3)
    folder = interrupted(settings_for(start_mock().url, **LOOP | {"concurrency": [1, 3]}))
    watch = Watcher()
    resume_online(folder, watch)
    assert again(watch) == [(1, 1, 3)] and clients(folder) == [1, 3]


def test_the_most_can_be_too_few(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01}, 2)
    watch = Watcher()
    folder, results = run_online(settings_for(start_mock().url, **LOOP), ["bench"], watch)
    assert again(watch) == [(0, 1, 2)] and clients(folder) == [2, 2]
    for summary in results.summaries:
        [reason] = summary.invalid_reasons
        assert reason.kind == "busy" and reason.values["unit"] == "requests"


def test_a_cell_is_sent_so_often_at_most(
    start_mock: Any, settings_for: Make, can: Can, monkeypatch: pytest.MonkeyPatch
) -> None:
    can({1: 0.01}, 9)
    monkeypatch.setattr(
        "harness.runs.cell_runner.clients_needed", lambda requests, *_: requests["client"].max() + 2
    )
    watch, server = Watcher(), start_mock()
    settings = settings_for(server.url, **LOOP | {"concurrency": [8]})
    folder, _ = run_online(settings, ["bench"], watch)
    assert again(watch) == [(0, 1, 2), (0, 2, 3), (0, 3, 4)] and clients(folder) == [4]
    assert sent(server) == 4 * 12


def test_more_clients_for_a_loop_that_is_too_short(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 0.01, 2: 1e9}, 2)
    watch = Watcher()
    settings = settings_for(start_mock().url, min_duration=0.4, **LOOP | {"concurrency": [4]})
    folder, results = run_online(settings, ["bench"], watch)
    assert again(watch) == [(0, 1, 2)] and clients(folder) == [2]
    assert results.summaries[0].duration_s >= 0.4 and results.summaries[0].num_requests % 4 == 0


@pytest.mark.parametrize(
    "given",
    [
        LOOP | {"clients": 1},
        LOOP | {"concurrency": [1]},
        {"scales": [0.01]},
        {"request_rate": "100", "n": 8, "input_len": 16, "output_len": 4},
    ],
)
def test_what_is_not_measured_again(
    start_mock: Any, settings_for: Make, can: Can, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """A number that was given, one request in flight, and loads that every engine gets alike."""
    can({1: 0.01, 2: 1e9}, 2)
    monkeypatch.setattr("harness.runs.resolved.CLIENT_SHARE", 1e9)  # the estimate is too low
    watch = Watcher()
    folder, results = run_online(settings_for(start_mock().url, **given), ["bench"], watch)
    assert again(watch) == [] and set(clients(folder)) == {1}
    assert all(summary.invalid_reasons[0].kind == "busy" for summary in results.summaries)


def test_a_rate_of_short_answers_begins_with_enough(start_mock: Any, settings_for: Make, can: Can) -> None:
    can({1: 8.0, 2: 1e9}, 2)
    given = {"request_rate": "100", "n": 8, "input_len": 16, "output_len": 1}
    folder, results = run_online(settings_for(start_mock().url, **given), ["bench"], Watcher())
    assert clients(folder) == [2] and all(summary.valid for summary in results.summaries)


def test_a_cell_with_failed_requests_is_not_measured_again(
    start_mock: Any, settings_for: Make, can: Can, tmp_path: Path
) -> None:
    can({1: 0.01, 2: 1e9}, 2)
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"error_after": 6}]))
    watch = Watcher()
    settings = settings_for(start_mock("--script", str(script)).url, **LOOP)
    folder, results = run_online(settings, ["bench"], watch)
    assert again(watch) == [] and clients(folder) == [1, 1]
    assert all(summary.num_error for summary in results.summaries)
