"""The exit code says whether there is a result to believe."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from harness.cli.ending import conclude
from harness.schema.results import OnlineResults, OnlineSummary
from harness.schema.search import SearchPlan, SearchResults


@pytest.mark.parametrize(
    ("cells", "search", "code"),
    [
        ([(True, 0), (True, 0)], False, 0),
        ([(True, 0), (False, 0)], False, 0),  # one engine sent late, the other is measured
        ([(False, 0), (False, 0)], False, 3),  # nothing is valid, though no request failed
        ([(True, 0), (False, 1)], False, 3),
        ([(True, 0), (False, 1)], True, 0),  # a load was too heavy
        ([(False, 1), (False, 1)], True, 3),
    ],
)
def test_a_run_without_a_valid_cell_fails(
    cells: list[tuple[bool, int]], search: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    known: list[dict[str, Any]] = [{"valid": valid, "num_error": failed} for valid, failed in cells]
    plan = SearchPlan.make("concurrency", "ttft_p99<=1s")
    fields: dict[str, Any] = {
        "summaries": [OnlineSummary.model_construct(**cell) for cell in known],
        "skipped": [],
        "meta": SimpleNamespace(unasked=[]),
        "search": SearchResults(plan=plan, engines=[]) if search else None,
    }
    results = OnlineResults.model_construct(**fields)
    found = 0
    try:
        conclude(results, Path("report.html"), None, as_json=False, open_report=False)
    except typer.Exit as end:
        found = end.exit_code
    assert found == code
    assert capsys.readouterr().out == "report.html\n"


def test_the_report_opens_in_a_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    cell: dict[str, Any] = {"valid": True, "num_error": 0}
    fields: dict[str, Any] = {"summaries": [OnlineSummary.model_construct(**cell)], "skipped": []}
    fields["meta"] = SimpleNamespace(unasked=[])
    results = OnlineResults.model_construct(**fields)
    for asked in (False, True):
        conclude(results, tmp_path / "a b.html", None, as_json=False, open_report=asked)
    assert opened == [f"{tmp_path.as_uri()}/a%20b.html"]
