"""Best labels, ratios and the verdict: what is claimed, and what is not."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape

import pytest

from harness.report.best import best_labels
from harness.report.findings import findings
from harness.report.markdown import summary
from harness.report.page import environment
from harness.report.tables.comparisons import ratios
from harness.report.tables.latency import (
    SHOWN,
    first_table,
    headline_table,
    latency_table,
)
from harness.report.tables.offline import batch_ratios_table, offline_table
from harness.report.text.badges import badges
from harness.report.text.claims import factor, lost_in_others, no_worse, times
from harness.report.text.load_words import with_rate
from harness.report.text.numbers import DASH
from harness.report.text.terms import terms
from harness.report.text.verdict import (
    shown_load,
    shown_percentile,
    verdict,
    why_none_is_best,
)
from harness.report.winners import Lost
from harness.runs.reader import Run, load_run
from harness.schema.cell_notice import CellNotice
from harness.schema.load import ClosedLoop, Load, RequestRate, TraceLoad
from harness.schema.machines import MachineLoad
from harness.schema.online_summary import OnlineSummary
from harness.schema.results import Skipped
from tests.harness.offline_runs import write_run

from .conftest import ENGINES, comparison, make_offline, make_online


def test_the_best_is_marked_only_where_it_differs_from_every_other_valid_engine(run):
    pooled = [s for s in run.pooled if s.load.value == 0.4]
    roseinfer, variant, vllm, sglang = (engine.label for engine in ENGINES)
    clear = [comparison(roseinfer, variant, 0.5, (0.4, 0.6)), comparison(roseinfer, sglang, 0.3, (0.2, 0.4))]
    key = (TraceLoad(scale=0.4), "ttft_ms", "p90")
    assert best_labels(pooled, clear) == {key: {roseinfer}}
    assert best_labels(pooled, [*clear, comparison(roseinfer, vllm, 2.0, (1.8, 2.2))]) == {key: {roseinfer}}
    assert best_labels(pooled, clear[:1]) == {}
    level = [clear[0], comparison(roseinfer, sglang, 0.9, (0.7, 1.1))]
    assert best_labels(pooled, level) == {}
    by_itself = [clear[0], comparison(roseinfer, sglang, 0.9, (0.85, 0.98), chance=True)]
    assert best_labels(pooled, by_itself) == {}


def test_engines_that_do_not_differ_are_the_best_together(run):
    """Where each of them is better than all others; else none is."""
    pooled = [s for s in run.pooled if s.load.value == 0.4]
    roseinfer, variant, _, sglang = (engine.label for engine in ENGINES)
    key = (TraceLoad(scale=0.4), "ttft_ms", "p90")
    level = comparison(roseinfer, variant, 0.9, (0.7, 1.1))
    ahead = [comparison(label, sglang, 0.5, (0.4, 0.6)) for label in (roseinfer, variant)]
    both = best_labels(pooled, [level, *ahead])
    assert both == {key: {roseinfer, variant}}
    marked = [row[0].text for row in latency_table(pooled, "ttft_ms", both).rows if row[2].best]
    assert marked == [roseinfer, variant]
    assert best_labels(pooled, [level, ahead[0]]) == {}


def test_a_winner_whose_number_reads_like_another_s_is_not_marked(run):
    pooled = [s for s in run.pooled if s.load.value == 1.6]
    mine = next(s for s in pooled if s.label == "roseinfer")
    level = [s.model_copy(update={"output_tok_per_s": mine.output_tok_per_s * 0.9999}) for s in pooled[1:]]
    apart = [s.model_copy(update={"output_tok_per_s": mine.output_tok_per_s * 0.9}) for s in pooled[1:]]
    key: tuple[Load, str, str] = (TraceLoad(scale=1.6), "output_tok_per_s", "output_tok_per_s")
    won = {key: frozenset({"roseinfer"})}
    for others, marked in ((level, 0), (apart, 1)):
        shown = headline_table([mine, *others], won)
        assert sum(cell.best for row in shown.rows for cell in row) == marked


def test_the_best_rate_is_the_highest_unless_the_load_sets_it(run):
    pooled = [s for s in run.pooled if s.load.value == 0.4 and s.label in ("roseinfer", "SGLang")]
    rate, closed = "output_tok_per_s", ClosedLoop(concurrency=8)
    compared = comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6), metric=rate, statistic=rate)
    assert best_labels(pooled, [compared]) == {}
    held = [s.model_copy(update={"load": closed}) for s in pooled]
    assert best_labels(held, [compared.model_copy(update={"load": closed})]) == {
        (closed, rate, rate): {"SGLang"}
    }
    behind = pooled[0].model_copy(update={"notices": [CellNotice(kind="behind", text="it fell behind")]})
    found = best_labels([behind, *pooled[1:]], [compared])
    assert list(found.values()) == [{"SGLang"}]


def test_the_verdict_claims_real_differences_and_names_what_is_level(tmp_path):
    run = load_run(
        make_online(tmp_path / "run", engines=[ENGINES[0], *ENGINES[2:]], scales=[0.4], repeats=10),
        trust=True,
    )
    first, second, *_ = verdict(run)
    winner, loser = (
        next(s.ttft_ms.p99 for s in run.pooled if s.label == label) for label in ("roseinfer", "SGLang")
    )
    at = r"At [\d.]+ requests/s \(scale 0\.4\)"
    said = r"roseinfer has a TTFT p99 of ([\d.,]+) ms; SGLang has \S+× as much, ([\d.,]+) ms \(95 %"
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
    said = verdict(type(run)(run.path, changed, run.requests, run.chunks))
    assert all("no difference is shown" in sentence and " 0.90× to 1.30×)" in sentence for sentence in said)
    assert ["95 % interval" in sentence for sentence in said] == [True, False]
    values = r"roseinfer has [\d.]+ ms, \S.* [\d.]+ ms and SGLang [\d.]+ ms \(roseinfer has 1\.10× as "
    assert all(re.search(rf"no difference is shown in \w+ p99: {values}", sentence) for sentence in said)


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
    assert "roseinfer has a TTFT p90 of" in said and re.search(r"; SGLang has 2\.0× as much, \S+ ms", said)
    assert said.endswith(
        "), the largest difference shown in this run. "
        "But SGLang is better than roseinfer in TTFT p50 (96.3 and 45.6 ms, 1.25×)."
    )
    assert terms(shown)[0] == "In TTFT p99 no difference from the lowest value is shown, so p90 is compared."
    answer = findings(shown)[-1].answers[0]
    assert answer.engine == "roseinfer" and answer.detail.startswith("p90 ")
    assert (
        answer.detail.endswith("; no difference shown in p99")
        and answer.elsewhere == "; in p50 SGLang is better"
    )


def of_two(run, *compared):
    """A run of two engines with these comparisons."""
    pooled = [s for s in run.results.summaries if s.label in ("roseinfer", "SGLang")]
    results = run.results.model_copy(update={"summaries": pooled, "comparisons": compared})
    return replace(run, results=results)


def of_percentiles(metric, **found):
    """Of roseinfer and SGLang: a ratio of 0.5 or 2 is a difference, 1 is none."""
    return [
        comparison("roseinfer", "SGLang", ratio, (0.9 * ratio, 1.1 * ratio), metric=metric, statistic=q)
        for q, ratio in found.items()
    ]


def test_latencies_are_compared_in_the_highest_percentile_in_which_all_of_them_differ(run):
    ttft = of_percentiles("ttft_ms", p99=0.5, p90=0.5, p50=0.5)
    for tpot, both in (
        (of_percentiles("tpot_ms", p99=1, p90=0.5, p50=0.5), "p90"),
        (of_percentiles("tpot_ms", p99=1, p90=1, p50=1), "p99"),  # it differs in none
    ):
        shown = of_two(run, *ttft, *tpot)
        first, second, *_ = verdict(shown)
        assert f"roseinfer has a TTFT {both} of" in first and f"TPOT {both}" in second
        assert shown_percentile(shown, "ttft_ms") == shown_percentile(shown, "tpot_ms") == int(both[1:])
        said = "In TPOT p99 no difference from the lowest value is shown, so p90 is compared."
        assert (f"In TTFT p99 roseinfer is better too. {said}" in terms(shown)) == (both == "p90")
        answers = findings(shown)[-1].answers
        assert all(both in answer.detail for answer in answers)
        assert answers[0].detail.endswith("; better in p99 too") == (both == "p90")


def test_percentiles_that_too_few_requests_support_are_said(run):
    """Those that have no interval, as of fewer than 100 requests in a repeat."""

    def of(p99, p90, p50, metrics=("ttft_ms", "tpot_ms")):
        known = [of_percentiles(name, p90=p90, p50=p50) for name in ("ttft_ms", "tpot_ms")]
        unknown = [comparison("roseinfer", "SGLang", 0.5, None, 0.4, name, "p99") for name in metrics]
        rest = [c for name in {"ttft_ms", "tpot_ms"} - {*metrics} for c in of_percentiles(name, p99=p99)]
        return terms(of_two(run, *(c for found in known for c in found), *unknown, *rest))[0]

    few = "there are too few independent requests"
    assert of(None, 0.5, 0.5) == of(None, 1, 1) == f"For p99 {few}, so p90 is compared."
    lowest = "In p90 no difference from the lowest value is shown, so p50 is compared."
    assert of(None, 1, 0.5) == f"For p99 {few}. {lowest}"
    better = "In TTFT p99 roseinfer is better too."
    assert of(0.5, 0.5, 0.5, ["tpot_ms"]) == f"{better} For TPOT p99 {few}, so p90 is compared."


def test_several_percentiles_above_the_compared_one_are_one_sentence(run):
    ttft = of_percentiles("ttft_ms", p99=0.5, p90=0.5, p50=0.5)
    shown = of_two(run, *ttft, *of_percentiles("tpot_ms", p99=1, p90=1, p50=0.5))
    said = "In TTFT p90 and p99 roseinfer is better too. In TPOT p90 and p99 no difference from"
    assert any(said in term for term in terms(shown))


def test_an_engine_that_is_better_in_several_percentiles_is_said_for_each(run):
    ttft = of_percentiles("ttft_ms", p99=0.5, p90=2, p50=2)
    first = verdict(of_two(run, *ttft, *of_percentiles("tpot_ms", p99=0.5, p90=1, p50=1)))[0]
    assert first.endswith(
        " But SGLang is better than roseinfer in TTFT p90 (234 and 103 ms, 2.0×) and p50 (96.3 and 45.6 ms, "
        "2.0×)."
    )


def test_where_no_percentile_shows_both_what_another_one_shows_is_said(run):
    ttft = of_percentiles("ttft_ms", p99=2, p90=1, p50=1)
    shown = of_two(run, *ttft, *of_percentiles("tpot_ms", p99=1, p90=1, p50=0.5))
    first, second, *_ = verdict(shown)
    assert "no difference is shown in TTFT p50" in first and "has a TPOT p50 of" in second
    assert first.endswith(
        " But SGLang is better than roseinfer in TTFT p99 (453 and 195 ms, 2.0×, "
        "the largest difference shown in this run)."
    )
    assert findings(shown)[-1].answers[0].elsewhere == "; in p99 SGLang is better than roseinfer"


def test_the_largest_difference_is_said_with_its_load_wherever_it_is(run):
    here = comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6), statistic="p99")
    other = comparison("SGLang", "roseinfer", 4.0, (3.5, 4.5), 1.6, "e2e_ms", "p50")
    chance = comparison("roseinfer", "SGLang", 0.1, (0.05, 0.9), statistic="p50", chance=True)
    first, _, last = verdict(of_two(run, here, other, chance))
    assert "largest" not in first
    assert re.fullmatch(
        r"The largest difference shown in this run: at [\d.]+ requests/s \(scale 1\.6\), roseinfer has an "
        r"E2E p50 of \S+ ms; SGLang has 4\.0× as much, \S+ ms \(3\.5× to 4\.5×\)\.",
        last,
    )
    first, _ = verdict(of_two(run, here, chance))
    assert "(95 % interval 1.7× to 2.5×), the largest difference shown in this run." in first


def test_the_winner_stands_out_in_the_page_and_text_stays_text():
    said = "At scale 1, <b> & co has a TTFT p90 of 2 ms; <b> has 3.1× as much, 6 ms (95 % interval …)."
    shown = (
        environment().from_string("{{ said | claim(labels) }}").render(said=said, labels=["<b>", "<b> & co"])
    )
    assert (
        "<strong>&lt;b&gt; &amp; co</strong> has a TTFT" in shown and "<strong>3.1×</strong> as much" in shown
    )
    assert unescape(re.sub("</?strong>", "", shown)).replace("\u00a0", " ") == said
    said = "Within TTFT p99 ≤ 1 s, <b> carries at least 30 requests in flight."
    shown = environment().from_string("{{ said | claim(labels) }}").render(said=said, labels=["<b>"])
    assert "<strong>&lt;b&gt;</strong> carries <strong>at least 30</strong> requests" in shown


@pytest.mark.parametrize(("ratio", "ci", "words"), [
    (1.0488, (1.0463, 1.0512), ("1.049×", "1.046× to 1.051×")),
    (1.2, (1.1, 1.3), ("1.20×", "1.10× to 1.30×")),
    (0.84, (0.839, 0.841), ("1.190×", "1.189× to 1.192×")),
    (4.0, (4.0, 4.0), ("4.0×", "4.0× to 4.0×")),
    (259.04, (18.1, 3710.7), ("259×", "18× to 3,711×")),
    (1.0041, (1.0016, 1.0072), ("1.004×", "1.002× to 1.007×")),
    (0.9979, (0.9959, 0.9999), ("1.0021×", "1.0001× to 1.0041×")),
    (1.9, (1.04, 3.2), ("1.90×", "1.04× to 3.20×")),
    (0.5, (0.0, 4.0), ("2.0×", "0.2× to inf×")),
])  # fmt: skip
def test_the_ends_of_an_interval_read_apart(ratio, ci, words):
    assert factor(comparison("roseinfer", "SGLang", ratio, ci)) == words


def test_an_interval_that_excludes_one_by_itself_is_no_claim(run):
    pooled = [s for s in run.results.summaries if s.label in ("roseinfer", "SGLang")]
    compared = comparison("roseinfer", "SGLang", 0.9, (0.85, 0.98), statistic="p99", chance=True)
    changed = run.results.model_copy(update={"summaries": pooled, "comparisons": [compared]})
    said = verdict(type(run)(run.path, changed, run.requests, run.chunks))[0]
    assert "no difference is shown" not in said and "lower" not in said
    between = "the difference in TTFT p99 may be chance"
    assert re.search(rf"{between}: roseinfer has [\d.]+ ms and SGLang [\d.]+ ms \(SGLang has 1\.11×", said)
    assert "95 % interval 1.02× to 1.18×; not significant after correction for 39 comparisons)" in said


@pytest.mark.parametrize(("ratio", "ci", "words"), [
    (0.07, (0.06, 0.09), "SGLang has 14.3× as much as roseinfer (11.1× to 16.7×)"),
    (14.0, (11.0, 17.0), "roseinfer has 14.0× as much as SGLang (11.0× to 17.0×)"),
    (0.9, (0.85, 0.98), "SGLang has 1.11× as much as roseinfer (1.02× to 1.18×)"),
])  # fmt: skip
def test_a_difference_that_is_not_significant_is_said_like_any_other(run, ratio, ci, words):
    compared = comparison("roseinfer", "SGLang", ratio, ci, statistic="p99", chance=True)
    compared = compared.model_copy(update={"repeats": (3, 4)})
    details = [answer.detail for answer in findings(of_two(run, compared))[-1].answers]
    assert any(
        f"; {words}, but 3 repeats are too few to show it among 39 comparisons" in it for it in details
    )


def test_an_invalid_cell_has_no_ratio(run):
    compared = comparison("roseinfer", "SGLang", 0.5, (0.4, 0.6))
    labels = ["roseinfer", "SGLang"]
    for valid in (True, False):
        pooled = [s.model_copy(update={"valid": valid or s.label != "SGLang"}) for s in run.pooled]
        [row] = ratios([compared], "ttft_ms", "SGLang", labels, pooled).rows
        cell = row[1 + SHOWN.index(90)]
        assert (cell.text, cell.best) == (("0.50×", True) if valid else (DASH, False))


@pytest.mark.parametrize(("repeats", "rests_on"), [(1, True), (3, False)])
@pytest.mark.parametrize(("ratio", "ci", "words"), [
    (5.2, (4.6, 5.9), r"; SGLang has 5\.2× as much, \S+ ms \(95 % interval 4\.6× to 5\.9×\)"),
    (1.25, (1.11, 1.43), r"; SGLang has 1\.25× as much, \S+ ms \(95 % interval 1\.11× to 1\.43×\)"),
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
        said = "One repeat: intervals above assume that repeats differ by 20 % (rates) to 100 % (p99)."
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


def test_offline_means_and_verdict(offline_run, tmp_path):
    run = load_run(offline_run)
    shown = offline_table(run.results)
    assert shown.headers == ["engine", "req/s", "output tok/s", "total tok/s", "total latency (s)"]
    rates = [result.output_tok_per_s for result in run.results.results if result.label == "vLLM"]
    (row,) = [row for row in shown.rows if row[0].text == "vLLM"]
    assert row[2].value == pytest.approx(sum(rates) / 3)
    found = next(found for found in run.results.comparisons if found.b == "vLLM" and "in-process" in found.a)
    low, high = found.ci
    [said] = verdict(run)
    assert re.fullmatch(
        rf"roseinfer \(in-process\) reaches [\d,]+ output tok/s, {found.ratio:.2f}× as much as vLLM "
        rf"with [\d,]+ \(95 % interval {low:.2f}× to {high:.2f}×\); "
        r"roseinfer \(server\) \(through its server\) has [\d,]+\.",
        said,
    )
    assert [row[0].text for row in shown.rows if row[2].best] == ["roseinfer (in-process)"]
    single = load_run(make_offline(tmp_path / "single", repeats=1))
    [said] = verdict(single)
    assert said.startswith("No difference is shown in output tok/s: roseinfer (in-process) has ")
    assert re.search(
        r" \(roseinfer \(in-process\) has 1\.\d+× as much as vLLM, 95 % interval 0\.\d+× to \d\.\d+×\)\.$",
        said,
    )
    assert terms(single) == ["One repeat: intervals assume that repeats differ by 20 % in rates."]
    assert not terms(run)
    assert not offline_table(single.results).marked
    assert "a spread of 20 % in rates is assumed" in batch_ratios_table(single.results).notes[-1]


def test_the_verdict_on_a_batch_says_that_the_machine_was_disturbed(tmp_path):
    run = load_run(write_run(tmp_path / "run", {"roseinfer": (100.0, 101.0), "vLLM": (50.0, 51.0)}))
    busy = {"notices": [CellNotice(kind="disturbed", text="other processes kept 1.5 of 2 cores busy")]}
    for labels, said in (
        (["roseinfer"], ", on a machine that was disturbed while roseinfer was measured, "),
        (["roseinfer", "vLLM"], ", on a disturbed machine, "),
    ):
        summaries = [
            summary.model_copy(update=busy if summary.label in labels else {})
            for summary in run.results.summaries
        ]
        shown = replace(run, results=run.results.model_copy(update={"summaries": summaries}))
        assert f" output tok/s{said}" in verdict(shown)[0]
    assert "disturbed" not in verdict(run)[0]


def test_no_row_of_a_batch_is_marked_best_beside_a_level_one_of_the_same_engine(tmp_path):
    """It says that it is better than all others by more than chance."""
    rates = {"roseinfer": (100.0, 131.0, 82.0), "vLLM": (50.0, 66.0, 41.0)}
    level = {**rates, "roseinfer (in-process)": (103.0, 128.0, 83.0)}
    ahead = {**rates, "roseinfer (in-process)": (200.0, 263.0, 163.0)}
    for name, given, marked in (("level", level, []), ("ahead", ahead, ["roseinfer (in-process)"])):
        run = load_run(write_run(tmp_path / name, given))
        assert verdict(run)[0].startswith("roseinfer (in-process) reaches ")
        assert [row[0].text for row in offline_table(run.results).rows if row[2].best] == marked


def test_the_verdict_on_a_batch_has_every_row_and_each_ratio_once(tmp_path):
    rates = {
        "roseinfer": (100.0, 131.0, 82.0),
        "roseinfer (in-process)": (103.0, 128.0, 83.0),
        "transformers": (52.0, 70.0, 35.0),
    }
    run = load_run(write_run(tmp_path / "run", rates))
    comparisons = [found.model_copy(update={"verdict": "no difference"}) for found in run.results.comparisons]
    level = replace(run, results=run.results.model_copy(update={"comparisons": comparisons}))
    [said] = verdict(level)
    assert re.fullmatch(
        r"No difference is shown in output tok/s: roseinfer \(in-process\) has 105, "
        r"roseinfer \(through its server\) has 104 and transformers has 52\.3 "
        r"\(roseinfer \(in-process\) has 2\.\d+× as much as transformers, "
        r"95 % interval [\d.]+× to [\d.]+×; 3 repeats are too few to show it among "
        r"3 comparisons\)\.",
        said,
    )
    measured = "roseinfer through its server, all others in-process"
    assert f"Measured: {measured}." in offline_table(run.results).notes
    assert f"Measured: {measured}." in summary(run)
    assert findings(run)[0].load == f"a batch without arrivals: {measured}"


def test_why_nothing_is_marked_is_true(run):
    """Of engines that all failed, or of which one is valid, it is not said that they do not differ."""
    none = replace(run, results=run.results.model_copy(update={"summaries": [
        s.model_copy(update={"valid": False}) for s in run.results.summaries]}))  # fmt: skip
    assert why_none_is_best(none) == "Nothing here is compared: no cell is valid."
    alone = replace(run, results=run.results.model_copy(update={"summaries": [
        s.model_copy(update={"valid": s.label == "vLLM"}) for s in run.results.summaries]}))  # fmt: skip
    assert why_none_is_best(alone) == "Nothing here is compared: at no load are two engines valid."


def with_cells(run: Run, changed: Sequence[OnlineSummary]) -> Run:
    return replace(run, results=run.results.model_copy(update={"summaries": changed}))


def test_the_heaviest_load_at_which_all_keep_up_is_compared(tmp_path):
    """The latencies of an engine that fell behind grow with the run, and so does the factor."""
    folder = make_online(tmp_path / "run", engines=ENGINES[:2], repeats=4, faults=False)
    run = load_run(folder, trust=True)
    behind = [CellNotice(kind="behind", text="fell behind: 9 requests/s offered")]

    def slowed(scales: Sequence[float]) -> Run:
        mine = [s.label == "roseinfer" and s.load.value in scales for s in run.results.summaries]
        cells = zip(mine, run.results.summaries, strict=True)
        return with_cells(run, [s.model_copy(update={"notices": behind}) if m else s for m, s in cells])

    assert ", the heaviest load, " in verdict(run)[0] and "largest" in " ".join(verdict(run))
    some, every = slowed([0.4]), slowed([0.4, 0.8, 1.6])
    assert shown_load(some) == TraceLoad(scale=0.8)
    assert "(scale 0.8), the heaviest load at which no engine fell behind, roseinfer" in verdict(some)[0]
    assert "largest" not in " ".join(verdict(some))
    assert shown_load(every) == TraceLoad(scale=0.4)
    noted = [finding.validity for finding in findings(some)]
    assert ["; roseinfer fell behind: latencies grow" in text for text in noted] == [False, False, True]
    said = "(scale 0.4), where roseinfer fell behind and its latency grows with the length of the run, rose"
    assert said in verdict(every)[0]
    assert not any("fell behind" in sentence for sentence in terms(every))


def test_the_verdict_says_on_which_engines_the_machine_was_disturbed(tmp_path):
    folder = make_online(tmp_path / "run", engines=ENGINES[:3], scales=[0.4, 1.6], repeats=4, faults=False)
    run = load_run(folder, trust=True)
    found = [CellNotice(kind="disturbed", text="other processes kept 1 of 2 cores busy")]

    def at(scale: float, *labels: str) -> list[str]:
        mine = [s.label in labels and s.load.value == scale for s in run.results.summaries]
        cells = zip(mine, run.results.summaries, strict=True)
        return verdict(
            with_cells(run, [s.model_copy(update={"notices": found}) if m else s for m, s in cells])
        )

    plain, load = verdict(run), ", the heaviest load"
    assert load in plain[0] and "disturbed" not in " ".join(plain)
    clause_of_vllm = "on a machine that was disturbed while vLLM was measured"
    for labels, clause in ((["vLLM"], clause_of_vllm), (["roseinfer", "vLLM"], "on a disturbed machine")):
        assert at(0.4, *labels) == [plain[0].replace(f"{load}, ", f"{load}, {clause}, "), *plain[1:]]
    assert at(1.6, "vLLM") == plain, "another load is not what is compared"


@pytest.mark.parametrize(
    ("kinds", "known", "said"),
    [
        (
            ["late"],
            {"foreign_cores_mean": 1.8, "foreign_cores_max": 2},
            "the client sent late, while other programs kept 1.8 of 2 cores busy. Stop them and run again.",
        ),
        (
            ["late"],
            {"steal_share": 0.5},
            "the client sent late. Use a lighter load, or leave the client a core of its own.",
        ),
        (
            ["busy", "busy"],
            {"clients_needed": 3},
            "a client process had too much to do. Run again with --clients 3.",
        ),
        (["failures"], {}, "requests failed. The warnings say more."),
        (
            ["answers", "accuracy"],
            {},
            "answers are wrong and an engine scores below another. The warnings say more.",
        ),
        ([], {}, "the warnings say why. The warnings say more."),
    ],
)
def test_the_verdict_begins_with_why_nothing_is_compared(run, kinds, known, said):
    """By the kinds of the reasons, whatever their words are."""
    seen = {"seconds": 8, "samples": 9, "cpus": 2, "own_cpu_s": 4}
    quiet = {"foreign_cores_mean": 0, "foreign_cores_max": 0, "steal_share": 0}
    bad = {"valid": False, "invalid_reasons": ["words"] * len(kinds), "invalid_kinds": kinds}
    bad |= {"clients_needed": known.get("clients_needed")}
    machine = MachineLoad(**seen | quiet | {name: known[name] for name in known if name in quiet})
    machines = {int(cell): machine for cell in run.requests["cell"].unique()}
    run = replace(run, results=run.results.model_copy(update={"machines": machines}))
    pooled = [s for s in run.pooled if s.label in ("roseinfer", "SGLang")]
    none = with_cells(run, [s.model_copy(update=bad) for s in pooled])
    assert verdict(none) == [f"6 of 6 cells are invalid: {said}", "Nothing is compared."]
    late = bool({"late", "busy"} & {*kinds})
    assert ("client late" in {badge.text for badge in badges(none)}) == late
    some = with_cells(run, [pooled[0], *(s.model_copy(update=bad) for s in pooled[1:])])
    first, *_, last = verdict(some)
    assert first == f"5 of 6 cells are invalid: {said}"
    assert last == "No other engine has a valid result at the same load, so nothing is compared."


def test_a_tuning_has_no_sentence_about_percentiles_of_engines(run):
    compared = of_percentiles("ttft_ms", p90=1, p50=0.5)
    shown = of_two(run, *compared)
    sentence = "no difference from the lowest value is shown, so p50 is compared"
    assert any(sentence in said for said in terms(shown))
    tuned = replace(
        shown,
        results=shown.results.model_copy(update={"meta": shown.meta.model_copy(update={"tune": "any"})}),
    )
    assert not any(sentence in said for said in terms(tuned))


def test_a_ratio_that_may_be_anything_has_no_interval(run):
    wide = [
        comparison("roseinfer", "SGLang", 1.1, (0.0, 6e6), metric=m, statistic="p99")
        for m in ("ttft_ms", "tpot_ms")
    ]
    said = verdict(of_two(run, *wide))[0]
    assert "(roseinfer has 1.10× as much as SGLang; too few repeats for a useful interval)." in said


def test_where_the_best_engine_loses_by_other_latencies_is_said(run):
    won = of_percentiles("ttft_ms", p99=0.5, p90=0.5, p50=0.5)
    won += of_percentiles("tpot_ms", p99=0.5, p90=0.5, p50=0.5)
    lost = of_percentiles("itl_ms", p99=1, p90=2, p50=2)
    (said,) = [text for text in verdict(of_two(run, *won, *lost)) if "ITL" in text and "largest" not in text]
    better = r"SGLang is better than roseinfer in ITL p50 \(\S+ and \S+ ms, \S+×\) and ITL p90 \(.* \S+×\)\."
    assert re.fullmatch(f"At that load, {better}", said)
    assert not any("ITL" in text for text in verdict(of_two(run, *won)))
    found = comparison("roseinfer", "SGLang", 2, (1.8, 2.2), statistic="p50")
    lost_to_two = Lost("p50", ("SGLang", "vLLM"), "roseinfer", found)
    said = lost_in_others(run.results.summaries, [lost_to_two])
    values = r"\S+, \S+ and \S+ ms, up to 2\.0×"
    assert re.fullmatch(rf"SGLang and vLLM are better than roseinfer in TTFT p50 \({values}\)\.", said)


def test_factors_without_an_interval_have_the_usual_digits():
    """An interval may ask for more, so that its ends do not read alike."""
    ends = {2.712: (2.709, 2.716), 0.4: (0.3999, 0.4001), 1.0703: (1.0698, 1.0711), 1.002: (1.001, 1.003)}
    found = [comparison("a", "b", ratio, ci) for ratio, ci in ends.items()]
    assert [times(each) for each in found] == ["2.7×", "2.5×", "1.07×", "1.002×"]
    assert factor(found[0]) == ("2.71×", "2.71× to 2.72×")


def test_who_has_a_better_value_than_the_better_one_of_the_largest_difference(run):
    cells = [cell for cell in run.pooled if cell.load == TraceLoad(scale=0.4)]
    lowest, middle, highest = sorted(cells, key=lambda cell: cell.value("ttft_ms", "p50"))[:3]
    found = comparison(middle.label, highest.label, 0.5, (0.4, 0.6), statistic="p50")
    said = no_worse(cells, middle.label, found, [found])
    assert re.fullmatch(rf"; {re.escape(lowest.label)} has \S+ ms, from which no difference is shown", said)
    better = comparison(lowest.label, middle.label, 0.5, (0.4, 0.6), statistic="p50")
    assert "no difference" not in no_worse(cells, middle.label, found, [found, better])
    assert no_worse(cells, lowest.label, found, [found]) == ""


def test_an_offered_rate_that_is_not_the_asked_one():
    """Few gaps of a wide distribution, or sessions of several requests."""
    assert with_rate(RequestRate(req_per_s=3), [7.7, 7.7]) == "at 7.70 requests/s (asked: 3, poisson)"
    assert with_rate(RequestRate(req_per_s=5), [5.1]) == "at 5 requests/s (poisson)"
    sessions = RequestRate(req_per_s=3, of="sessions")
    assert with_rate(sessions, [7.7]) == "at 7.70 requests/s (3 sessions/s, poisson)"


def test_one_engine_of_an_interrupted_run_is_not_its_only_one(run):
    only = [summary for summary in run.results.summaries if summary.label == "roseinfer"]
    shown = replace(run, results=run.results.model_copy(update={"summaries": only, "skipped": []}))
    planned = [(label, 0) for label in ("roseinfer", "SGLang")]
    shown.results.meta = run.meta.model_copy(update={"order": planned, "interrupted": True})
    said = verdict(shown)[-1]
    assert said == "SGLang was not measured before the interruption, so nothing is compared."
