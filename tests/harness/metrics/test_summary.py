"""Summaries of cells, with the parts of TTFT, which add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics.samples import split
from harness.metrics.summary import SummaryInputs, summarize, waterfall
from harness.report.tables.rates import throughput_table
from harness.schema.facts import Fact
from harness.schema.fairness import PARTS, ReportedMean, TaskScore, TaskScores, Waterfall
from harness.schema.limits import Slo
from harness.schema.load import TraceLoad, load_text
from harness.schema.results import OnlineSummary
from tests.harness.metrics.conftest import build, summaries

gap = st.floats(1e-4, 0.5)
streams = st.lists(st.tuples(gap, st.integers(1, 5)), min_size=1, max_size=6)


@st.composite
def runs(draw):
    """Requests of two engines, two scales and up to two repeats, some failed."""
    rows = []
    for cell, (label, scale, repeat) in enumerate(
        [("vLLM", 2.0, 0), ("roseinfer", 2.0, 0), ("vLLM", 1.0, 0), ("vLLM", 2.0, 1)]
    ):
        for request in range(draw(st.integers(1, 5))):
            t_sched = request * draw(st.floats(0, 0.3))
            t = t_sent = t_sched + draw(st.floats(0, 0.002))
            chunks = [(t := t + step, tokens) for step, tokens in draw(streams)]
            row = {
                "cell": cell,
                "engine": label.lower(),
                "label": label,
                "load": load_text(TraceLoad(scale=scale)),
                "repeat": repeat,
            }
            row |= {"request": request, "t_sched": t_sched, "t_sent": t_sent, "chunks": chunks}
            if draw(st.booleans()):
                row["prompt_tokens"] = draw(st.integers(1, 99))
            if draw(st.integers(0, 4)) == 0:
                row["error"] = draw(st.sampled_from(["timeout", "protocol"]))
            rows.append(row)
    return rows


def by_hand(rows):
    """The numbers of a summary, one request at a time."""
    good = [row for row in rows if "error" not in row]
    samples = {name: [] for name in ("ttft_ms", "tpot_ms", "itl_ms", "icl_ms", "e2e_ms", "submit_lag_ms")}
    for row in good:
        times, tokens = [t for t, _ in row["chunks"]], sum(k for _, k in row["chunks"][1:])
        samples["ttft_ms"].append((times[0] - row["t_sent"]) * 1000)
        samples["e2e_ms"].append((times[-1] - row["t_sent"]) * 1000)
        samples["submit_lag_ms"].append((row["t_sent"] - row["t_sched"]) * 1000)
        if tokens and times[-1] > times[0]:
            samples["tpot_ms"].append((times[-1] - times[0]) * 1000 / tokens)
        for (before, _), (after, k) in zip(row["chunks"], row["chunks"][1:], strict=False):
            samples["icl_ms"].append((after - before) * 1000)
            samples["itl_ms"] += [(after - before) * 1000 / k] * k
    return good, samples


@settings(max_examples=12)
@given(runs())
def test_every_number_is_the_one_worked_out_by_hand(rows):
    found = summaries(rows)
    identities = [(s.label, s.load.value, s.repeat) for s in found]
    assert identities == [
        ("vLLM", 1.0, 0), ("vLLM", 1.0, None), ("vLLM", 2.0, 0), ("vLLM", 2.0, 1), ("vLLM", 2.0, None),
        ("roseinfer", 2.0, 0), ("roseinfer", 2.0, None),
    ]  # fmt: skip
    for summary in found:
        mine = [r for r in rows if (r["label"], r["load"]) == (summary.label, load_text(summary.load))]
        if summary.repeat is not None:
            mine = [row for row in mine if row["repeat"] == summary.repeat]
        good, samples = by_hand(mine)
        seconds = 0.0
        for repeat in {row["repeat"] for row in mine}:
            cell = [row for row in mine if row["repeat"] == repeat]
            seconds += max(r["chunks"][-1][0] for r in cell) + 0.001 - min(r["t_sched"] for r in cell)
        output = sum(k for row in good for _, k in row["chunks"])
        prompt = sum(row.get("prompt_tokens", 10) for row in good)
        assert (summary.num_requests, summary.num_success) == (len(mine), len(good))
        assert sum(summary.errors.values()) == summary.num_error == len(mine) - len(good)
        assert (summary.completion_tokens, summary.prompt_tokens) == (output, prompt)
        assert summary.chunks == sum(len(row["chunks"]) for row in good)
        assert summary.duration_s == pytest.approx(seconds)
        assert summary.req_per_s == pytest.approx(len(good) / seconds)
        assert summary.output_tok_per_s == pytest.approx(output / seconds)
        assert summary.total_tok_per_s == pytest.approx((output + prompt) / seconds)
        assert summary.valid == (len(good) == len(mine) and not summary.invalid_reasons)
        for metric, values in samples.items():
            distribution = getattr(summary, metric)
            assert distribution.n == len(values)
            for q in (50, 90, 95, 99):
                expected = np.percentile(values, q) if values else None
                assert getattr(distribution, f"p{q}") == pytest.approx(expected, abs=1e-6)


def regular(n=20, lag=0.0, ttft=0.1, **more):
    return [
        {"request": i, "t_sched": i * 0.5, "t_sent": i * 0.5 + lag, **more}
        | {"chunks": [(i * 0.5 + lag + ttft, 1), (i * 0.5 + lag + ttft + 0.05, 1)]}
        for i in range(n)
    ]


def test_the_offered_rate_is_that_of_the_schedule_or_over_the_duration():
    assert summaries(regular(21))[0].offered_req_per_s == pytest.approx(2.0)
    at_once = summaries([{"request": i, "chunks": [(2.0, 1)]} for i in range(4)])[0]
    assert at_once.offered_req_per_s == pytest.approx(4 / 2.001)


def test_a_closed_loop_has_no_schedule():
    rows = [{**row, "t_sched": None} for row in regular(5)]
    summary = summaries(rows)[0]
    assert summary.submit_lag_ms.n == summary.ttft_from_schedule_ms.n == 0
    assert summary.ttft_ms.n == 5
    assert summary.duration_s == pytest.approx(4 * 0.5 + 0.151)
    assert summary.valid


def kinds(summary: OnlineSummary) -> list[str]:
    return [reason.kind for reason in summary.invalid_reasons]


def test_only_failures():
    rows = [{"request": i, "error": "connect", "t_sent": None, "completion_tokens": None} for i in range(3)]
    summary = summaries(rows)[0]
    assert not summary.valid
    assert kinds(summary) == ["no_success"]
    assert summary.errors == {"connect": 3}
    assert summary.ttft_ms.p50 is None
    assert summary.output_tok_per_s == summary.duration_s == 0


def test_one_failure_makes_its_cell_and_the_pool_invalid():
    rows = regular() + [{**row, "cell": 1, "repeat": 1} for row in regular()]
    rows[3]["error"] = "timeout"
    first, second, pooled = summaries(rows)
    [reason] = first.invalid_reasons
    assert (reason.kind, reason.values) == ("failures", {"failed": 1, "requests": 20})
    assert second.valid and pooled.invalid_reasons == [reason] and reason.scope.repeat == 0
    assert pooled.num_success == 39


@pytest.mark.parametrize(("lag", "ttft", "valid"), [(0.0009, 0.01, True), (0.0011, 0.01, False),
                                                    (0.0049, 0.1, True), (0.0051, 0.1, False)])  # fmt: skip
def test_a_late_client_makes_a_cell_invalid(lag, ttft, valid):
    summary = summaries(regular(lag=lag, ttft=ttft))[0]
    assert summary.valid is valid
    assert kinds(summary) == ([] if valid else ["late"])
    assert valid or summary.invalid_reasons[0].values["late"] == 20


def test_wrong_answers_and_a_low_score_are_told_apart():
    score = TaskScore(label="roseinfer", right=1, items=2, ci=(0.0, 1.0), by_family={})
    far = score.model_copy(update={"below": Fact(kind="inaccurate")})
    wrong, scores = {"roseinfer": Fact(kind="wrong_answers")}, TaskScores(rule="", scores=[far])
    for summary in summaries(regular(), wrong=wrong, scores=scores):
        assert not summary.valid and kinds(summary) == ["wrong_answers", "inaccurate"]
        assert summary.clients_needed is None
        assert {reason.scope.load for reason in summary.invalid_reasons} == {summary.load}
    near = score.model_copy(update={"below": Fact(kind="less_accurate")})
    for summary in summaries(regular(), scores=TaskScores(rule="", scores=[near])):
        assert summary.valid and "less_accurate" in [fact.kind for fact in summary.notices]


def test_tokens_of_a_gpu_by_how_many_its_engine_has():
    """Shown where one has several; none on a CPU."""
    rows = regular(8) + [row | {"label": "two", "cell": 1} for row in regular(8)]
    for gpus, shown in (({"roseinfer": 1, "two": 2}, True), ({"roseinfer": 1, "two": 1}, False), ({}, False)):
        found = [each for each in summaries(rows, gpus=gpus) if each.repeat is None]
        for summary in found:
            count = gpus.get(summary.label)
            expected = pytest.approx(summary.output_tok_per_s / count) if count else None
            assert summary.output_tok_per_s_per_gpu == expected
        assert ("tok/s/GPU" in throughput_table(found).headers) is shown


def test_goodput_counts_requests_within_every_limit():
    rows = regular(4)
    rows[0]["chunks"] = [(0.3, 1), (0.35, 1)]
    rows[1]["chunks"] = [(0.6, 1), (0.9, 1)]
    rows[2]["chunks"] = [(1.1, 1)]
    requests, chunks = build(rows)
    inputs = SummaryInputs(slo=Slo(ttft_ms=200, itl_ms=60, tpot_ms=60))
    summary = summarize(split(requests, chunks), inputs)[0]
    assert summary.goodput_req_per_s == pytest.approx(2 / summary.duration_s)
    assert summaries(rows)[0].goodput_req_per_s is None


def test_what_the_engine_tells_is_measured_and_the_rest_unknown():
    reported, silent = summaries(regular(queue_wait_ms=3.0))[0], summaries(regular())[0]
    assert (reported.queue_wait_ms.source, reported.queue_wait_ms.p50) == ("measured", 3.0)
    assert (silent.queue_wait_ms.source, silent.queue_wait_ms.n) == ("unknown", 0)


def test_a_single_repeat_pools_to_itself():
    repeat, pooled = summaries(regular())
    assert [fact.kind for fact in pooled.notices] == ["brief"]
    assert pooled == repeat.model_copy(update={"repeat": None, "notices": pooled.notices})


@pytest.mark.parametrize("limit", ["tpot_ms", "itl_ms"])
def test_an_answer_in_one_chunk_was_not_seen_to_keep_its_tokens_limit(limit):
    rows = [{"t_sent": 0.0, "chunks": [(0.2, 30)]}, {"t_sent": 0.0, "chunks": [(0.1, 1)]}]
    requests, chunks = build(rows)
    summary = summarize(split(requests, chunks), SummaryInputs(slo=Slo.model_validate({limit: 1})))[0]
    assert summary.goodput_req_per_s == pytest.approx(1 / summary.duration_s)


def test_rates_of_several_repeats_have_intervals():
    """By t, on the logarithm, of the rates of the repeats."""
    rows = [
        {**row, "cell": repeat, "repeat": repeat}
        | {"chunks": [(t + 0.01 * repeat, k) for t, k in row["chunks"]]}
        for repeat in range(3)
        for row in regular(20, prompt_tokens=10)
    ]
    *each, pooled = summaries(rows, gpus={"roseinfer": 2})
    assert all(summary.rates_ci == {} for summary in each)
    for name in ("req_per_s", "output_tok_per_s", "total_tok_per_s", "output_tok_per_s_per_gpu"):
        logs = np.log([getattr(summary, name) for summary in each])
        half = 4.302653 * np.std(logs, ddof=1) / np.sqrt(3)
        ends = np.exp([np.mean(logs) - half, np.mean(logs) + half])
        assert pooled.interval(name, name) == pytest.approx(ends)
        assert ends[0] < pooled.value(name, name) < ends[1]


def test_unsupported_percentiles_have_no_interval():
    found = summaries(regular(60))[0].ttft_ms
    assert set(found.ci) == {"mean", "p50", "p90"}
    assert found.p99 is not None


def test_the_service_level_is_met_by_a_share_of_all_requests():
    """One of four fails, one is too slow."""
    rows = [
        {"request": i, "t_sent": float(i), "chunks": [(i + first, 1), (i + first + 0.01, 1)]}
        for i, first in enumerate((0.05, 0.05, 0.5))
    ]
    rows.append({"request": 3, "t_sent": 3.0, "error": "timeout", "chunks": []})
    summary = summaries(rows, slo=Slo(ttft_ms=100))[0]
    assert summary.slo_met == 0.5
    assert summaries(rows)[0].slo_met is None


times = st.floats(0, 100)
requests = st.lists(
    st.fixed_dictionaries(
        {
            "t_sched": times,
            "lag": st.floats(0, 1),
            "ttft": st.floats(1e-3, 10),
            "head": st.none() | st.floats(0, 1.5),
            "queue_wait_ms": st.none() | st.floats(0, 11_000),
            "prefill_ms": st.none() | st.floats(0, 11_000),
            "cell": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=8,
)
means = st.dictionaries(
    st.integers(0, 2),
    st.dictionaries(
        st.sampled_from(["queue_wait_ms", "prefill_ms"]),
        st.builds(ReportedMean, mean_ms=st.floats(0, 11_000), n=st.integers(1, 100)),
    ),
)


def rows(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in given:
        sent = row["t_sched"] + row["lag"]
        head = None if row["head"] is None else sent + row["head"] * row["ttft"]
        kept = {name: row[name] for name in ("t_sched", "queue_wait_ms", "prefill_ms", "cell")}
        found.append({**kept, "t_sent": sent, "t_head": head, "chunks": [(sent + row["ttft"], 1)]})
    return found


def parts(found: Waterfall) -> dict[str, Any]:
    return {part.part: part for part in found.parts}


@given(given=requests, reported=means)
def test_the_parts_add_up_to_ttft(given: list[dict[str, Any]], reported: dict[int, Any]) -> None:
    found = waterfall(build(rows(given))[0], reported)
    assert found is not None
    assert [part.part for part in found.parts] == list(PARTS)
    known = [part.mean_ms for part in found.parts if part.mean_ms is not None]
    assert sum(known) == pytest.approx(found.total_ms, abs=1e-6)
    assert found.ttft_ms == pytest.approx(1e3 * sum(row["ttft"] for row in given) / len(given), abs=1e-6)
    assert all(part.mean_ms is None or part.mean_ms >= 0 for part in found.parts[:-1])
    for part in found.parts:
        assert (part.mean_ms is None) == (part.n == 0) == (part.source == "unknown")


@given(given=requests)
def test_the_head_never_takes_the_engine_s_time(given: list[dict[str, Any]]) -> None:
    """What is left over is below 0 only where the engine reports more than the client saw."""
    fitting = [
        row for row in given if (row["queue_wait_ms"] or 0) + (row["prefill_ms"] or 0) <= row["ttft"] * 1e3
    ]
    found = waterfall(build(rows(fitting))[0], {})
    assert found is None or parts(found)["unexplained"].mean_ms >= -1e-6


def test_an_engine_that_tells_each_request_leaves_only_delivery_to_be_inferred() -> None:
    row = {"t_sched": 1.0, "t_sent": 1.002, "t_head": 1.005, "queue_wait_ms": 10.0, "prefill_ms": 20.0}
    found = waterfall(build([{**row, "chunks": [(1.042, 1)]}] * 3)[0], {})
    assert found is not None
    shown = {name: (part.mean_ms, part.source) for name, part in parts(found).items()}
    assert {name: source for name, (_, source) in shown.items()} == {
        "client lag": "measured",
        "http": "measured",
        "queue": "measured",
        "prefill": "measured",
        "delivery": "inferred",
        "unexplained": "inferred",
    }
    assert [ms for ms, _ in shown.values()] == pytest.approx([2, 3, 10, 20, 7, 0])


@pytest.mark.parametrize("head", [0.05, 0.0499, 0.03])
def test_a_head_that_comes_with_the_first_token_tells_nothing(head: float) -> None:
    row = {"t_head": head, "queue_wait_ms": 10.0, "prefill_ms": 20.0, "chunks": [(0.05, 1)]}
    found = waterfall(build([row])[0], {})
    assert found is not None
    assert {name: part.source for name, part in parts(found).items() if part.source == "unknown"} == {
        "http": "unknown",
        "delivery": "unknown",
    }
    assert parts(found)["unexplained"].mean_ms == pytest.approx(20)


def test_histograms_are_inferred_and_weigh_cells_by_their_requests() -> None:
    row = {"t_head": 0.01, "chunks": [(0.1, 1)]}
    cells = [{**row, "cell": 0, "repeat": 0}, *[{**row, "cell": 1, "repeat": 1}] * 3]
    reported = {
        0: {"queue_wait_ms": ReportedMean(mean_ms=10, n=1), "prefill_ms": ReportedMean(mean_ms=50, n=1)},
        1: {"queue_wait_ms": ReportedMean(mean_ms=30, n=3)},
    }
    *_, pooled = summaries(cells, reported=reported)
    assert pooled.queue_wait_ms.mean == pytest.approx(25)
    assert (pooled.queue_wait_ms.source, pooled.queue_wait_ms.n) == ("inferred", 4)
    assert pooled.queue_wait_ms.p50 is None
    assert pooled.waterfall is not None
    found = parts(pooled.waterfall)
    assert (found["queue"].mean_ms, found["queue"].source) == (pytest.approx(25), "inferred")
    assert found["prefill"].mean_ms == pytest.approx(12.5)
    assert found["prefill"].n == 1
    assert (found["delivery"].mean_ms, found["delivery"].n) == (pytest.approx((100 - 10 - 10 - 50) / 4), 1)
    assert found["unexplained"].mean_ms == pytest.approx(100 - 10 - 25 - 12.5 - 7.5)


def test_nothing_succeeded_nothing_to_explain() -> None:
    failed = {"chunks": [], "error": "no_tokens"}
    [summary, *_] = summaries([failed])
    assert summary.waterfall is None
    assert summary.queue_wait_ms.source == "unknown"
