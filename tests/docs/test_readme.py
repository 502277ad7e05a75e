"""The README shows the results of the published runs, as `python -m scripts.readme` writes them."""

from __future__ import annotations

import re

from scripts.readme import BEGIN, END, README, ROOT, SHOWN, table

TEXT = README.read_text(encoding="utf-8")


def test_the_table_is_that_of_the_stored_results() -> None:
    assert TEXT.partition(BEGIN)[2].partition(END)[0] == table()


def test_results_of_several_runs_and_loads_are_shown() -> None:
    assert len({shown.report for shown in SHOWN}) > 1 < len({shown.load for shown in SHOWN})


def test_the_picture_is_small() -> None:
    [picture] = re.findall(r"!\[[^]]+\]\(([^)]*)\)", TEXT)
    assert (ROOT / picture).stat().st_size < 300_000
