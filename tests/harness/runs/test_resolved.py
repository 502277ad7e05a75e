"""Runs judged by what the client sustains, and how many clients they take."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster import this_machine as this_machine_module
from harness.errors import BenchError
from harness.runs import resolved
from harness.runs.events import Calibrating, Event
from harness.schema.facts import Fact
from harness.schema.machines import Calibration
from harness.schema.online_settings import OnlineSettings
from harness.schema.results import OnlineResults
from tests.harness.measured import calibration_of, run_online


def calibration(
    chunks_per_s: float, requests_per_s: float = 1e6, chunks_of_two: float | None = None
) -> Calibration:
    """Of one process; and of each of two or more, where that is given."""
    two = {} if chunks_of_two is None else {2: (chunks_of_two, requests_per_s)}
    return calibration_of({1: (chunks_per_s, requests_per_s), **two})


def busy(results: OnlineResults) -> list[Fact]:
    """Why cells do not count: what their client did was near what it can."""
    return [why for summary in results.summaries for why in summary.invalid_reasons if why.kind == "busy"]


@pytest.mark.parametrize(
    ("stored", "unit"),
    [(calibration(1.0), "chunks"), (calibration(1e9, requests_per_s=0.1), "requests")],
)
def test_a_client_near_its_limit_makes_a_cell_invalid(shared_mock, settings_for, monkeypatch, stored, unit):
    monkeypatch.setattr(this_machine_module, "load_calibration", lambda: stored)
    folder, results = run_online(settings_for(shared_mock.url, scales=[0.01], calibrate=True))
    kept = json.loads((folder / "run.json").read_text())["environment"]["calibration"]
    assert kept == stored.model_dump()
    assert busy(results) and all(why.values["unit"] == unit for why in busy(results))
    assert not any(summary.valid for summary in results.summaries)


def test_a_machine_without_one_is_calibrated_first(shared_mock, settings_for, monkeypatch):
    def measure(*, quick: bool, report_status: Any) -> Calibration:
        report_status("something")
        return calibration(1e9 if quick else 1.0)

    monkeypatch.setattr(this_machine_module, "load_calibration", lambda: None)
    monkeypatch.setattr(this_machine_module, "calibrate", measure)
    events: list[Event] = []
    settings = settings_for(shared_mock.url, scales=[0.01], calibrate=True)
    folder, results = run_online(settings, ["bench"], events.append)
    assert events[0] == Calibrating("something") and busy(results) == []
    kept = json.loads((folder / "run.json").read_text())["environment"]["calibration"]
    assert kept["ceilings"][0]["chunks_per_s"] == 1e9


@pytest.mark.parametrize("switched_off", [True, False])
def test_a_run_without_one_says_so(shared_mock, settings_for, monkeypatch, switched_off):
    def fail(**_: object) -> Calibration:
        raise BenchError("too busy")

    monkeypatch.setattr(this_machine_module, "load_calibration", lambda: None)
    monkeypatch.setattr(this_machine_module, "calibrate", fail)
    settings = settings_for(shared_mock.url, scales=[0.01], calibrate=not switched_off)
    folder, results = run_online(settings)
    assert json.loads((folder / "run.json").read_text())["environment"]["calibration"].startswith("none: ")
    assert busy(results) == []


@pytest.mark.parametrize(
    ("limits", "found", "tokens_per_s", "requests_per_s", "clients"),
    [
        ((1, 1), calibration(1e5), 1e6, 0.0, 1),
        ((1, 8), calibration(1e5), 1e3, 0.0, 1),
        ((1, 8), calibration(1e5), 25_001.0, 0.0, 2),
        ((1, 8), calibration(1e5), 1e6, 0.0, 8),
        ((1, 8), None, 1e6, 0.0, 3),
        ((4, 8), calibration(1e5), 1e3, 0.0, 4),
        ((1, 8), calibration(1e5, requests_per_s=1e3), 1e3, 250.0, 1),
        ((1, 8), calibration(1e5, requests_per_s=1e3), 1e3, 501.0, 3),
        ((1, 8), calibration(1e5, requests_per_s=1e3), 1e5, 501.0, 4),
        ((1, 8), calibration(1e5, requests_per_s=1e3), 1e3, 1e5, 8),
        ((1, 8), calibration(1e5, chunks_of_two=5e4), 6e4, 0.0, 5),
    ],
)
def test_clients_follow_the_load(limits, found, tokens_per_s, requests_per_s, clients):
    source: Any = SimpleNamespace(
        tokens_per_s=lambda: tokens_per_s, requests_per_s=lambda: requests_per_s, in_flight=lambda: 150
    )
    assert resolved._clients(OnlineSettings(), source, limits, found) == clients
    assert resolved._clients(OnlineSettings(clients=5), source, limits, found) == 5
