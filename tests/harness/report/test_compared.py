"""Engines compared as a reader chooses: the choice, the sentence, why, the table."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.metrics.rankings import REAL, excludes_one, fell_behind, rankings
from harness.report.compared import (
    Choice,
    by_themselves,
    choices,
    chosen,
    compared_table,
    first_choice,
    gaps_of,
    pairs,
    verdict,
    why,
)
from harness.report.wording import WITHHELD_NOTE
from harness.runs.reader import Run, load_run
from harness.schema.facts import Fact, Scope
from harness.schema.load import ClosedLoop, Load
from harness.schema.metrics import METRICS

REPORTS = Path(__file__).parents[3] / "reports"
HEAVY = ClosedLoop(concurrency=64)


@pytest.fixture(scope="module")
def published() -> Run:
    return load_run(REPORTS / "h200-qwen3-8b", trust=True)


def test_any_two_engines_and_any_load_can_be_chosen(published: Run) -> None:
    assert first_choice(published) == Choice(HEAVY, ("LMDeploy", "SGLang", "vLLM", "roseinfer"))
    assert chosen(published, "vllm,sglang", "64") == Choice(HEAVY, ("SGLang", "vLLM"))
    assert chosen(published, "VLLM", None) == Choice(HEAVY, ("vLLM", "LMDeploy", "SGLang", "roseinfer"))
    assert chosen(published, None, "1").load == ClosedLoop(concurrency=1)
    loads = len({each.load for each in published.pooled})
    assert len(choices(published)) == 4 * loads and len(list(pairs(published))) == 6 * loads


@pytest.mark.parametrize(
    ("compare", "load"), [("vlm", None), ("vllm,vllm", None), ("vllm,sglang,roseinfer", None), (None, "63")]
)
def test_a_choice_that_there_is_not_is_refused(published: Run, compare: str | None, load: str | None) -> None:
    with pytest.raises(UsageError):
        chosen(published, compare, load)


def test_the_engines_of_the_authors_are_never_first(published: Run) -> None:
    assert [label for _, label in published.engines] == ["LMDeploy", "SGLang", "vLLM", "roseinfer"]


def verdicts(run: Run, load: Load, a: str, b: str) -> dict[str, str]:
    """The verdict on `a` against `b` for each statistic, by its name in rankings."""
    turned = {"better": "worse", "worse": "better"}
    found = {}
    for each in run.results.comparisons:
        if each.load == load and {each.a, each.b} == {a, b}:
            name = METRICS[each.metric].label
            name = name if each.statistic == each.metric else f"{name} {each.statistic}"
            found[name] = each.verdict if each.a == a else turned.get(each.verdict, each.verdict)
    return found


def test_better_and_worse_are_those_of_the_comparisons(published: Run) -> None:
    for other, baseline in (("LMDeploy", "roseinfer"), ("roseinfer", "LMDeploy")):
        table = compared_table(published, Choice(HEAVY, (baseline, other)))
        expected = verdicts(published, HEAVY, other, baseline)
        marks = set()
        for column in table.columns[1:]:
            name = column.full.replace(", ms", "")
            verdict_of, cell = expected.get(name), column.cells[1]
            if verdict_of is None:
                continue
            assert (cell.best, cell.worse) == (verdict_of == "better", verdict_of == "worse")
            assert not cell.best or cell.against.endswith("better")
            assert not cell.worse or cell.against.endswith("worse")
            marks.add(verdict_of)
        assert marks >= {"better", "worse"}


def test_a_pair_is_judged_by_its_own_comparisons_at_every_percentile(published: Run) -> None:
    sentence = verdict(published, chosen(published, "lmdeploy,roseinfer", "64"))
    pair = rankings(
        [each for each in published.pooled if each.load == HEAVY and each.label in ("LMDeploy", "roseinfer")],
        published.results.comparisons,
    )
    expected = verdicts(published, HEAVY, "LMDeploy", "roseinfer")
    winners = {"better": "LMDeploy", "worse": "roseinfer"}
    assert {each.name: each.winner for each in pair} == {
        name: winners.get(verdict_of) for name, verdict_of in expected.items()
    }
    bold = {part for part, stands_out in sentence.marked if stands_out}
    assert bold == {each.winner for each in pair if each.winner} == {"LMDeploy", "roseinfer"}


def test_most_of_a_difference_has_its_reason(published: Run) -> None:
    """Only of a difference that is shown; without a profile those of TTFT have parts."""
    gaps = gaps_of(published)
    shown = 0
    for choice in pairs(published):
        expected = verdicts(published, choice.load, *choice.labels)
        differs = any(expected[f"TTFT p{q}"] in ("better", "worse") for q in (50, 90, 99))
        reasons = why(published, choice, gaps)
        assert len(reasons) <= differs
        shown += len(reasons)
    assert shown


def test_the_parts_of_a_reason_add_up_to_its_difference(published: Run) -> None:
    gaps, turned = gaps_of(published), 0
    for choice in pairs(published):
        for reason in why(published, choice, gaps):
            whole, part, *rest = (float(ms) for ms in re.findall(r"([\d.]+) ms", str(reason)))
            assert part - sum(rest) == pytest.approx(whole, rel=0.01) if rest else part <= whole
            turned += bool(rest)
    assert turned


def test_a_ratio_that_is_withheld_is_explained(published: Run) -> None:
    for choice in choices(published):
        table = compared_table(published, choice)
        latencies = [column for column in table.columns if column.group.endswith(", ms")]
        withheld = any(not cell.against for column in latencies for cell in column.cells[1:])
        assert withheld == (WITHHELD_NOTE in table.notes) == (choice.load == ClosedLoop(concurrency=1))


def test_what_an_interval_alone_shows_of_two_engines_is_said(published: Run) -> None:
    """And is not the verdict: that is at 5 % for all comparisons together."""
    said = 0
    for choice in pairs(published):
        alone = [
            each
            for each in published.results.comparisons
            if each.load == choice.load and {each.a, each.b} == set(choice.labels)
            and each.metric != "e2e_ms" and each.verdict not in REAL and excludes_one(each.ci)
        ]  # fmt: skip
        words = " ".join(map(str, by_themselves(published, choice)))
        sizes = sorted(f"{max(each.ratio, 1 / each.ratio):.2f}×" for each in alone)
        assert sorted(re.findall(r"[\d.]+×", words)) == sizes
        assert all(METRICS[each.metric].label in words for each in alone)
        said += len(alone)
    assert said and by_themselves(published, first_choice(published)) == []


def behind(run: Run, label: str) -> Run:
    """The run, an engine of which fell behind at every load."""
    fact = Fact(kind="behind", scope=Scope(), values={"offered": 17.0, "answered": 10.9})
    cells = [
        cell.model_copy(update={"notices": [fact] if cell.label == label else []})
        for cell in run.results.summaries
    ]
    return replace(run, results=run.results.model_copy(update={"summaries": cells}))


def test_no_latency_is_compared_where_an_engine_fell_behind(run: Run) -> None:
    slow = behind(run, "SGLang")
    place = first_choice(slow)
    assert any(map(fell_behind, slow.pooled))
    at_load = [each for each in rankings(slow.pooled, slow.results.comparisons) if each.load == place.load]
    assert {each.metric for each in at_load} <= {"output_tok_per_s"}
    table = compared_table(slow, Choice(place.load, ("SGLang", "vLLM")))
    latencies = [column for column in table.columns if column.group.endswith(", ms")]
    assert len(latencies) == 9 and not any(cell.against for column in latencies for cell in column.cells)
    assert why(slow, place, gaps_of(slow)) == []


def test_the_table_has_the_values_of_the_summaries_and_every_percentile_of_a_latency(run: Run) -> None:
    for choice in choices(run):
        table = compared_table(run, choice)
        assert [row[0].text for row in table.rows] == list(choice.labels)
        for label, *cells in table.rows:
            [cell] = [s for s in run.pooled if (s.load, s.label) == (choice.load, label.text)]
            by_name = dict(zip([column.full for column in table.columns[1:]], cells, strict=True))
            values = [by_name[f"TTFT, ms p{q}"].value for q in (50, 90, 99)]
            assert values == [cell.ttft_ms.p50, cell.ttft_ms.p90, cell.ttft_ms.p99]
            assert all(low <= high for low, high in pairwise(filter(None, values)))
            assert [by_name[name].value for name in by_name if name.startswith("req/s of")] == [
                cell.req_per_s
            ]
