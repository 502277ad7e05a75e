"""Open loops against a server that answers nothing for as long as requests arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BenchError
from harness.runs.events import CellProgress, Event
from harness.schema.facts import FELL_BEHIND, Fact
from tests.harness.measured import run_online

from .conftest import Make

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("any_lag", "few_figures")]

N, RATE = 40, 100
LOAD: dict[str, Any] = {
    "request_rate": f"{RATE}", "arrivals": "constant", "n": N, "input_len": 16, "output_len": 3,
}  # fmt: skip


#: Requests that look at what a server can do, before the load is sent.
TRIALS = 3


@pytest.fixture
def notice(start_mock: Any, settings_for: Make, tmp_path: Path) -> Callable[..., Fact]:
    """The notice that a server fell behind which answers the load's requests in these ways, in turn."""

    def run(answers: list[dict[str, Any]], **given: Any) -> Fact:
        script = tmp_path / "script.json"
        script.write_text(json.dumps([{}] * TRIALS + answers))
        settings = settings_for(start_mock("--script", str(script)).url, **LOAD | given)
        _, results = run_online(settings, ["bench"], lambda _: None)
        [summary] = [summary for summary in results.summaries if summary.repeat is None]
        [fact] = [fact for fact in summary.notices if fact.kind in FELL_BEHIND]
        return fact

    return run


def test_a_server_that_never_answers(notice: Callable[..., Fact]) -> None:
    fact = notice([{"silent": True}] * N, timeout_s=1.5)
    assert fact.kind == "behind" and fact.values["answered"] == 0
    assert fact.values["offered"] == pytest.approx(100, rel=0.05)


def test_a_server_that_answers_a_few(notice: Callable[..., Fact]) -> None:
    assert notice([{}] * 4 + [{"silent": True}] * (N - 4), timeout_s=1.5).kind == "behind"


def test_a_server_that_begins_when_all_requests_are_there(notice: Callable[..., Fact]) -> None:
    """It answers all of them at the same time."""
    fact = notice([{"ttft_ms": 2000 - 1000 * i / RATE} for i in range(N)])
    assert fact.kind == "stalled" and 2 <= float(fact.values["stalled_s"]) < 3


def test_a_server_that_is_lost_in_the_middle_of_a_cell(
    start_mock: Any, settings_for: Make, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{}] * (TRIALS + 1) + [{"silent": True}] * 2))
    server = start_mock("--script", str(script))

    def end_after_one(event: Event) -> None:
        if isinstance(event, CellProgress) and event.progress.completed == 1:
            server.end()

    settings = settings_for(server.url, concurrency=[1], n=3, input_len=16, output_len=3)
    with pytest.raises(BenchError, match="in the middle of the cell: 1 of 3 requests had been answered"):
        run_online(settings, ["bench"], end_after_one)
