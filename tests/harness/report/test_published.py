"""The reports that are published are what today's code renders from the raw times beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.report.render import write_report

REPORTS = Path(__file__).parents[3] / "reports"
RAW = sorted(
    path.parent.name
    for name in ("requests.parquet", "offline_results.json")
    for path in REPORTS.glob(f"*/{name}")
)


def test_there_are_reports_with_raw_times() -> None:
    assert RAW


@pytest.mark.parametrize("name", RAW)
def test_a_published_report_is_what_its_raw_times_give(name: str, tmp_path: Path) -> None:
    run = shutil.copytree(REPORTS / name, tmp_path / name)
    written = write_report([run], tmp_path / "report.html")
    same = written.read_bytes() == (REPORTS / f"{name}.html").read_bytes()
    assert same, f"run `bench report reports/{name}` in the root of the repository"
    assert "not those of the raw times" not in written.read_text()
