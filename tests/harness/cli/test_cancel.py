"""What a departed client costs, by servers that say what they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EngineError
from harness.runs.cancel import CANCEL, _Turns

pytestmark = pytest.mark.integration


@pytest.fixture
def cancel(bench: Any, start_mock: Any, tmp_path: Path) -> Any:
    """Runs `bench cancel` on a server of so many slots, each kept so long for a client that has left."""

    def run(keeps_ms: float, slots: int, *options: str) -> Any:
        server = start_mock(
            *("--itl-ms", "4", "--slots", str(slots), "--context", "512", "--metrics"),
            script=[{"keeps_ms": keeps_ms}],
        )
        ended = bench(
            *("cancel", "--base-url", server.url, "--input-len", "8", "--output-len", "40"),
            *("--pairs", "8", "--after", "4", "--anyway", "--out", str(tmp_path), *options),
        )
        files = sorted(tmp_path.glob(f"cancel_*/{CANCEL}"))
        return ended, files and json.loads(files[-1].read_text())

    return run


@pytest.mark.parametrize("keeps_ms", [0, 100])
def test_a_slot_is_free_later_by_as_much_as_the_server_keeps_it(keeps_ms, cancel):
    ended, results = cancel(keeps_ms, 1)
    [row] = results["rows"]
    assert ended.code == 0 and ended.out.endswith(f"{CANCEL}\n")
    assert row["later_ms"]["value"] == pytest.approx(keeps_ms, abs=15.0)
    assert row["unread"]["value"] == pytest.approx(keeps_ms / 4, abs=4.0)
    assert row["counted"]["value"] == pytest.approx(keeps_ms / 4, abs=1.0)
    assert row["ended_ms"]["value"] == pytest.approx(4.0, abs=15.0)
    low, high = row["later_ms"]["ci"] or (-15, 115)
    assert low <= row["later_ms"]["value"] <= high


def test_requests_beside_keep_the_other_slots(cancel):
    _, results = cancel(100, 2, "--slots", "2", "--pairs", "3")
    [row] = results["rows"]
    assert row["later_ms"]["value"] == pytest.approx(100, abs=15.0)


def test_a_server_with_more_slots_than_said_has_no_figures(cancel):
    ended, results = cancel(0, 8)
    assert ended.code == 3 and not results["rows"]
    assert "--slots" in results["skipped"][0]["hint"]


def test_what_was_measured_before_a_failure_is_kept(cancel, monkeypatch):
    departure = _Turns.departure

    def failing(turns: Any, label: str, after: int, pairs: int) -> Any:
        if after == 8:
            raise EngineError("a request was not answered", "see the engine's log")
        return departure(turns, label, after, pairs)

    monkeypatch.setattr(_Turns, "departure", failing)
    ended, results = cancel(0, 1, "--pairs", "1", "--after", "4,8")
    assert ended.code == 3 and [row["after"] for row in results["rows"]] == [4]
    assert len(results["skipped"]) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--after", "1"], "--after"),
        (["--after", "40"], "--output-len"),
        (["--output-len", "uniform:8:9"], "--output-len"),
        (["--output-len", "511"], "--output-len"),
        (["--base-url", "http://127.0.0.1:1,http://127.0.0.1:2"], "address"),
    ],
)
def test_what_says_nothing_is_refused(options, named, cancel):
    ended, results = cancel(0, 1, *options)
    assert ended.code == 2 and not results
    assert named in ended.err and "Traceback" not in ended.err
