"""What the report says of a search."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.rankings import capacity_ranking
from harness.report.tables.capacity import agents_table, capacity_answer, capacity_tables
from harness.report.tables.table import Cell
from harness.report.text.numbers import DASH
from harness.runs.journal import JournalEntry
from harness.runs.search import EngineSearch, search_results
from harness.schema.facts import Fact, FactKind
from harness.schema.load import ClosedLoop
from harness.schema.machines import GpuLoad, Hourly, MachineLoad
from harness.schema.metrics import LATENCIES
from harness.schema.results import Distribution, OnlineSummary, Skipped
from harness.schema.search import SearchPlan, SearchResults

#: What is said of capacities below the lightest and above the heaviest load.
BEYOND: dict[float, str] = {0: "under 1", 99: "64 or more"}
PLAN = SearchPlan.make("concurrency", "ttft_p50<=50ms", lowest=1, highest=64, cells=12, tolerance=0.5)


def cell(
    concurrency: float, ttft: float, noticed: FactKind | None = None, failed: int = 0, **given: Any
) -> OnlineSummary:
    found = dict.fromkeys(LATENCIES, Distribution())
    found["ttft_ms"] = Distribution(mean=ttft, p50=ttft, p90=ttft, p95=ttft, p99=ttft, max=ttft, n=100)
    return OnlineSummary(
        engine="x", label="x", load=ClosedLoop(concurrency=round(concurrency)), repeat=0, num_requests=100,
        num_success=100 - failed, num_error=failed, duration_s=1, offered_req_per_s=1, req_per_s=1,
        output_tok_per_s=1, total_tok_per_s=1, prompt_tokens=1, completion_tokens=1, chunks=1, **found,
        notices=[] if noticed is None else [Fact(kind=noticed)], **given,
    )  # fmt: skip


def to_its_end(plan: SearchPlan, label: str, capacity: float, joules: float | None = None) -> EngineSearch:
    """A search of an engine that meets the limits up to its capacity; of `joules` for each unit of load."""
    search = EngineSearch(plan, label)
    while not search.ended:
        load = search.next_value
        at = None if joules is None else machine(joules * load)
        search.take(cell(load, ttft=10 if load <= capacity else 90), 0, at)
    return search


def searched(**capacities: float) -> SearchResults:
    """Each engine meets the limits up to its capacity."""
    a, b = searches = [to_its_end(PLAN, label, capacity) for label, capacity in capacities.items()]
    ratios = [a.against(b, pairs=1)]
    return SearchResults(
        plan=PLAN, engines=[s.capacity(s.label, None, "the time was over") for s in searches], ratios=ratios
    )


def machine(joules: float | None) -> MachineLoad:
    gpu = GpuLoad.model_construct(joules=joules)
    return MachineLoad(
        seconds=4, samples=1, cpus=1, own_cpu_s=0, foreign_cores_mean=0, foreign_cores_max=0, steal_share=0,
        gpus=[gpu],
    )  # fmt: skip


def test_agents_are_counted_per_gpu_kilowatt_and_price():
    plan = SearchPlan.make("agents", "ttft_p50<=50ms", lowest=1, highest=64, cells=12, tolerance=0.5)
    search = to_its_end(plan, "a", 20, joules=800)
    found = search.capacity("a", None, "")
    assert found.watts == max(200 * trial.value for trial in search.trials if trial.met)
    results = SearchResults(plan=plan, engines=[found])
    table = agents_table(results, {"a": 2}, Hourly(amount=8, currency="$", of="4 GPUs"), 4)
    assert table is not None and found.value is not None
    assert {column.title: column.cells[0].value for column in table.columns[1:]} == {
        "agents per GPU": found.value / 2,
        "agents per kW": pytest.approx(found.value / found.watts * 1e3),
        "agents per $ an hour": found.value / 4,  # two of four GPUs
    }
    assert agents_table(results.model_copy(update={"plan": PLAN}), {"a": 2}, None, 4) is None
    unknown = SearchResults(plan=plan, engines=[found.model_copy(update={"trials": []})])
    assert agents_table(unknown, {"a": 0}, None, 0) is None


@pytest.mark.parametrize(
    ("capacities", "said"),
    [
        ({"a": 0, "b": 0}, ["No engine meets TTFT p50 ≤ 50 ms at the lightest load, 1 request in flight."]),
        (
            {"a": 99, "b": 99},
            ["Every engine meets TTFT p50 ≤ 50 ms at the heaviest load, 64 requests in flight."],
        ),
        ({"a": 99, "b": 0}, ["a carries most: 64 or more requests in flight"]),
        ({"a": 20, "b": 0}, ["requests in flight (95 % interval"]),
    ],
)
def test_loads_beyond_what_was_allowed_are_no_capacity(capacities: dict[str, float], said: list[str]) -> None:
    found = searched(**capacities)
    for words, sentence in zip(said, capacity_answer(found), strict=True):
        assert words in str(sentence)
    values = [row[1].text for row in capacity_tables(found)[0].rows]
    for value, capacity in zip(values, capacities.values(), strict=True):
        assert value == BEYOND.get(capacity, value)


def test_one_cell_is_no_capacity() -> None:
    """Where every cell said the same, the interval stands for the value, which is a guess."""
    searches = [to_its_end(PLAN, "a", 20), EngineSearch(PLAN, "b")]
    searches[1].take(cell(32, ttft=90), start=0)
    found = SearchResults(
        plan=PLAN, engines=[s.capacity(s.label, None, "the time was over") for s in searches],
        ratios=[searches[0].against(searches[1], pairs=3)],
    )  # fmt: skip
    assert [engine.guessed for engine in found.engines] == [False, True]
    ranking = capacity_ranking(found)
    assert [(row.label, row.valid, row.ratio) for row in ranking.rows] == [
        ("a", True, None),
        ("b", False, None),
    ]
    [engines] = capacity_tables(found)
    assert engines.rows[1][1] == Cell(DASH)


def test_a_server_that_died_before_it_missed_the_limits_is_not_the_best() -> None:
    """What `a` would carry beyond the loads that it was asked is not made up."""
    measured = [("a", load, True) for load in (4, 8, 16)]
    measured += [("b", load, load <= 44) for load in (8, 16, 32, 64, 48, 40, 56, 36)]
    entries, summaries = [], []
    for place, (label, load, met) in enumerate(measured):
        summaries.append(cell(load, ttft=10 if met else 90).model_copy(update={"label": label}))
        name = {"engine": "x", "label": label, "finished": ""}
        entries.append(
            JournalEntry(
                cell=place, load=summaries[-1].load, repeat=0, start=0, summary=summaries[-1], **name
            )
        )
    skipped = [Skipped(engine="x", label="a", reason="it ended with code 137")]
    found = search_results(PLAN, entries, summaries, skipped, interrupted=False)
    a, b = found.engines
    assert (a.value, a.guessed, b.guessed, found.ratios) == (None, True, False, [])
    ranking = capacity_ranking(found)
    assert [(row.label, row.valid) for row in ranking.rows] == [("b", True), ("a", False)]
    assert ranking.winner is None


@pytest.mark.parametrize(("loads", "ttft"), [((1,), 10), ((4, 2, 1), 90)])
def test_cells_that_all_say_the_same_are_no_capacity(loads: tuple[int, ...], ttft: float) -> None:
    """One at the lightest load, and several that miss the limits."""
    search = EngineSearch(PLAN, "a")
    for load in loads:
        search.take(cell(load, ttft=ttft), start=0)
    results = SearchResults(plan=PLAN, engines=[search.capacity("a", None, "it was interrupted")])
    assert not capacity_ranking(results).valid
    if ttft == 10:
        [sentence] = capacity_answer(results)
        assert "not known" in str(sentence) and "it was interrupted" in str(sentence)


@given(st.lists(st.tuples(st.integers(1, 64), st.booleans()), min_size=1, max_size=6), st.integers(1, 6))
def test_a_verdict_is_what_its_interval_says(cells: list[tuple[int, bool]], pairs: int) -> None:
    searches = [EngineSearch(PLAN, label) for label in "ab"]
    searches[1].take(cell(8, ttft=90), start=0)
    for load, met in cells:
        searches[0].take(cell(load, ttft=10 if met else 90), start=0)
    ratio = searches[0].against(searches[1], pairs)
    assert (ratio.verdict == "more") == (ratio.low is not None and ratio.low > 1)
    assert (ratio.verdict == "less") == (ratio.high is not None and ratio.high < 1)


@pytest.mark.parametrize(("noticed", "met"), [("behind", False), ("growing", False), ("drift", True)])
def test_a_cell_in_which_the_engine_falls_behind_misses_the_limits(noticed: FactKind, met: bool) -> None:
    search = EngineSearch(PLAN, "a")
    search.take(cell(4, ttft=10, noticed=noticed), start=0)
    [trial] = search.trials
    assert trial.met is met and trial.behind is not met
    found = SearchResults(plan=PLAN, engines=[search.capacity("a", None, "the time was over")])
    said = any("falls behind misses" in note for note in capacity_tables(found)[0].notes)
    assert said is not met


@pytest.mark.parametrize(
    ("kinds", "failed", "met"),
    [
        (["failures"], 1, True),
        (["failures"], 0, True),  # one in the settling time, which is not measured
        (["failures"], 50, False),
        (["no_success"], 100, False),
        (["busy"], 0, None),
        (["failures", "busy"], 50, None),
        (["failures", "wrong_answers"], 1, None),
    ],
)
def test_an_invalid_cell_counts_only_where_its_failures_make_it_so(kinds, failed, met):
    search = EngineSearch(PLAN, "a")
    search.take(
        cell(4, ttft=10, failed=failed, valid=False, invalid_reasons=[Fact(kind=kind) for kind in kinds]),
        start=0,
    )
    assert [trial.met for trial in search.trials] == [met]
