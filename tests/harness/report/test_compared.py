"""Engines compared as a reader chooses: the choice, the sentence, why, the table."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.metrics.rankings import fell_behind, rankings
from harness.report.compared import (
    Choice,
    choices,
    chosen,
    compared_table,
    first_choice,
    gaps_of,
    pairs,
    verdict,
    why,
)
from harness.report.tables.table import transposed
from harness.runs.reader import Run, load_run
from harness.schema.facts import Fact, Scope
from harness.schema.load import ClosedLoop

REPORTS = Path(__file__).parents[3] / "reports"
HEAVY = ClosedLoop(concurrency=64)


@pytest.fixture(scope="module")
def published() -> Run:
    return load_run(REPORTS / "h200-qwen3-8b", trust=True)


def test_any_two_engines_and_any_load_can_be_chosen(published: Run) -> None:
    assert first_choice(published) == Choice(HEAVY, ("SGLang", "vLLM", "roseinfer"))
    assert chosen(published, "vllm,sglang", "64") == Choice(HEAVY, ("SGLang", "vLLM"))
    assert chosen(published, "VLLM", None) == Choice(HEAVY, ("vLLM", "SGLang", "roseinfer"))
    assert chosen(published, None, "1").load == ClosedLoop(concurrency=1)
    assert len(choices(published)) == 6 and len(list(pairs(published))) == 6


@pytest.mark.parametrize(
    ("compare", "load"), [("vlm", None), ("vllm,vllm", None), ("vllm,sglang,roseinfer", None), (None, "63")]
)
def test_a_choice_that_there_is_not_is_refused(published: Run, compare: str | None, load: str | None) -> None:
    with pytest.raises(UsageError):
        chosen(published, compare, load)


def test_the_engines_of_the_authors_are_never_first(published: Run) -> None:
    assert [label for _, label in published.engines] == ["SGLang", "vLLM", "roseinfer"]


def test_better_and_worse_are_those_of_the_comparisons(published: Run) -> None:
    table = compared_table(published, Choice(HEAVY, ("SGLang", "vLLM")))
    by_name = {row[0].text: row[1:] for row in transposed(table).rows}
    assert [by_name[name][1].best for name in ("TTFT, ms p50", "TPOT, ms p99")] == [True, False]
    worse = by_name["ITL, ms p99"][1]
    assert worse.worse and worse.against == "4.95× worse" and worse.value == pytest.approx(194.8, abs=0.1)
    other_way = compared_table(published, Choice(HEAVY, ("vLLM", "SGLang")))
    cell = {column.full: column.cells[1] for column in other_way.columns}["ITL, ms p99"]
    assert cell.best and not cell.worse and cell.against == "0.20× better"


def test_a_pair_is_judged_by_its_own_comparisons_at_every_percentile(published: Run) -> None:
    """vLLM is better in TTFT p50, SGLang in p99 of TTFT, ITL and E2E, and in TPOT no difference is shown."""
    sentence = verdict(published, chosen(published, "vllm,sglang", "64"))
    assert [part for part, stands_out in sentence.marked if stands_out] == ["vLLM", "SGLang"]
    pair = rankings(
        [each for each in published.pooled if each.load == HEAVY and each.label != "roseinfer"],
        published.results.comparisons,
    )
    assert {each.name for each in pair if each.winner == "vLLM"} == {"TTFT p50"}
    assert {each.name for each in pair if each.winner == "SGLang"} == {"TTFT p99", "ITL p99", "E2E p99"}
    assert not any(each.winner for each in pair if each.metric == "tpot_ms")


def test_most_of_a_difference_has_its_reason(published: Run) -> None:
    gaps = gaps_of(published)
    assert len(why(published, chosen(published, "roseinfer,vllm", "64"), gaps)) == 1
    assert why(published, chosen(published, "vllm,sglang", "64"), gaps) == []


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
