"""The index of reports: which engine for what, by the raw tables of their runs."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest

from harness.metrics.rankings import capacity_ranking
from harness.report.answer import rankings_of
from harness.report.findings import FINDINGS, findings
from harness.report.index import _entry, _groups, caveat, cells, write_index
from harness.report.render import write_report
from harness.report.tables.rates import batch_ratios_table
from harness.runs.reader import Run, load_run, load_runs
from tests.harness.offline_runs import write_run

from .conftest import Engine, make_online

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "reports"


FAST, SLOW = Engine("roseinfer", "roseinfer", 0.004, 0.001), Engine("vllm", "vLLM", 0.09, 0.012)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Two engines far apart at two loads; at the heavier one requests of the slow one fail."""
    folder = tmp_path_factory.mktemp("index") / "run"
    return make_online(folder, engines=[FAST, SLOW], scales=[0.4, 0.8], repeats=3, n=110)


def text(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


@pytest.fixture(scope="module")
def report(compared, tmp_path_factory) -> Path:
    return write_report(load_runs([compared]), tmp_path_factory.mktemp("reports") / "a b.html")


def test_a_finding_has_the_rankings_of_its_load(compared):
    run = load_run(compared, trust=True)
    light, heavy = findings(run)
    assert light.rankings + heavy.rankings == rankings_of(run)
    assert {ranking.winner for ranking in light.rankings if ranking.headline} == {"roseinfer"}
    assert {ranking.winner for ranking in heavy.rankings} == {None}  # of which one engine is valid


def test_a_finding_says_what_is_invalid_and_how_much_was_measured(compared):
    run = load_run(compared, trust=True)
    light, heavy = findings(run)
    assert (light.invalid, heavy.invalid, light.repeats) == ([], ["vLLM"], 3)
    assert light.seconds == pytest.approx(min(s.duration_s for s in run.repeats if s.load.value == 0.8), 0.1)
    assert "answers unchecked" in light.caveats
    assert caveat(heavy).startswith("vLLM invalid")


def test_a_winner_of_a_moment_says_how_little_was_measured(tmp_path):
    rates = {"roseinfer": (2000.0,), "vLLM": (500.0,)}
    run = load_run(write_run(tmp_path / "run", rates))  # 128 tokens
    [finding] = findings(run)
    assert caveat(finding).endswith("1 repeat of 0.064 s")
    [ranking] = finding.rankings
    assert [row.label for row in ranking.rows] == ["roseinfer", "vLLM"]
    assert ranking.rows[1].ratio == pytest.approx(0.25)
    table = batch_ratios_table(run.results)
    [row] = table.lines
    assert row[table.headers.index("p")] == "< 0.001"


def test_a_report_carries_its_findings_and_the_index_shows_them(compared, report):
    found = findings(load_run(compared, trust=True))
    page = report.read_text(encoding="utf-8")
    carried = re.search(r'name="rosebench-findings" content="([^"]*)"', page)
    assert FINDINGS.validate_json(unescape(carried[1])) == found
    (report.parent / "other.html").write_text("<title>something else</title>")
    page = write_index(report.parent).read_text(encoding="utf-8")
    assert 'href="a%20b.html"' in page and "other.html" not in page and "index.html" not in page
    glance = text(page)
    for label in found[0].engines:
        values = cells(found[0], found[0].family(label))[label]["TTFT"]
        ranked = [ranking for ranking in found[0].rankings if ranking.metric == "ttft_ms"]
        assert [each.value for each in values] == [ranking.row(label).value for ranking in ranked] != []
        assert f"TTFT {' / '.join(each.text for each in values)}" in glance
        assert [each.is_best for each in values] == [ranking.winner == label for ranking in ranked]
    assert write_index(report.parent).read_text(encoding="utf-8") == page


def test_engines_whose_labels_differ_in_case_share_a_column(compared, report, tmp_path):
    shutil.copy(report, tmp_path / "a.html")
    (tmp_path / "b.html").write_text(
        report.read_text(encoding="utf-8").replace("vLLM", "vllm"), encoding="utf-8"
    )
    index = write_index(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r'<th scope="col" data-head="(.*?)"', index) == ["roseinfer", "vLLM"]
    assert '<td data-head="vLLM"><small><bdi>vllm</bdi></small><p>' in index


def test_many_findings_are_all_listed(compared, report, tmp_path):
    several = FINDINGS.dump_json(findings(load_run(compared, trust=True)) * 40).decode()
    page = report.read_text(encoding="utf-8")
    head, _, rest = page.partition('name="rosebench-findings" content="')
    content = f'{head}name="rosebench-findings" content="{escape(several)}"{rest.partition(chr(34))[2]}'
    (tmp_path / "many.html").write_text(content, encoding="utf-8")
    assert len(several) > 1 << 17 and len(_entry(tmp_path / "many.html").findings) == 80


def test_a_difference_that_is_not_significant_says_so(tmp_path):
    alike = Engine("sglang", "SGLang", FAST.prefill_s, FAST.step_s)
    folder = make_online(
        tmp_path / "run", engines=[FAST, alike], scales=[0.4], repeats=3, n=110, faults=False
    )
    write_report(load_runs([folder]), tmp_path / "report.html")
    page = write_index(tmp_path).read_text(encoding="utf-8").partition("At a glance")[2]
    rows = page.partition("</table>")[0]
    assert '<data value="' in rows and 'class="best"' not in rows


def test_a_search_carries_its_ranking_and_its_answer():
    run = load_run(PUBLISHED / "cpu-amx-smollm2-135m-search", trust=True)
    assert isinstance(run, Run) and run.results.search is not None
    [finding] = findings(run)
    assert finding.rankings == [capacity_ranking(run.results.search)]
    assert finding.carried and finding.repeats == 3
    nothing = replace(run, results=run.results.model_copy(update={"summaries": []}))
    assert findings(nothing) == []


@pytest.mark.parametrize("carried", ["[{}]", ""])
def test_a_report_of_another_version_is_listed_without_findings(carried, report, tmp_path):
    page = report.read_text(encoding="utf-8")
    old = re.sub('(?<=name="rosebench-findings" content=")[^"]*', carried, page)
    (tmp_path / "old.html").write_text(old, encoding="utf-8")
    index = write_index(tmp_path).read_text(encoding="utf-8")
    assert 'href="old.html"' in index and "rowgroup" not in index


def test_the_published_index_is_what_the_command_writes(tmp_path):
    for path in PUBLISHED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "index.html").unlink()
    written, published = (
        path.read_text(encoding="utf-8").partition("<body>")[2]
        for path in (write_index(tmp_path), PUBLISHED / "index.html")
    )
    assert written == published, "run `bench report` in the root of the repository"


def test_what_was_measured_of_a_model_stands_together(compared, report, tmp_path):
    page = report.read_text(encoding="utf-8")
    found = findings(load_run(compared, trust=True))[:1]
    shown = ["qwen3-8b, bf16, cuda", "gpt2, fp16", "qwen3-8b with random weights, bf16"]
    for day, model in enumerate(shown):
        carried = escape(FINDINGS.dump_json([found[0].model_copy(update={"model": model})]).decode())
        head = re.sub('(?<=name="rosebench-made" content=")[^"]*', f"2026-11-0{9 - day}", page)
        before, _, after = head.partition('name="rosebench-findings" content="')
        made = f'{before}name="rosebench-findings" content="{carried}"{after.partition(chr(34))[2]}'
        (tmp_path / f"{day}.html").write_text(made, encoding="utf-8")
    index = write_index(tmp_path).read_text(encoding="utf-8")
    headings = re.findall(r'<th scope="rowgroup"[^>]*><bdi>([^<]*)', index)
    assert headings == [shown[0], shown[2], shown[1]]


def test_the_largest_model_comes_first_and_of_one_size_the_newest():
    reports = [path for path in sorted(PUBLISHED.glob("*.html")) if path.name != "index.html"]
    entries = sorted(map(_entry, reports), key=lambda entry: entry.meta["made"], reverse=True)
    groups = [group for group in _groups(entries) if len(group.families) > 1]
    sizes = [group.billions for group in groups]
    assert sizes == sorted(sizes, reverse=True) and {32.0, 8.0, 0.135} <= {*sizes}
    days = {}
    for group in groups:
        newest = max(finding.made for finding, _ in group.rows)
        days[group.name] = max(newest, days.get(group.name, ""))
    eight = [group.name for group in groups if group.billions == 8]
    assert [days[name] for name in eight] == sorted((days[name] for name in eight), reverse=True)


def test_a_load_of_several_runs_is_named_with_its_run(compared, report, tmp_path):
    shutil.copy(report, tmp_path / "a.html")
    assert "<small>a</small>" not in write_index(tmp_path).read_text(encoding="utf-8")
    [group] = _groups([_entry(tmp_path / "a.html")])
    assert not group.is_of_several_runs
    other = replace(
        group, rows=[*group.rows, (group.rows[0][0].model_copy(update={"made": "2026-01-01"}), "b.html")]
    )
    assert other.is_of_several_runs
