"""Open loops against a server that answers nothing for as long as requests arrive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import BenchError
from harness.runs.events import CellProgress, Event
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
def notice(start_mock: Any, settings_for: Make, tmp_path: Path) -> Callable[..., str]:
    """The notice that a server fell behind which answers the load's requests in these ways, in turn."""

    def run(answers: list[dict[str, Any]], **given: Any) -> str:
        script = tmp_path / "script.json"
        script.write_text(json.dumps([{}] * TRIALS + answers))
        settings = settings_for(start_mock("--script", str(script)).url, **LOAD | given)
        _, results = run_online(settings, ["bench"], lambda _: None)
        [summary] = [summary for summary in results.summaries if summary.repeat is None]
        [text] = [notice.text for notice in summary.notices if notice.kind == "behind"]
        return text

    return run


def test_a_server_that_never_answers(notice: Callable[..., str]) -> None:
    said = notice([{"silent": True}] * N, timeout_s=1.5)
    assert "fell behind: 100 requests/s offered, 0 answered meanwhile" in said


def test_a_server_that_answers_a_few(notice: Callable[..., str]) -> None:
    said = notice([{}] * 4 + [{"silent": True}] * (N - 4), timeout_s=1.5)
    assert "answered meanwhile; latencies measure the queue" in said


def test_a_server_that_begins_when_all_requests_are_there(notice: Callable[..., str]) -> None:
    """It answers all of them at the same time."""
    said = notice([{"ttft_ms": 2000 - 1000 * i / RATE} for i in range(N)])
    assert "fell behind: 100 requests/s offered, and no token came in the first 2" in said
    assert "until all had arrived" in said


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
