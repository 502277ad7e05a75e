"""The answer of a run: which template it is, what stands out, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.metrics.rankings import Ranking, RankingRow
from harness.report.answer import answer, assumption, rankings_of, terms
from harness.report.compared import of_rankings
from harness.report.tables.ranking import ranking_table
from harness.report.wording import Sentence
from harness.runs.reader import Run, load_run
from harness.schema.facts import Fact
from harness.schema.load import ClosedLoop

from .conftest import ENGINES, make_online

LOAD = ClosedLoop(concurrency=8)


def ranking(
    best: str, other: str, *, significant: bool, statistic: str = "p50", headline: bool = True
) -> Ranking:
    rows = [
        RankingRow(label=best, value=10.0),
        RankingRow(label=other, value=20.0, ratio=2, ratio_interval=(1.5, 2.5), significant=significant),
    ]
    return Ranking(metric="ttft_ms", statistic=statistic, load=LOAD, rows=rows, headline=headline)


def strong(sentence: Sentence) -> list[str]:
    return [part for part, stands_out in sentence.marked if stands_out]


WON, LOST = ranking("a", "b", significant=True), ranking("b", "a", significant=True, statistic="p99")


@pytest.mark.parametrize(
    ("rankings", "labels", "names"),
    [
        ([WON], "ab", ["a"]),
        ([WON, LOST], "ab", ["a", "b"]),
        ([ranking("a", "b", significant=False)], "ab", []),
        ([], "ab", []),  # too few requests
    ],
)
def test_the_winners_stand_out(run: Run, rankings: list[Ranking], labels: str, names: list[str]) -> None:
    compared = [run.pooled[0].model_copy(update={"label": label}) for label in labels]
    assert strong(of_rankings("here", rankings, compared)) == names


def test_a_run_has_one_of_load(run: Run, small: Run, offline_run: Path) -> None:
    offline = load_run(offline_run)
    assert all(len(answer(each)) == 1 for each in (run, small, offline))
    cells = [cell.model_copy(update={"valid": False}) for cell in run.results.summaries]
    invalid = replace(run, results=run.results.model_copy(update={"summaries": cells}))
    [sentence] = answer(invalid)
    assert strong(sentence) == [] and str(sentence) != str(answer(run)[0])


def test_intervals_of_one_repeat_rest_on_an_assumption(run: Run, swept: Run) -> None:
    assert assumption(swept) and not assumption(run)


def test_a_server_with_requests_of_others_is_not_called_idle(small: Run) -> None:
    def with_facts(*facts: Fact) -> Run:
        update = {"peak_in_flight": 2, "notices": list(facts)}
        summaries = [cell.model_copy(update=update) for cell in small.results.summaries]
        return replace(small, results=small.results.model_copy(update={"summaries": summaries}))

    others = Fact(kind="others_requests", values={"most": 40, "share": 1})
    assert len(terms(with_facts())) == len(terms(with_facts(others))) + 1


def test_the_table_is_the_ranking(run: Run) -> None:
    found = rankings_of(run)
    table = ranking_table(found)
    loads = list(dict.fromkeys(ranking.load for ranking in found))
    assert len(table.rows) == len(loads) * len(ENGINES)
    by_place = {(ranking.load.value, ranking.metric): ranking for ranking in found if ranking.headline}
    for label, load, _, *cells in table.rows:
        for metric, cell in zip(("ttft_ms", "tpot_ms"), cells, strict=True):
            ranking = by_place[load.value, metric]
            row = ranking.row(label.text)
            assert row is not None and cell.value == row.value
            assert cell.invalid is not row.valid and cell.significant is bool(row.significant)
            assert cell.best is (ranking.winner == label.text)
            assert cell.text.endswith("×") is (row.ratio is not None)


def test_no_engine_comes_first_by_default(tmp_path: Path) -> None:
    slow_first = [ENGINES[2], ENGINES[0]]
    for name, engines in (("a", slow_first), ("b", slow_first[::-1])):
        folder = make_online(tmp_path / name, engines=engines, scales=[0.4], repeats=2, faults=False)
        table = ranking_table(rankings_of(load_run(folder, trust=True)))
        assert [row[0].text for row in table.rows] == ["roseinfer", "vLLM"]
