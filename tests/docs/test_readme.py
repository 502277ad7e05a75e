"""The README's results are those of the published reports, which come from raw tables."""

from __future__ import annotations

import re
from html import unescape

from .commands import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "reports" / "index.html").read_text(encoding="utf-8")
_FIGURE = re.compile(r"p\d\d [\d.,]+ ms|[\d.,]+×|[\d.,]+ tok/s")


def published(report: str) -> str:
    """What the index says by the raw tables of a report."""
    rows = re.findall(r"<tr>\n<th scope=\"row\">.*?</tr>", INDEX, flags=re.S)
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", row) for row in rows if f'href="{report}"' in row))


def test_every_figure_of_a_result_is_in_its_report():
    section = README.partition("\n## Results\n")[2].partition("\n## ")[0]
    rows = [
        (link[1], row)
        for row in section.splitlines()
        if row.startswith("| ") and (link := re.search(r"\(reports/([^)]*)\)", row))
    ]
    assert len(rows) > 1
    for report, row in rows:
        figures = _FIGURE.findall(row)
        assert figures and set(figures) <= set(_FIGURE.findall(published(report))), row


def test_the_verdict_that_is_shown_is_that_of_a_published_run():
    block = README.partition("\nA run ends with its answer")[2].partition("\nWith ")[2]
    shown, _, _ = block.partition("\n\n")
    page = unescape((ROOT / "reports" / "cpu-smollm2-135m.html").read_text(encoding="utf-8"))
    verdict = page.partition('aria-label="Verdict">')[2].partition("</section>")[0]
    said = re.sub("<[^>]*>", "", " ".join(re.findall("<p>(.*?)</p>", verdict, flags=re.S))).split()
    assert said == ["With", *shown.split()]


def test_the_picture_is_small():
    [picture] = re.findall(r"!\[[^]]+\]\(([^)]*)\)", README)
    assert (ROOT / picture).stat().st_size < 300_000
