"""Published reports: their runs were measured long and often enough, and today's code renders them (`make
published`) from the raw times beside them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from harness.report.render import write_report
from harness.runs.reader import load_runs

REPORTS = Path(__file__).parents[3] / "reports"
RAW = sorted(
    path.parent.name
    for name in ("requests.parquet", "offline_results.json")
    for path in REPORTS.glob(f"*/{name}")
)


def test_there_are_reports_with_raw_times() -> None:
    assert RAW


@pytest.mark.published
@pytest.mark.parametrize("name", RAW)
def test_a_published_report_is_what_its_raw_times_give(name: str, tmp_path: Path) -> None:
    run = shutil.copytree(REPORTS / name, tmp_path / name)
    written = write_report(load_runs([run]), tmp_path / "report.html")
    same = written.read_bytes() == (REPORTS / f"{name}.html").read_bytes()
    assert same, f"run `bench report reports/{name}` in the root of the repository"
    assert "not those of the raw times" not in written.read_text()


@pytest.mark.parametrize("name", RAW)
def test_a_published_report_is_of_a_clean_tree_long_cells_and_three_repeats(name: str) -> None:
    info = json.loads((REPORTS / name / "run.json").read_text())
    assert info["environment"]["git"]["dirty"] is False
    [results] = (REPORTS / name).glob("*_results.json")
    found = json.loads(results.read_text())
    cells = [
        (cell["label"], str(cell["load"]), cell["duration_s"])
        for cell in found.get("summaries", [])
        if cell["repeat"] is not None
    ]
    batches = [(row["label"], "", row["batches"] * row["total_s"]) for row in found.get("results", [])]
    measured = cells + batches
    assert min(seconds for *_, seconds in measured) >= 30
    if info.get("search") is None:  # which measures again where it cannot decide
        repeats = Counter((label, load) for label, load, _ in measured)
        assert min(repeats.values()) >= 3
