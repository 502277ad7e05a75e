"""Tables, best_labels, the verdict and warnings: what is claimed, and what is not."""

import csv
import io
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from harness.report.best import best_labels
from harness.report.findings import findings
from harness.report.markdown import summary, table
from harness.report.page import environment
from harness.report.results_csv import results_csv
from harness.report.tables.latency import (
    SHOWN,
    first_table,
    headline_table,
    latency_table,
)
from harness.report.tables.offline import offline_table
from harness.report.tables.ratios import ratios
from harness.report.tables.table import MARKS, Cell, Column, Table
from harness.report.tables.throughput import throughput_table
from harness.report.text.badges import badges
from harness.report.text.heading import machine
from harness.report.text.numbers import DASH, few, percent
from harness.report.text.run_notices import notices
from harness.report.text.terms import terms
from harness.report.text.verdict import factor, shown_load, verdict, why_none_is_best
from harness.runs.reader import OnlineRun, load_run
from harness.schema.cell_notice import CellNotice
from harness.schema.load import ClosedLoop, Load, TraceLoad
from harness.schema.results import Comparison, Skipped

from .conftest import ENGINES, make_offline, make_online


@pytest.fixture(scope="module")
def run(online_run):
    return load_run(online_run)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "run"
    return load_run(make_online(folder, engines=ENGINES[:1], scales=[1.0], repeats=1, n=60, faults=False))


def comparison(a, b, ratio, ci, scale=0.4, metric="ttft_ms", statistic="p90", chance=False):
    low_high = None if ci is None else not ci[0] <= 1 <= ci[1]
    verdict = "not enough data" if ci is None else "no difference"
    if low_high and not chance:
        verdict = "better" if (ratio < 1) == (metric != "output_tok_per_s") else "worse"
    return Comparison(
        a=a, b=b, load=TraceLoad(scale=scale), metric=metric, statistic=statistic,
        value_a=ratio, value_b=1, ratio=ratio, ci=ci, difference=low_high, verdict=verdict, comparisons=39,
    )  # fmt: skip


def test_every_shown_percentile_is_in_the_results(run):
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        shown = latency_table(run.pooled, metric, {})
        by = {(s.label, s.load.value): getattr(s, metric) for s in run.pooled}
        for row in shown.rows:
            values = [cell.value for cell in row[1:]]
            expected = [
                getattr(by[row[0].text, scale], f"p{q}") for scale in (0.4, 0.8, 1.6) for q in (50, 90, 99)
            ]
            assert values == expected
            for cell in row[1:]:
                assert float(cell.text.replace(",", "")) == pytest.approx(cell.value, rel=0.05)


def test_the_contract_s_form_of_a_latency_table(run):
    """Engine rows; for each scale p50, p90 and p99."""
    shown = latency_table(run.pooled, "ttft_ms", {})
    columns = [(column.group, column.title) for column in shown.columns[1:]]
    assert columns == [
        (scale, quantile)
        for scale in ("scale 0.4", "scale 0.8", "scale 1.6")
        for quantile in ("p50", "p90", "p99")
    ]
    assert [row[0].text for row in shown.rows] == [engine.label for engine in ENGINES]


def test_a_percentile_without_support_is_withheld_and_says_what_it_needs(small):
    shown = latency_table(small.pooled, "ttft_ms", {})
    p99 = shown.rows[0][3]
    assert (p99.text, p99.value, p99.remark) == ("–", None, "withheld: p99 needs 40 more samples")
    assert shown.notes == ["–: p99 needs 100 samples and is withheld below; up to 40 more."]
    assert headline_table(small.pooled, {}).columns[1].group == "TTFT p90, ms"


def test_failures_stand_beside_the_rates(run):
    shown = throughput_table(run.pooled)
    (row,) = [row for row in shown.rows if row[0].text == "vLLM" and row[1].text == "0.4"]
    by = dict(zip(shown.headers, (cell.text for cell in row), strict=True))
    assert (by["requests"], by["failed"], by["errors"]) == ("400", "3", "disconnected 1, timeout 2")
    assert by["valid"] == "no"


def test_the_best_is_marked_only_where_it_differs_from_every_other_valid_engine(run):
    pooled = [s for s in run.pooled if s.load.value == 0.4]
    roseinfer, variant, vllm, sglang = (engine.label for engine in ENGINES)
    clear = [comparison(roseinfer, variant, 0.5, (0.4, 0.6)), comparison(roseinfer, sglang, 0.3, (0.2, 0.4))]
    key = (TraceLoad(scale=0.4), "ttft_ms", "p90")
    assert best_labels(pooled, clear) == {key: roseinfer}
    assert best_labels(pooled, [*clear, comparison(roseinfer, vllm, 2.0, (1.8, 2.2))]) == {key: roseinfer}
    assert best_labels(pooled, clear[:1]) == {}
    level = [clear[0], comparison(roseinfer, sglang, 0.9, (0.7, 1.1))]
    assert best_labels(pooled, level) == {}
    by_itself = [clear[0], comparison(roseinfer, sglang, 0.9, (0.85, 0.98), chance=True)]
    assert best_labels(pooled, by_itself) == {}


def test_a_winner_whose_number_reads_like_another_s_is_not_marked(run):
    pooled = [s for s in run.pooled if s.load.value == 1.6]
    mine = next(s for s in pooled if s.label == "roseinfer")
    level = [s.model_copy(update={"output_tok_per_s": mine.output_tok_per_s * 0.9999}) for s in pooled[1:]]
    apart = [s.model_copy(update={"output_tok_per_s": mine.output_tok_per_s * 0.9}) for s in pooled[1:]]
    key: tuple[Load, str, str] = (TraceLoad(scale=1.6), "output_tok_per_s", "output_tok_per_s")
    won = {key: "roseinfer"}
    for others, marked in ((level, 0), (apart, 1)):
        shown = headline_table([mine, *others], won)
        assert sum(cell.best for row in shown.rows for cell in row) == marked


def test_the_best_rate_is_the_highest(run):
    pooled = [s for s in run.pooled if s.load.value == 0.4 and s.label in ("roseinfer", "SGLang")]
    rate = {"metric": "output_tok_per_s", "statistic": "output_tok_per_s"}
    found = best_labels(pooled, [comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6), **rate)])
    assert list(found.values()) == ["SGLang"]


def test_the_verdict_claims_real_differences_and_names_what_is_level(tmp_path):
    run = load_run(
        make_online(tmp_path / "run", engines=[ENGINES[0], *ENGINES[2:]], scales=[0.4], repeats=10)
    )
    assert isinstance(run, OnlineRun)
    first, second = verdict(run)
    winner, loser = (
        next(s.ttft_ms.p99 for s in run.pooled if s.label == label) for label in ("roseinfer", "SGLang")
    )
    at = r"At [\d.]+ requests/s \(scale 0\.4\)"
    said = r"roseinfer has a TTFT p99 of ([\d.,]+) ms, .* lower than SGLang with ([\d.,]+) ms \(95 % interval"
    found = re.match(f"{at}, {said}", first)
    assert found and [float(text.replace(",", "")) for text in found.groups()] == pytest.approx(
        [winner, loser], rel=0.01
    )
    assert "vLLM" not in first + second
    assert second.startswith("At that load, roseinfer has a TPOT p99 of")
    assert [column.title for column in first_table(run.pooled, shown_load(run), {}).columns[1:4]] == [
        "p50", "p90", "p99",
    ]  # fmt: skip


def test_the_verdict_without_a_difference(run):
    level = [
        comparison(a, b, 1.1, (0.9, 1.3), metric=metric, statistic="p99")
        for metric in ("ttft_ms", "tpot_ms")
        for a, b in (("roseinfer", "roseinfer (-mp async admit)"), ("roseinfer", "SGLang"))
    ]
    changed = run.results.model_copy(update={"comparisons": level})
    for sentence in verdict(type(run)(run.path, changed, run.requests, run.chunks)):
        assert "no difference is shown" in sentence
        assert "95 % interval 0.90 to 1.30" in sentence


def test_a_difference_below_the_highest_percentile_is_claimed_and_the_others_are_said(run):
    """By p90 roseinfer is better, by p50 SGLang; by p99 nothing is known."""
    pooled = [s for s in run.results.summaries if s.label in ("roseinfer", "SGLang")]
    compared = [
        comparison("roseinfer", "SGLang", 0.95, (0.9, 1.1), statistic="p99"),
        comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6), statistic="p90"),
        comparison("roseinfer", "SGLang", 1.25, (1.2, 1.3), statistic="p50"),
    ]
    changed = run.results.model_copy(update={"summaries": pooled, "comparisons": compared})
    shown = type(run)(run.path, changed, run.requests, run.chunks)
    said = verdict(shown)[0]
    assert "roseinfer has a TTFT p90 of" in said and "2.0× lower than SGLang" in said
    assert said.endswith(
        "). In p99 no engine is shown to be the best. In TTFT p50, SGLang is better than roseinfer."
    )
    answer = findings(shown)[-1].answers[0]
    assert answer.engine == "roseinfer" and answer.detail.startswith("p90 ")
    assert answer.detail.endswith("; none shown in p99; in p50 SGLang is better")


def test_the_winner_stands_out_in_the_page_and_text_stays_text():
    said = "At scale 1, <b> & co has a TTFT p90 of 2 ms, 3.1× lower than <b> with 6 ms (95 % interval …)."
    shown = (
        environment().from_string("{{ said | claim(labels) }}").render(said=said, labels=["<b>", "<b> & co"])
    )
    assert (
        "<strong>&lt;b&gt; &amp; co</strong> has a TTFT" in shown and "<strong>3.1×</strong> lower" in shown
    )
    assert unescape(re.sub("</?strong>", "", shown)).replace("\u00a0", " ") == said


@pytest.mark.parametrize(("ratio", "ci", "higher", "words"), [
    (1.0488, (1.0463, 1.0512), True, ("1.049×", "1.046× to 1.051×")),
    (1.2, (1.1, 1.3), True, ("1.20×", "1.10× to 1.30×")),
    (0.84, (0.839, 0.841), False, ("16.0 %", "15.9 % to 16.1 %")),
    (4.0, (4.0, 4.0), False, ("4.0×", "4.0× to 4.0×")),
])  # fmt: skip
def test_the_ends_of_an_interval_read_apart(ratio, ci, higher, words):
    assert factor(comparison("roseinfer", "SGLang", ratio, ci), higher=higher) == words


def test_an_interval_that_excludes_one_by_itself_is_no_claim(run):
    pooled = [s for s in run.results.summaries if s.label in ("roseinfer", "SGLang")]
    compared = comparison("roseinfer", "SGLang", 0.9, (0.85, 0.98), statistic="p99", chance=True)
    changed = run.results.model_copy(update={"summaries": pooled, "comparisons": [compared]})
    said = verdict(type(run)(run.path, changed, run.requests, run.chunks))[0]
    assert "no difference is shown" in said and "lower" not in said
    assert "95 % interval 0.85 to 0.98, which does not hold for 39 comparisons at once" in said


def test_an_invalid_cell_has_no_ratio(run):
    compared = comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6))
    labels = ["roseinfer", "SGLang"]
    for valid in (True, False):
        pooled = [s.model_copy(update={"valid": valid or s.label != "SGLang"}) for s in run.pooled]
        [row] = ratios([compared], "ttft_ms", "SGLang", labels, pooled).rows
        cell = row[1 + SHOWN.index(90)]
        assert (cell.text, cell.best) == (("0.50×", True) if valid else (DASH, False))


def test_the_machine_is_that_of_the_run(run):
    gpus = [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]
    for device, ahead in (("cuda", "2 × NVIDIA H200, "), ("cpu", "")):
        meta = run.meta.model_copy(
            update={
                "environment": run.meta.environment | {"gpus": gpus},
                "settings": run.meta.settings.model_copy(update={"device": device}),
            }
        )
        assert machine(meta) == f"{ahead}Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, 2 cores, 8 GiB"


@pytest.mark.parametrize(("repeats", "rests_on"), [(1, True), (3, False)])
@pytest.mark.parametrize(("ratio", "ci", "words"), [
    (5.2, (4.6, 5.9), r"5\.2× lower than SGLang with \S+ ms \(95 % interval 4\.6× to 5\.9×\)"),
    (1.25, (1.11, 1.43), r"20 % lower than SGLang with \S+ ms \(95 % interval 10 % to 30 %\)"),
])  # fmt: skip
def test_how_much_lower_and_what_that_rests_on(run, ratio, ci, words, repeats, rests_on):
    pooled = [s for s in run.results.summaries if s.label in ("roseinfer", "SGLang")]
    for a, b, r, ends in (
        ("SGLang", "roseinfer", ratio, ci),
        ("roseinfer", "SGLang", 1 / ratio, (1 / ci[1], 1 / ci[0])),
    ):
        p99 = comparison(a, b, r, ends, statistic="p99").model_copy(update={"repeats": (repeats, repeats)})
        changed = run.results.model_copy(update={"summaries": pooled, "comparisons": [p99]})
        shown = type(run)(run.path, changed, run.requests, run.chunks)
        assert re.search(words, verdict(shown)[0])
        said = "There is one repeat: the intervals assume that repeats differ by 25 %."
        assert (said in terms(shown)) == rests_on and (said in summary(shown)) == rests_on


def test_one_engine_is_compared_with_nothing(small, swept):
    assert verdict(small)[1:] == ["roseinfer is the only engine of this run, so nothing is compared."]
    skipped = [Skipped(engine="vllm", label="vLLM", reason="not installed", hint="install it")]
    results = small.results.model_copy(update={"skipped": skipped})
    assert verdict(replace(small, results=results))[1] == "vLLM was skipped, so nothing is compared."
    own = [summary for summary in swept.results.summaries if summary.label == "roseinfer"]
    low, _, high = sorted((s for s in own if s.repeat is None), key=lambda summary: summary.load)
    single = replace(swept, results=swept.results.model_copy(update={"summaries": own}))
    assert verdict(single)[1] == (
        f"From 1 in flight, the lightest load, to 64 in flight its TTFT p99 goes from "
        f"{low.ttft_ms.p99:,.0f} to {high.ttft_ms.p99:,.0f} ms."
    )


def test_a_closed_loop_is_told_by_its_requests_in_flight(small):
    load = ClosedLoop(concurrency=64)
    summaries = [summary.model_copy(update={"load": load}) for summary in small.results.summaries]
    closed = replace(small, results=small.results.model_copy(update={"summaries": summaries}))
    assert re.match(r"At [\d.]+ requests/s \(scale 1\), roseinfer has", verdict(small)[0])
    assert verdict(closed)[0].startswith("With 64 requests in flight, roseinfer has")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "run"
    return load_run(
        make_online(folder, engines=ENGINES[:2], closed=[8, 1, 64], repeats=1, n=100, faults=False)
    )


def test_a_closed_loop_s_levels_are_its_loads(swept):
    first = verdict(swept)[0]
    assert first.startswith("With 64 requests in flight, the heaviest load, ")
    shown = latency_table(swept.pooled, "ttft_ms", {})
    groups = [column.group for column in shown.columns[1::3]]
    assert groups == ["1 in flight", "8 in flight", "64 in flight"]
    rates = throughput_table(swept.pooled)
    assert rates.headers[1] == "in flight" and [row[1].text for row in rates.rows[:3]] == ["1", "8", "64"]
    assert swept.disagreements == [] and "scale" not in summary(swept)


def test_too_few_rounds_are_said(swept):
    [found] = [notice for notice in notices(swept) if "for each in flight" in notice.title]
    assert found.detail == (
        "100 requests for 64 in flight: most are sent while the load begins or ends. "
        "--rounds 10 sends ten for each in flight."
    )


def test_warnings_name_every_reason(run, small):
    found: dict[str, str] = {}
    for notice in notices(run):
        found[notice.kind] = f"{found.get(notice.kind, '')} {notice.title} {notice.detail}"
    assert "vLLM at scale 0.4 is invalid" in found["invalid"]
    assert "3 of 200 requests failed (disconnected 1, timeout 2)" in found["invalid"]
    assert "TensorRT-LLM was skipped: needs an NVIDIA GPU. To include it" in found["skipped"]
    assert "75 of 200 (38 %) changed" in found["load"]
    assert next(notice.kind for notice in notices(run)) == "invalid"
    unchecked, fitted, client, short = notices(small)
    assert [unchecked.kind, *(each.kind for each in (fitted, client, short))] == ["skipped", *["load"] * 3]
    assert unchecked.title == "The answers were not checked."
    assert client.title == "The client was not calibrated."
    assert "was fitted" in fitted.title and "is short" in short.title


def test_offline_means_and_verdict(offline_run, tmp_path):
    run = load_run(offline_run)
    shown = offline_table(run.results.results)
    assert shown.headers == ["engine", "req/s", "output tok/s", "total tok/s", "total latency (s)"]
    rates = [result.output_tok_per_s for result in run.results.results if result.label == "vLLM"]
    (row,) = [row for row in shown.rows if row[0].text == "vLLM"]
    assert row[2].value == pytest.approx(sum(rates) / 3)
    assert "all repeats of the one are above" in verdict(run)[1]
    assert "× vLLM's" in verdict(run)[1]  # not of the other way into the same engine
    single = load_run(make_offline(tmp_path / "single", repeats=1))
    assert "too few to say" in verdict(single)[1]


def test_summary_markdown_has_the_same_rows_as_the_tables(run):
    text = summary(run)
    assert text.startswith("# roseinfer vs roseinfer (-mp async admit) vs vLLM vs SGLang\n")
    assert "| engine | scale 0.4 p50 | scale 0.4 p90 | scale 0.4 p99 |" in text
    best = best_labels(run.pooled, run.results.comparisons)
    lines = latency_table(run.pooled, "itl_ms", best).lines
    for row in lines:
        assert f"| {' | '.join(row).replace('*', chr(92) + '*')} |" in text
    invalid = next(row for row in lines if row[0] == "vLLM")
    assert all(cell.endswith(" †") for cell in invalid[1:4]) and not any("†" in cell for cell in invalid[4:])
    assert re.fullmatch(r"[\d.,]+ \([\d.,]+–[\d.,]+\)( [*†‡]+)?", lines[0][1])
    assert "\n† Invalid: shown, and not compared.\n" in text and "In brackets: 95 % intervals." in text


@pytest.mark.parametrize("mark", ["best", "invalid", "inferred"])
def test_marks_travel_in_text(mark):
    marked: dict[str, Any] = {mark: True}
    cells = [Cell("a"), Cell("1.5", 1.5, "1.4–1.6", **marked)]
    given = Table("t", "t", [Column("engine"), Column("p50")], [cells])
    sign, meaning = MARKS[mark]
    assert given.lines == [["a", f"1.5 (1.4–1.6) {sign}"]]
    assert given.legend == [f"{sign} {meaning}", "In brackets: 95 % intervals."]


def test_inferred_numbers_are_marked_everywhere(run):
    """SGLang's chunks carry two tokens: which came when is not known."""
    assert {s.label for s in run.pooled if s.itl_ms.source == "inferred"} <= {"SGLang"}
    pooled = [
        s.model_copy(update={"itl_ms": s.itl_ms.model_copy(update={"source": "inferred"})})
        for s in run.pooled
    ]
    shown = latency_table(pooled, "itl_ms", {})
    assert all(cell.inferred for row in shown.rows for cell in row[1:])
    assert any("‡" in line for line in shown.legend)
    others = latency_table(pooled, "ttft_ms", {})
    assert not any(cell.inferred for row in others.rows for cell in row)


def test_results_csv_marks_what_is_withheld(small):
    rows = list(csv.DictReader(io.StringIO(results_csv(small))))
    by = {(row["metric"], row["statistic"]): row for row in rows if row["repeat"] == ""}
    assert by["ttft_ms", "p99"]["mark"] == "withheld" and by["ttft_ms", "p99"]["value"] == ""
    p50 = by["ttft_ms", "p50"]
    assert p50["mark"] == "" and float(p50["lo"]) < float(p50["value"]) < float(p50["hi"])
    assert p50["unit"] == "ms" and p50["valid"] == "True"


def test_why_nothing_is_marked_is_true(run):
    """Of engines that all failed, or of which one is valid, it is not said that they do not differ."""
    none = replace(run, results=run.results.model_copy(update={"summaries": [
        s.model_copy(update={"valid": False}) for s in run.results.summaries]}))  # fmt: skip
    assert why_none_is_best(none) == "Nothing here is compared: no cell is valid."
    alone = replace(run, results=run.results.model_copy(update={"summaries": [
        s.model_copy(update={"valid": s.label == "vLLM"}) for s in run.results.summaries]}))  # fmt: skip
    assert why_none_is_best(alone) == "Nothing here is compared: at no load are two engines valid."


def test_markdown_cells_hold_hostile_text():
    hostile = Table("t", "t", [Column("a|b")], [[Cell("x|y\n| <b>`*_[z](u)")]])
    line = table(hostile).splitlines()[4]
    assert line == r"| x\|y \| &lt;b>\`\*\_\[z\](u) |"


def test_what_a_window_left_out_is_said(run):
    assert "Only a window" not in " ".join(notice.title for notice in notices(run))
    summaries = [
        summary.model_copy(update={"window_s": (1, 2), "left_out": 50, "num_requests": 150})
        for summary in run.results.summaries
    ]
    changed = run.results.model_copy(update={"summaries": summaries})
    last = notices(type(run)(run.path, changed, run.requests, run.chunks))[-1]
    assert last.title == "Only a window of each cell is measured."
    assert last.detail.startswith("1,200 of 4,800 requests (25 %) were sent before or after it")


def test_many_engines_are_counted_and_not_listed(run):
    assert few(list("abcd")) == "a, b, c and d" and few(list("abcde")) == "a and 4 others"
    load = shown_load(run)
    cell = next(summary for summary in run.pooled if summary.load == load)
    cells = [
        cell.model_copy(update={"label": f"e{i}", "notices": [CellNotice(kind="behind", text="")]})
        for i in range(6)
    ]
    changed = run.results.model_copy(update={"summaries": cells})
    assert "e0 and 5 others fell behind" in terms(replace(run, results=changed))[0]


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ((40, 40), "Every engine answered all requests."),
        ((40, 39), "Every engine answered at least 98 % of the requests."),
        ((40,), "a answered all requests."),
        ((10,), "a answered 25 % of the requests."),
    ],
)
def test_how_much_was_answered_is_counted_in_requests(run, answered, said):
    """Requests a second of a short cell, in which the last answers take as long as the rest, say nothing."""
    load = shown_load(run)
    cell = next(summary for summary in run.pooled if summary.load == load)
    known = {"num_requests": 40, "notices": [], "req_per_s": 0.5 * cell.offered_req_per_s}
    cells = [
        cell.model_copy(update={**known, "label": label, "num_success": count})
        for label, count in zip("ab", answered, strict=False)
    ]
    assert terms(replace(run, results=run.results.model_copy(update={"summaries": cells})))[0] == said


def test_a_share_is_not_rounded_to_none_or_all():
    shares = [percent(part, 1000) for part in (0, 2, 370, 998, 1000)]
    assert shares == ["0 %", "under 1 %", "37 %", "over 99 %", "100 %"] and percent(0, 0) == "0 %"


def test_every_notice_is_in_one_badge(run, small):
    for measured in (run, small):
        folded = [notice for badge in badges(measured) for notice in badge.notices]
        assert len(folded) == len(set(folded))
        assert set(notices(measured)) <= set(folded)
    kinds = [badge.kind for badge in badges(run)]
    assert kinds == sorted(kinds, key=("bad", "warn", "note", "good").index) and kinds[0] == "bad"
    assert "1 repeat" in {badge.text for badge in badges(small)}


def test_code_that_is_in_no_commit_is_noticed(run, offline_run):
    for measured in (run, load_run(offline_run)):
        for revision, said in ((None, 0), ("0" * 40, 0), (f"{'0' * 40}-dirty", 1)):
            versions = measured.meta.versions.model_copy(update={"git_rev": revision})
            meta = measured.meta.model_copy(update={"versions": versions})
            changed = replace(measured, results=measured.results.model_copy(update={"meta": meta}))
            marked = [badge for badge in badges(changed) if badge.text == "uncommitted code"]
            assert [badge.kind for badge in marked] == ["warn"] * said
            assert len(notices(changed)) - len(notices(measured)) == said
            assert all("commit 000000000000 with changes" in n.detail for b in marked for n in b.notices)
            assert all(found.validity.endswith("; uncommitted code") == said for found in findings(changed))


def test_the_first_table_of_a_closed_loop_has_tokens_a_second_and_no_offered_rate() -> None:
    run = load_run(Path(__file__).parents[3] / "reports/h200-qwen3-8b")
    assert isinstance(run, OnlineRun)
    assert "roseinfer reaches 3,424 output tok/s, 1.049× the" in verdict(run)[0]
    table = first_table(run.pooled, shown_load(run), best_labels(run.pooled, run.results.comparisons))
    names = [column.full for column in table.columns]
    assert not {"requests/s offered", "most in flight"} & set(names)
    there = {summary.label: summary for summary in run.pooled if summary.load == shown_load(run)}
    for label, *cells in table.rows:
        shown = cells[names.index("tokens/s output") - 1]
        assert shown.value == there[label.text].output_tok_per_s
        assert shown.ends == there[label.text].rates_ci["output_tok_per_s"] and shown.interval


def test_the_first_table_says_what_was_answered_of_what_was_offered(run):
    load = shown_load(run)
    best = best_labels(run.pooled, run.results.comparisons)
    table = first_table(run.pooled, load, best)
    there = {summary.label: summary for summary in run.pooled if summary.load == load}
    for label, *cells in table.rows:
        by = {column.full: cell.value for column, cell in zip(table.columns[1:], cells, strict=True)}
        summary = there[label.text]
        assert by["requests/s achieved"] == summary.req_per_s
        assert by["requests/s offered"] == summary.offered_req_per_s
        assert summary.peak_in_flight in by.values()
    assert table.title.endswith(f"requests/s ({load})")
    assert "answered" in terms(run)[0]
