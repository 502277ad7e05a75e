"""The README's results are those of the published runs, load by load.

They are taken as stored beside the raw tables; that these give the same is the proof of
tests/harness/report/test_published.py, for every run with raw tables.
"""

from __future__ import annotations

import re
from functools import cache
from html import unescape

import pytest

from harness.report.findings import Finding, findings
from harness.runs.reader import Run, load_run
from tests.harness.report.test_published import RAW

from .commands import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: A percentile with its value, a rate, a factor, a percentage.
_FIGURE = re.compile(r"p\d\d [\d.,]+ ms|[\d.,]+ tok/s|[\d.,]+×|[\d.,]+ %")
#: An engine, where one is named, and a value of it.
_CLAIM = re.compile(r"(?:([\w.]+(?: \([\w ]+\))?): )?((?:TTFT|TPOT) p\d\d [\d.,]+ ms|[\d.,]+ tok/s)")
_REPORT = re.compile(r"\(reports/([^)]*)\.html\)")


def _rows() -> list[list[str]]:
    """Of the table of results: machine, load, terms, result, report."""
    section = README.partition("\n## Results\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in section.splitlines()]
    return [row for row in rows if len(row) == 5 and _REPORT.search(row[4])]


@cache
def published(report: str) -> list[Finding]:
    """What a published run says of each load."""
    assert report in RAW
    return findings(load_run(ROOT / "reports" / report, trust=True))


def _finding(report: str, load: str) -> Finding:
    """Of the load that a row names: so many requests in flight, or requests/s."""
    count = re.search(r"([\d.,]+) (requests?) in flight|([\d.,]+) requests/s", load)
    assert count is not None, load
    at = f"{count[1]} in flight" if count[1] else f"{count[3]} requests/s"
    [found] = [finding for finding in published(report) if finding.at.startswith(at)]
    return found


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row[0][:12]}, {row[1][:12]}")
def test_every_figure_of_a_result_is_of_its_load_in_the_raw_tables(row: list[str]) -> None:
    _, load, terms, result, link = row
    report = _REPORT.search(link)
    assert report is not None
    found = _finding(report[1], load)
    said = [f"{answer.engine}: {answer.metric} {answer.detail}" for answer in found.answers]
    known = {figure for text in said for figure in _FIGURE.findall(text)}
    figures = _FIGURE.findall(result)
    assert figures and set(figures) <= known, sorted(set(figures) - known)
    engine = ""
    for named, value in _CLAIM.findall(result):
        engine = named or engine  # the one that was named last
        assert any(text.startswith(f"{engine}: ") and value in text for text in said), (engine, value)
    repeats = re.search(r"(\d+) repeats?", terms)
    assert repeats is None or int(repeats[1]) == found.repeats


def test_results_of_several_loads_and_runs_are_shown() -> None:
    assert len({_REPORT.search(row[4])[1] for row in _rows()}) > 1 < len({row[1] for row in _rows()})  # type: ignore[index]


def test_the_verdict_that_is_shown_is_that_of_a_published_run() -> None:
    block = README.partition("\nA run ends with its answer")[2].partition("\nWith ")[2]
    shown, _, _ = block.partition("\n\n")
    page = unescape((ROOT / "reports" / "cpu-smollm2-135m.html").read_text(encoding="utf-8"))
    verdict = page.partition('aria-label="Verdict">')[2].partition("</section>")[0]
    said = re.sub("<[^>]*>", "", " ".join(re.findall("<p[^>]*>(.*?)</p>", verdict, flags=re.S))).split()
    assert said == ["With", *shown.split()]


def test_the_table_of_the_verdict_has_the_raw_tables_figures() -> None:
    """Engine rows of the terminal's table: p50 and p90 of TTFT and TPOT, requests/s, tokens/s."""
    block = README.partition("\n in flight  engine")[2].partition("\n```")[0]
    rows = re.findall(r"^ +(\d+)  (\S+) +(.+)$", block, flags=re.M)
    assert "cpu-smollm2-135m" in RAW
    run = load_run(ROOT / "reports" / "cpu-smollm2-135m", trust=True)
    assert isinstance(run, Run) and len(rows) == len(run.pooled)
    for in_flight, engine, numbers in rows:
        [cell] = [c for c in run.pooled if (c.label, c.load.value) == (engine, int(in_flight))]
        known = [
            *(cell.ttft_ms.p50, cell.ttft_ms.p90, cell.tpot_ms.p50, cell.tpot_ms.p90),
            *(cell.req_per_s, cell.output_tok_per_s),
        ]
        for text, value in zip(numbers.replace(",", "").split(), known, strict=True):
            places = len(text.partition(".")[2])
            assert float(text) == pytest.approx(value, abs=0.5 * 10**-places + 1e-9), (engine, text)


def test_the_picture_is_small() -> None:
    [picture] = re.findall(r"!\[[^]]+\]\(([^)]*)\)", README)
    assert (ROOT / picture).stat().st_size < 300_000
