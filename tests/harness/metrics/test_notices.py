"""Facts of cells that a reader must know before believing their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from harness.metrics.notices import at_least_by_chance
from harness.metrics.samples import split
from harness.metrics.summary import prefix_hits
from harness.metrics.validity import too_brief
from harness.report.tables.saved_work import prefix_table
from harness.report.text.numbers import DASH
from harness.schema.facts import KINDS, Value
from harness.schema.load import ClosedLoop, Ramp, RequestRate, TraceLoad, load_text
from harness.schema.machines import MachineLoad
from harness.schema.results import OnlineSummary, PrefixHits, Speculation, SpeculationCount
from harness.schema.setting_types import Window
from tests.harness.metrics.conftest import build, summaries


def cell(
    ttft: Callable[[int], float], *, n: int = 80, every_s: float = 0.1, **columns: Any
) -> list[dict[str, Any]]:
    """Requests at even intervals, each answered with three tokens, the first after `ttft(i)` s."""
    noise = np.random.default_rng(1).uniform(0.97, 1.03, n)
    rows = []
    for i in range(n):
        sent, first = i * every_s, i * every_s + ttft(i) * noise[i]
        chunks = [(first, 1), (first + 0.01, 1), (first + 0.02, 1)]
        row = {"request": i, "t_sched": sent, "t_sent": sent, "chunks": chunks, "token_source": "token_ids"}
        rows.append(row | {"load": load_text(TraceLoad(scale=1.0))} | columns)
    return rows


def kinds(summary: OnlineSummary) -> list[str]:
    return [notice.kind for notice in summary.notices if notice.kind != "brief"]


def test_every_kind_is_documented() -> None:
    section = (Path(__file__).parents[3] / "docs/metrics.md").read_text().partition("\n## Facts\n")[2]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(KINDS)


def late(i: int) -> float:
    """A TTFT that grows from the fortieth request on, in s."""
    return 0.05 if i < 40 else 0.1 * (i - 38)


def slower(by_s: float, **columns: Any) -> list[dict[str, Any]]:
    """A steady cell whose tokens come so much later, one by one."""
    rows = cell(lambda i: 0.05, **columns)
    for row in rows:
        row["chunks"] = [(t + by_s * k, tokens) for k, (t, tokens) in enumerate(row["chunks"])]
    return rows


def naming(
    *names: str | None, adapters: Sequence[str | None] = (None, None), **columns: Any
) -> list[dict[str, Any]]:
    """A steady cell whose answers name these other models in turn, and are of these adapters."""
    rows = cell(lambda i: 0.05, **columns)
    for row in rows:
        which = row["request"] % 2
        row |= {"other_models": names[which], "adapter": adapters[which]}
    return rows


STEADY = cell(lambda i: 0.05)
HEAVY = cell(lambda i: 0.05, every_s=0.05, cell=1, load=load_text(TraceLoad(scale=0.5)))
RAMP = load_text(Ramp(from_req_per_s=1, to_req_per_s=20, seconds=8))
RATE = load_text(RequestRate(req_per_s=10))
LOOP = load_text(ClosedLoop(concurrency=16))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (STEADY, set()),
        (cell(lambda i: 0.05 + 0.1 * i), {"behind", "drift"}),
        (cell(lambda i: 0.5 if i < 15 else 0.05), {"drift"}),
        (cell(lambda i: 0.5 if i < 16 else 0.05, load=LOOP), set()),
        (cell(late, load=RAMP), {"behind"}),  # TTFT grows because the load does
        (cell(late, load=RATE), {"behind", "growing", "drift"}),
        (STEADY + cell(lambda i: 0.15, cell=1, repeat=1), {"repeats_differ"}),
        (naming("small", "small"), {"named_otherwise"}),
        (naming(None, "small"), {"other_model"}),
        (naming("large", "small"), {"other_model"}),
        (cell(lambda i: 0.05, output_tokens=2), {"over_limit"}),
        (cell(lambda i: 0.05, output_tokens=2, token_source="estimated"), {"estimated"}),
        (STEADY + naming("small", "small", cell=1, repeat=1), {"named_otherwise", "other_model"}),
        (naming("small", "small") + naming("small", "small", cell=1, repeat=1), {"named_otherwise"}),
        (naming("a", None, adapters=("a", None)), set()),  # an adapter names itself
        (cell(lambda i: 0.05, unread_fields="thoughts", hidden_tokens=9), {"unread_fields"}),
        (cell(lambda i: 0.05, input_tokens=0), {"uncounted_prompts"}),
        (cell(lambda i: 0.05, prompt_tokens=12), {"other_prompts"}),
        (cell(lambda i: 0.05, prompt_tokens=11), set()),
        (cell(lambda i: 0.05, late_s=0.4), {"turns_waited"}),
        (cell(lambda i: 0.05, late_s=0.0), set()),
    ],
)
def test_kinds_of_facts_of_a_cell(rows: list[dict[str, Any]], expected: set[str]) -> None:
    """It is not the same throughout, answers name other models, or something was not read or counted."""
    assert set(kinds(summaries(rows)[-1])) == expected


def test_repeats_that_disagree_name_the_metric() -> None:
    notice = summaries(STEADY + slower(0.02, cell=1, repeat=1))[-1].notices[0]
    assert notice.kind == "repeats_differ" and notice.values["metric"] == "tpot_ms"


@pytest.mark.parametrize(("fails", "expected"), [(False, ["slower_when_lighter"]), (True, [])])
def test_a_lighter_load_that_is_slower_than_a_valid_one(fails: bool, expected: list[str]) -> None:
    first = HEAVY[0] | ({"error": "timeout", "chunks": []} if fails else {})
    found = summaries([*cell(lambda i: 0.2), first, *HEAVY[1:]])
    of_loads = {(summary.load, summary.repeat): kinds(summary) for summary in found}
    assert of_loads[TraceLoad(scale=1.0), None] == expected and of_loads[TraceLoad(scale=0.5), None] == []


@pytest.mark.parametrize(
    ("column", "tokens", "expected"),
    [
        ("prompt_tokens", 100, {"items": "prompts", "tokens": 100, "other": "a", "other_tokens": 128}),
        ("completion_tokens", 2, {"items": "answers", "tokens": 2, "other": "a", "other_tokens": 3}),
        ("prompt_tokens", 112, None),
    ],
)
def test_an_engine_that_does_less_is_named(column: str, tokens: int, expected: dict[str, Any] | None) -> None:
    shorter = [row | {column: tokens} for row in cell(lambda i: 0.05, label="b", cell=1, prompt_tokens=128)]
    found = summaries([*cell(lambda i: 0.05, label="a", prompt_tokens=128), *shorter])
    facts = {(each.label, fact.kind): fact for each in found for fact in each.notices if each.repeat is None}
    less = {label: fact.values for (label, kind), fact in facts.items() if kind == "less_work"}
    assert less == ({} if expected is None else {"b": expected})


def test_prompts_of_other_lengths_than_planned_are_said_with_both() -> None:
    """A prompt that the server does not count has what was planned, and one of unknown tokens is left out."""
    rows = cell(lambda i: 0.05, input_tokens=400, prompt_tokens=100)
    rows[0] |= {"prompt_tokens": None}
    rows[1] |= {"input_tokens": 0, "prompt_tokens": 9000}
    for summary in summaries(rows):
        [values] = [fact.values for fact in summary.notices if fact.kind == "other_prompts"]
        assert values == {"tokens": pytest.approx((400 + 78 * 100) / 79), "planned": 400}


@pytest.mark.parametrize(("end_s", "is_late"), [(0.1, True), (0.004, True), (0.003, False), (0.0, False)])
def test_a_response_that_goes_on_after_its_last_token(end_s: float, is_late: bool) -> None:
    """E2E is 70 ms."""
    rows = cell(lambda i: 0.05)
    for row in rows:
        row["t_end"] = row["chunks"][-1][0] + end_s
    for summary in summaries(rows):
        found = [fact.values for fact in summary.notices if fact.kind == "late_end"]
        assert found == ([pytest.approx({"end_ms": 1e3 * end_s, "e2e_ms": 70}, rel=0.01)] if is_late else [])


def test_a_queue_that_empties_does_not_grow() -> None:
    rate = load_text(RequestRate(req_per_s=10))
    [_, pooled] = summaries(cell(lambda i: max(0.05, 4 - 0.1 * i), load=rate))
    assert set(kinds(pooled)) == {"drift"}
    assert any("metric" not in notice.values for notice in pooled.notices if notice.kind == "drift")


def test_a_session_lasts_from_its_first_request_to_its_last_token() -> None:
    rows = cell(lambda i: 0.05, n=40)
    for row in rows:
        row |= {"session": row["request"] // 2, "turn": row["request"] % 2}
        if row["turn"]:
            row["session_start"] = row["t_sent"] - 0.1
    [_, pooled] = summaries(rows)
    assert pooled.session_ms.n == 20
    assert 165 < pooled.session_ms.p50 < 175  # 100 ms to the second turn, 50 to its first token, 20 more


def test_tokens_that_were_dealt_out_mark_itl() -> None:
    rows = answered(1, *(2,) * 9, token_source="inferred")
    for summary in summaries(rows):
        assert summary.itl_ms.source == "inferred" and summary.tpot_ms.source == "measured"
        [values] = [fact.values for fact in summary.notices if fact.kind == "inferred"]
        assert values == {"share": 1, "factor": pytest.approx(1.9)}
    counted = [row | {"text_tokens": 18} for row in rows]
    [values] = [fact.values for fact in summaries(counted)[0].notices if fact.kind == "inferred"]
    assert values == {"share": 1}
    for found, factor in ((26, 26 / 19), (12, 19 / 12)):
        rows = [row | {"text_tokens": found} for row in rows]
        [values] = [fact.values for fact in summaries(rows)[0].notices if fact.kind == "miscounted"]
        assert values["factor"] == pytest.approx(factor)


def test_a_count_without_the_reasoning_that_is_shown_may_be_too_low() -> None:
    """The answer begins with the sixth chunk, after five of nine gaps of even length."""
    rows = answered(1, *(2,) * 9, token_source="inferred")
    for row in rows:
        row["t_answer"] = row["chunks"][5][0]
    for summary in summaries(rows):
        [values] = [fact.values for fact in summary.notices if fact.kind == "inferred"]
        assert values == {
            "share": 1,
            "factor": pytest.approx(1.9),
            "thought_factor": pytest.approx(9 / 4),
        }
    [values] = [
        fact.values
        for fact in summaries([row | {"text_tokens": 19} for row in rows])[0].notices
        if fact.kind == "inferred"
    ]
    assert values == {"share": 1}


def test_a_chunk_more_than_tokens_makes_ttft_an_interval() -> None:
    [repeat, pooled] = summaries(cell(lambda i: 0.05, token_source="inferred"))
    for summary in (repeat, pooled):
        assert kinds(summary) == ["extra_chunk"] and summary.ttft_ms.source == "inferred"
        values = summary.notices[0].values
        assert float(values["ttft_high_ms"]) - float(values["ttft_ms"]) == pytest.approx(10)


def test_times_of_a_server_that_cannot_be_are_left_out() -> None:
    for prefill_ms, expected in ((40.0, []), (35_000.0, ["impossible_times"])):
        [repeat, _] = summaries(cell(lambda i: 0.05, queue_wait_ms=5.0, prefill_ms=prefill_ms))
        assert kinds(repeat) == expected
        assert (
            (repeat.queue_wait_ms.source == "unknown")
            == (repeat.prefill_ms.source == "unknown")
            == bool(expected)
        )


def test_connections_are_the_servers_and_requests_sent_again_are_counted() -> None:
    rows = cell(lambda i: 0.05)
    for row in rows[:5]:
        row |= {"connecting_s": 0.2, "resent": 1, "t_sched": row["t_sent"] - 0.2}
    [repeat, pooled] = summaries(rows)
    assert repeat.valid and repeat.resent == pooled.resent == 5
    assert kinds(repeat) == ["resent", "slow_connect"]
    assert repeat.notices[0].values == {"resent": 5, "requests": 80}
    assert repeat.notices[1].values == pytest.approx(
        {"slow": 5, "requests": 80, "most_ms": 200, "limit_ms": 2.5}, rel=0.1
    )


def test_reasoning_that_was_not_sent_is_said_with_its_share() -> None:
    [repeat, pooled] = summaries(cell(lambda i: 0.05, hidden_tokens=9))
    assert kinds(repeat) == kinds(pooled) == ["hidden"]
    assert pooled.notices[0].values == {"hidden": 720, "tokens": 960}
    assert pooled.completion_tokens == 240


def test_a_disturbed_machine_is_noticed_in_its_repeat() -> None:
    rows = cell(lambda i: 0.05) + cell(lambda i: 0.05, cell=1, repeat=1)
    busy = MachineLoad(
        seconds=8, samples=9, cpus=2, own_cpu_s=4, foreign_cores_mean=0.9, foreign_cores_max=1, steal_share=0
    )
    first, second, pooled = summaries(rows, machines={1: busy})
    assert (kinds(first), kinds(second), kinds(pooled)) == ([], ["foreign_load"], ["foreign_load"])
    assert pooled.notices[0].scope.repeat == 1
    assert pooled.notices[0].values == {"cores": 0.9, "most": 1, "of": 2}


def hits_of(**counts: Any) -> PrefixHits:
    place = {"engine": "vllm", "variant": None, "label": "roseinfer", "repeat": 0}
    return PrefixHits(**place, prompt_tokens=8000, source="usage", load=TraceLoad(scale=1.0), **counts)


@pytest.mark.parametrize(("cached", "expected"), [(40, []), (90, ["cached"])])
def test_what_a_template_begins_with_may_be_cached(cached: int, expected: list[str]) -> None:
    """The same few tokens of every prompt; not most of it."""
    counts = {"input_tokens": 100, "reusable_tokens": 0, "cached_tokens": cached, "prompt_tokens": 100}
    hits = hits_of(possible=0, reported=cached / 100)
    assert kinds(summaries(cell(lambda i: 0.05, **counts), prefixes=[hits])[0]) == expected


@pytest.mark.parametrize(("new", "expected"), [(0, []), (39, []), (40, ["cached"])])
def test_each_slot_of_a_server_has_a_template_after_its_first_request(new: int, expected: list[str]) -> None:
    """llama.cpp has a cache for each slot: some requests are the first of one."""
    rows = cell(lambda i: 0.05, input_tokens=100, reusable_tokens=0, cached_tokens=40, prompt_tokens=100)
    for row in rows[:new]:
        row["cached_tokens"] = 0
    hits = hits_of(possible=0, reported=40 * (80 - new) / 8000)
    assert kinds(summaries(rows, prefixes=[hits])[0]) == expected


@pytest.mark.parametrize(("share", "slack"), [(0, 80), (0.25, 80 + 20 * 16)])
def test_tokens_from_a_cache_beyond_those_of_the_load(share: float, slack: int) -> None:
    """One that begins each prompt may be cached, and part of a block of each that shares some."""
    shared = int(share * 80)
    rows = cell(lambda i: 0.05, input_tokens=100)
    for row in rows:
        row["reusable_tokens"] = 10 if row["request"] < shared else 0
    for beyond, expected in ((0, []), (1, ["cached"])):
        hits = hits_of(possible=shared * 10 / 8000, reported=(shared * 10 + slack + beyond) / 8000)
        for cut in (None, Window(start_s=4, end_s=9)):  # the cell counts as a whole
            assert kinds(summaries(rows, cut=cut, prefixes=[hits])[0]) == expected


def test_a_request_that_reports_nothing_cached_counts_where_another_does() -> None:
    """vLLM and SGLang leave a 0 out of the usage."""
    rows: list[dict[str, Any]] = [{"input_tokens": 1000, "chunks": [(0.1, 1)]} for _ in range(200)]
    [silent] = prefix_hits(split(*build(rows)), {})
    rows[7]["cached_tokens"] = 992
    rows[8] |= {"error": "timeout", "chunks": []}
    [said] = prefix_hits(split(*build(rows)), {})
    assert silent.reported is None and said.reported == pytest.approx(992 / 199_000)


def test_a_cache_is_seen_without_a_tokenizer() -> None:
    """Of texts only the server knows how many tokens they have."""
    rows: list[dict[str, Any]] = [
        {"input_tokens": None, "prompt_tokens": 100, "cached_tokens": 90, "chunks": [(0.1, 1)]}
        for _ in range(200)
    ]
    hits = prefix_hits(split(*build(rows)), {})
    assert hits[0].reported == pytest.approx(0.9)
    assert "cached" in kinds(summaries(rows, prefixes=hits)[0])
    table = prefix_table(hits)
    assert table is not None and table.rows[0][3].text == DASH
    # turns begin alike, and so do prompts of a template
    for changed in ({"session": 0}, {"session": None, "cached_tokens": 0}, {"cached_tokens": 16}):
        rows = [row | changed for row in rows]
        assert "cached" not in kinds(summaries(rows, prefixes=prefix_hits(split(*build(rows)), {}))[0])


def test_a_cpu_that_ran_slower_in_one_repeat() -> None:
    rows = cell(lambda i: 0.05) + cell(lambda i: 0.05, cell=1, repeat=1)
    seen = {"seconds": 8, "samples": 9, "cpus": 2, "own_cpu_s": 4}
    quiet = seen | {"foreign_cores_mean": 0, "foreign_cores_max": 0, "steal_share": 0}
    clocks = {i: MachineLoad(**quiet, cpu_mhz_median=mhz) for i, mhz in enumerate((3000, 2000))}
    assert kinds(summaries(rows, machines=clocks)[-1]) == ["slower_clock"]
    theirs = [row | {"engine": "openai"} for row in rows]
    assert kinds(summaries(theirs, machines=clocks)[-1]) == []


def waves(size: int, at_once: int, load: str, repeat: int) -> list[dict[str, Any]]:
    """A closed loop whose prompts come `at_once` at a time, each of which takes the engine 0.1 s."""
    rows = []
    for i in range(size):
        sent = 0.1 * at_once * (i // at_once)
        first = 0.1 * (i + 1)
        row = {"request": i, "t_sched": sent, "t_sent": sent, "chunks": [(first, 1), (first + 0.01, 1)]}
        rows.append(row | {"token_source": "token_ids", "load": load, "repeat": repeat})
    return rows


def test_prompts_that_wait_together_are_why_a_lighter_load_is_slower() -> None:
    light, heavy = (load_text(ClosedLoop(concurrency=count)) for count in (8, 64))
    cells = [(8, light, 0), (8, light, 1), (2, heavy, 0), (2, heavy, 1)]
    rows = [
        row | {"cell": number}
        for number, (at_once, load, repeat) in enumerate(cells)
        for row in waves(80, at_once, load, repeat)
    ]
    [slow] = [s for s in summaries(rows) if s.load.value == 8 and s.repeat is None]
    [found] = [notice.values for notice in slow.notices if notice.kind == "slower_when_lighter"]
    assert found == pytest.approx(found | {"ttft_ms": 450, "heavier_ttft_ms": 150})
    assert (found["heavier"], found["waiting"], found["heavier_waiting"]) == ("64 in flight", 7, 1)


def test_prompts_that_wait_alone_do_not_explain_it() -> None:
    heavy = load_text(TraceLoad(scale=0.5))
    rows = cell(lambda i: 0.09) + cell(lambda i: 0.045, every_s=0.05, cell=1, load=heavy)
    [slow] = [s for s in summaries(rows) if s.load.value == 1 and s.repeat is None]
    [found] = [notice for notice in slow.notices if notice.kind == "slower_when_lighter"]
    assert "waiting" not in found.values


def test_tokens_that_come_more_slowly_are_drift() -> None:
    rows = cell(lambda i: 0.05)
    for row, noise in zip(rows, np.random.default_rng(2).uniform(0, 0.003, len(rows)), strict=True):
        more = noise + (0.02 if row["request"] >= 40 else 0)
        row["chunks"] = [(t + more * k, tokens) for k, (t, tokens) in enumerate(row["chunks"])]
    notices = summaries(rows)[0].notices
    assert [notice.values["metric"] for notice in notices if notice.kind == "drift"] == ["tpot_ms"]


def test_a_failure_outside_of_what_is_measured_counts() -> None:
    rows = cell(lambda i: 0.05)
    rows[70] |= {"error": "timeout", "chunks": []}
    [_, pooled] = summaries(rows, cut=Window(start_s=0, end_s=4))
    assert pooled.num_error == 0 and [reason.values for reason in pooled.invalid_reasons] == [
        {"failed": 1, "requests": 80}
    ]


def test_the_shortest_repeat_counts() -> None:
    rows = cell(lambda i: 0.05, n=120) + cell(lambda i: 0.05, n=40, cell=1, repeat=1)
    brief = [notice for notice in summaries(rows)[-1].notices if notice.kind == "brief"]
    assert [float(notice.values["seconds"]) < 4.1 for notice in brief] == [True]


def test_a_load_is_judged_as_a_whole_whatever_part_is_measured() -> None:
    rows = cell(lambda i: 0.05 + 0.1 * i)
    [_, pooled] = summaries(rows, cut=Window(start_s=0, end_s=2))
    assert pooled.left_out > 50 and "behind" in kinds(pooled)


def test_a_short_cell_says_so_and_a_long_one_does_not() -> None:
    assert too_brief(10) is None and too_brief(31, 30) is None and too_brief(29, 30) is None
    brief = too_brief(9.9)
    assert brief is not None and brief.values == {"seconds": 9.9}
    wanted = too_brief(12, 30)
    assert wanted is not None and wanted.values == {"seconds": 12, "wanted_s": 30}


LOAD = ClosedLoop(concurrency=1)
STEP_S = 0.005


def answered(*chunks: int, requests: int = 8, **columns: Any) -> list[dict[str, Any]]:
    """Requests answered in chunks of so many tokens, a token every 5 ms, sent when a chunk is full."""
    rows = []
    for i in range(requests):
        sent, tokens, stream = float(i), 0, []
        for size in chunks:
            tokens += size
            stream.append((sent + 0.04 + (tokens - 1) * STEP_S, size))
        rows.append({"t_sched": None, "t_sent": sent, "chunks": stream, "load": load_text(LOAD), **columns})
    return rows


def noticed(rows: Sequence[dict[str, Any]], tokens_per_step: float | None = None) -> list[dict[str, Value]]:
    """Values of the facts about chunks, of the repeat; all repeats have the same."""
    count = SpeculationCount(steps=1, tokens_per_step=tokens_per_step or 1, source="a test")
    drafted = [Speculation(engine="roseinfer", label="roseinfer", load=LOAD, repeat=0, count=count)]
    of_both = summaries(rows, drafted=drafted if tokens_per_step else ())
    repeat, pooled = ([n.values for n in s.notices if n.kind == "large_chunks"] for s in of_both)
    assert repeat == pooled
    return repeat


@pytest.mark.parametrize("chunks", [(1,) * 64, (1, 2, 1, 30, *(1,) * 40)])
def test_what_engines_send_is_not_noticed(chunks: tuple[int, ...]) -> None:
    assert noticed(answered(*chunks)) == []


def test_text_that_a_gateway_holds_back_is_noticed() -> None:
    [values] = noticed(answered(*(16,) * 4))
    ttft_ms = values.pop("ttft_ms")
    assert values.pop("ttft_low_ms") == pytest.approx(max(0.0, float(ttft_ms) - 15 * 5))
    assert values == {"usual": 16, "first": 16, "icl_ms": pytest.approx(80)}


@pytest.mark.parametrize(
    ("chunks", "usual", "first", "has_gaps"),
    [
        ((1, *(4,) * 15, 3), 4, None, True),
        ((2,) * 32, 2, 2, True),
        ((24, *(1,) * 40), None, 24, True),  # it moves TTFT
        ((64,), 64, 64, False),
    ],
)
def test_large_chunks_are_noticed_where_no_engine_drafts(chunks, usual, first, has_gaps):
    [values] = noticed(answered(*chunks))
    assert (values.get("usual"), values.get("first")) == (usual, first)
    assert ("icl_ms" in values) == has_gaps


def test_an_engine_that_drafts_says_so() -> None:
    rows = answered(1, *(9,) * 7)
    assert noticed(rows, 2.5) == []
    [values] = noticed(rows, 2)
    assert values["tokens_per_step"] == 2


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_it_is_said_exactly_where_half_of_the_tokens_came_so(sizes: list[int]) -> None:
    large = sum(size for size in sizes if size > 1)
    assert bool(noticed(answered(*sizes, requests=2))) == (sizes[0] > 1 or 2 * large > sum(sizes))


@given(st.integers(2, 4000), st.data())
def test_chance_is_that_of_a_hypergeometric_distribution(total: int, data: st.DataObject) -> None:
    first, drawn = (data.draw(st.integers(1, total)) for _ in range(2))
    least = data.draw(st.integers(0, min(first, drawn)))
    expected = hypergeom.sf(least - 1, total, first, drawn)
    assert at_least_by_chance(least, total, first, drawn) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_opening_of_a_closed_loop_is_told_apart_where_it_makes_the_tail() -> None:
    """A server that takes prompts one after the other: the last of 16 at once wait for all the others."""
    load = load_text(ClosedLoop(concurrency=16))
    burst = cell(lambda i: 0.04 * (i + 1) if i < 16 else 0.44, n=160, load=load)
    for row in burst[:16]:
        row["t_sent"] = 0.0
    even = cell(lambda i: 0.44, n=160, load=load)
    [fact] = [fact for fact in summaries(burst)[-1].notices if fact.kind == "opening"]
    assert fact.values["requests"] == 16
    assert float(fact.values["ttft_p99_ms"]) > 1.3 * float(fact.values["later_p99_ms"])
    assert "opening" not in kinds(summaries(even)[-1])
