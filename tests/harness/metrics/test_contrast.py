"""Comparisons of engines, of batches too, and the repeats that they need."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.contrast import (
    MAX_REPEATS,
    Contrast,
    compare_points,
    holm,
    judged,
    needed_repeats,
    repeats_to_find,
    upper_spread,
)
from harness.metrics.estimates import COMPARED, measure
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES, LEVEL, Effect, Estimate
from harness.metrics.samples import by_load, split
from harness.records.columns import CHUNKS, REQUESTS
from harness.schema.load import Batch, ClosedLoop, TraceLoad, load_text
from harness.schema.results import Comparison
from tests.harness.metrics.conftest import build, compare


def engine(label, cell, *, slower=1.0, repeat=0, scale=1.0, n=150, seed=0):
    rng = np.random.default_rng([seed, cell])
    rows = []
    for i in range(n):
        t = i * 0.1 + 0.05 * slower * rng.lognormal(0, 0.2)
        chunks = [(t, 1)] + [(t := t + 0.01 * slower * rng.lognormal(0, 0.2), 1) for _ in range(4)]
        load = load_text(TraceLoad(scale=scale))
        rows.append({"cell": cell, "engine": label, "label": label, "load": load, "repeat": repeat})
        rows[-1] |= {"request": i, "t_sched": i * 0.1, "t_sent": i * 0.1, "chunks": chunks}
    return rows


def found(comparisons, metric, statistic):
    (compared,) = [c for c in comparisons if (c.metric, c.statistic) == (metric, statistic)]
    return compared


def several(label, cells, **how):
    return [row for repeat, cell in enumerate(cells) for row in engine(label, cell, repeat=repeat, **how)]


def test_the_same_engine_twice_shows_no_difference():
    comparisons = compare(*build(several("a", (0, 1, 2)) + several("b", (3, 4, 5))))
    assert len(comparisons) == 13
    assert {comparison.verdict for comparison in comparisons} == {"no difference"}
    assert {comparison.comparisons for comparison in comparisons} == {13}


def test_a_slower_engine_is_found_with_its_ratio_in_the_interval():
    rows = several("a", (0, 1, 2, 3), slower=1.3, seed=1) + several("b", (4, 5, 6, 7), seed=1)
    requests, chunks = build(rows)
    comparisons = compare(requests, chunks)
    for metric in ("ttft_ms", "tpot_ms", "itl_ms"):
        compared = found(comparisons, metric, "p50")
        assert compared.difference and compared.verdict == "worse"
        assert compared.comparisons == 13
        assert compared.ratio == pytest.approx(compared.value_a / compared.value_b, rel=0.02)
        assert compared.ci[0] < 1.3 < compared.ci[1]
    mirrored = several("b", (4, 5, 6, 7)) + several("a", (0, 1, 2, 3), slower=1.3)
    assert found(compare(*build(mirrored)), "ttft_ms", "p50").verdict == "better"


@pytest.mark.parametrize(("slower", "verdict"), [(3.0, "no difference"), (6.0, "worse")])
def test_of_one_repeat_only_what_is_plain_is_claimed(slower, verdict):
    comparisons = compare(*build(engine("a", 0, slower=slower) + engine("b", 1)))
    assert found(comparisons, "tpot_ms", "p50").verdict == verdict
    assert all(comparison.spread is None for comparison in comparisons)


def test_a_run_with_repeats_says_how_many_find_a_difference():
    rows = several("a", (0, 1, 2)) + several("b", (3, 4, 5), slower=1.02)
    rows += engine("b", 6, repeat=3, slower=1.1)
    compared = found(compare(*build(rows)), "tpot_ms", "p50")
    needed = compared.repeats_to_find
    assert needed == {
        name: repeats_to_find(effect, compared.spread, compared.repeats, LEVEL * 0.8 / 2)
        for name, effect in {"5 %": 0.05, "10 %": 0.1, "20 %": 0.2}.items()
    }
    assert needed["20 %"] <= needed["10 %"] < needed["5 %"] and needed["10 %"] > 4
    once = found(compare(*build(engine("a", 0) + engine("b", 1))), "tpot_ms", "p50")
    assert once.repeats_to_find == {"5 %": None, "10 %": None, "20 %": None}


def test_repeats_that_differ_hide_what_their_requests_would_show():
    """Tokens 20 % apart, the same from one repeat to the next of each engine, or of neither."""
    apart = several("a", (0, 1), slower=1.2) + several("b", (2, 3))
    mixed = engine("a", 0, slower=1.2) + engine("a", 1, repeat=1)
    mixed += engine("b", 2) + engine("b", 3, repeat=1, slower=1.01)
    assert found(compare(*build(apart)), "tpot_ms", "p50").ci[0] > 1
    assert not found(compare(*build(mixed)), "tpot_ms", "p50").difference


def test_equal_samples_of_one_repeat_are_still_uncertain():
    rows = engine("a", 0)
    same = [{**row, "cell": 1, "label": "b", "engine": "b"} for row in rows]
    compared = found(compare(*build(rows + same)), "ttft_ms", "p50")
    assert compared.ratio == 1
    assert compared.ci[0] < 0.999 and compared.ci[1] > 1.001
    assert compared.difference is False


def test_p99_of_few_requests_has_a_ratio_and_no_verdict():
    compared = found(compare(*build(engine("a", 0, n=99) + engine("b", 1, n=99))), "ttft_ms", "p99")
    assert compared.ratio > 0
    assert compared.ci is None and compared.difference is None and compared.verdict == "not enough data"


def test_intervals_of_one_repeat_have_the_spread_that_is_assumed_of_each_kind():
    """Of a latency, and beside it how well its requests tell it."""
    comparisons = compare(*build(engine("a", 0, n=500) + engine("b", 1, n=500)))
    rate = found(comparisons, "output_tok_per_s", "output_tok_per_s")
    assert rate.ci == pytest.approx(
        [rate.ratio * np.exp(sign * 1.96 * ASSUMED_OF_RATES * 2**0.5) for sign in (-1, 1)], rel=1e-3
    )
    for name in ("p50", "p90", "p99"):
        low, high = found(comparisons, "tpot_ms", name).ci
        half = np.log(high / low) / 2
        assert half == pytest.approx(1.96 * ASSUMED_OF_LATENCIES[name] * 2**0.5, rel=0.05), name


def test_the_verdicts_own_metrics_are_primary():
    comparisons = compare(*build(several("a", (0, 1)) + several("b", (2, 3))))
    assert {(c.metric, c.statistic) for c in comparisons if c.primary} == {
        ("ttft_ms", "p50"), ("tpot_ms", "p50"),
    }  # fmt: skip
    loop = load_text(ClosedLoop(concurrency=4))
    rows = [{**row, "load": loop} for row in several("a", (0, 1)) + several("b", (2, 3))]
    primary = {c.metric for c in compare(*build(rows)) if c.primary}
    assert primary == {"ttft_ms", "tpot_ms", "output_tok_per_s"}


@pytest.mark.parametrize(
    ("place", "verdict"), [(("ttft_ms", "p50"), "better"), (("ttft_ms", "p99"), "no difference")]
)
def test_primary_comparisons_have_four_fifths_of_the_level(place, verdict):
    """One p-value of 0.015 among thirteen comparisons, two of which are primary."""
    values = Estimate(1.0, np.array([1.0, 1.1]))
    contrasts = judged([
        Contrast(load, *key, values, values, Effect(0.9, p=0.015 if key == place else 1.0), Effect(0))
        for load in [TraceLoad(scale=1)]
        for key in COMPARED
    ])  # fmt: skip
    by_place = {(c.metric, c.statistic): c for c in contrasts}
    assert by_place[place].verdict == verdict
    assert by_place["tpot_ms", "p50"].level == pytest.approx(0.8 * LEVEL / 2)
    assert by_place["e2e_ms", "p50"].level == pytest.approx(0.2 * LEVEL / 11)
    assert sum(c.level for c in contrasts) == pytest.approx(LEVEL)


def test_an_interval_that_holds_one_is_no_difference():
    """Repeat by repeat p99 of `a` is the higher one, of all repeats together that of `b`."""
    rows = []
    for cell in range(10):
        label, slow = ("a", (1.0,)) if cell < 5 else ("b", (0.85, 0.05))
        row = {"cell": cell, "label": label, "repeat": cell % 5}
        for request in range(100):
            ttft = slow[request] if request < len(slow) else 0.01
            first = ttft * (1 + 1e-3 * cell)
            rows.append(row | {"request": request, "chunks": [(first, 1), (first + 0.01, 1)]})
    compared = found(compare(*build(rows)), "ttft_ms", "p99")
    assert compared.ratio < 0.5 and compared.adjusted_p < 1e-4
    assert compared.ci[0] == pytest.approx(compared.ratio) and compared.ci[1] > 1
    assert (compared.difference, compared.verdict) == (False, "no difference")


@pytest.mark.parametrize("statistic", ["p50", "p99"])
def test_comparisons_of_one_kind_share_the_level_alike(statistic):
    values = Estimate(1.0, np.array([1.0, 1.1]))
    contrasts = judged([
        Contrast(TraceLoad(scale=1), "ttft_ms", statistic, values, values, Effect(0.9, p=p), Effect(0))
        for p in (0.01, None, 0.02)
    ])  # fmt: skip
    assert [c.adjusted_p for c in contrasts] == [0.02, None, 0.02]
    assert {c.level for c in contrasts} == {LEVEL / 2}


def test_pairs_scale_by_scale():
    rows = engine("a", 0, n=20) + engine("b", 1, n=20) + engine("c", 2, n=20)
    rows += engine("a", 3, scale=0.5, n=20) + engine("b", 4, scale=0.5, n=20)
    comparisons = compare(*build(rows))
    every = {(c.load.value, c.a, c.b) for c in comparisons}
    assert every == {(0.5, "a", "b"), (1.0, "a", "b"), (1.0, "a", "c"), (1.0, "b", "c")}
    judged = [c for c in comparisons if c.adjusted_p is not None]
    assert {c.comparisons for c in judged} == {len(judged)}  # all pairs and loads are corrected together
    assert len(judged) > 13


def test_the_more_is_compared_the_more_a_difference_takes():
    two = several("a", (0, 1, 2)) + several("b", (3, 4, 5), slower=1.05)
    four = two + several("c", (6, 7, 8)) + several("d", (9, 10, 11))
    alone, together = (
        found([c for c in compare(*build(rows)) if (c.a, c.b) == ("a", "b")], "tpot_ms", "p50")
        for rows in (two, four)
    )
    assert alone.ratio == together.ratio
    assert (alone.comparisons, together.comparisons) == (13, 6 * 13)
    assert alone.adjusted_p < together.adjusted_p


def test_an_engine_without_successes_is_not_compared():
    failed = [{**row, "error": "timeout"} for row in engine("b", 1, n=20)]
    assert not compare(*build(engine("a", 0, n=20) + failed))


LOAD, TOKENS = Batch(prompts=2), 1000


def compared(rates: dict[str, dict[int, float]]) -> list[Comparison]:
    """Compare batches of two prompts whose rates are given by label and repeat, in tokens a second."""
    cells = [(label, repeat, rate) for label, each in rates.items() for repeat, rate in each.items()]
    rows = [
        {
            "cell": cell, "engine": label, "label": label, "load": load_text(LOAD), "repeat": repeat,
            "request": request, "input_tokens": 1, "output_tokens": TOKENS, "t_sched": 0.0, "t_sent": 0.0,
            "t_last": 2 * TOKENS / rate, "t_end": 2 * TOKENS / rate, "completion_tokens": TOKENS, "chunks": 0,
        }
        for cell, (label, repeat, rate) in enumerate(cells)
        for request in range(LOAD.prompts)
    ]  # fmt: skip
    requests: pd.DataFrame = pa.Table.from_pylist(rows, schema=REQUESTS).to_pandas()
    groups = split(requests, CHUNKS.empty_table().to_pandas())
    return compare_points([measure(repeats) for repeats in by_load(groups)])


def numbered(*rates: float) -> dict[int, float]:
    return dict(enumerate(rates))


def test_interval_and_p_are_those_of_scipys_paired_t_of_logarithms() -> None:
    """Published rates: the work of the repeats differs by more than the engines do."""
    a, b = (18844.0, 19121.0, 19938.0), (18036.0, 18040.0, 18925.0)
    [found] = compared({"a": numbered(*a), "b": numbered(*b)})
    paired = stats.ttest_rel(np.log(a), np.log(b))
    assert found.adjusted_p == pytest.approx(paired.pvalue)
    assert found.ci == pytest.approx(tuple(np.exp(paired.confidence_interval(0.95))))
    assert found.verdict == "better" and found.metric == "output_tok_per_s"
    unpaired = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assert unpaired.pvalue > 0.05 > found.adjusted_p


RATIOS = (1.05, 1.06, 1.04)


@cache
def compared_by_ratios() -> Comparison:
    [comparison] = compared({"a": numbered(*RATIOS), "b": numbered(1.0, 1.0, 1.0)})
    return comparison


@settings(max_examples=12)
@given(st.lists(st.floats(10, 1e5), min_size=3, max_size=3), st.floats(0.1, 10))
def test_work_that_differs_from_repeat_to_repeat_decides_nothing(work: list[float], scale: float) -> None:
    """A repeat that is heavier for both engines leaves interval and p as they are."""
    plain = compared_by_ratios()
    of_a = numbered(*(scale * w * r for w, r in zip(work, RATIOS, strict=True)))
    [weighted] = compared({"a": of_a, "b": numbered(*(scale * w for w in work))})
    assert weighted.ci is not None and plain.ci is not None
    assert weighted.ci == pytest.approx(plain.ci, rel=1e-6)
    assert weighted.adjusted_p == pytest.approx(plain.adjusted_p, rel=1e-6)


def test_only_common_repeats_are_compared() -> None:
    rates = {"a": {0: 100.0, 1: 110.0, 2: 999.0}, "b": {0: 50.0, 1: 55.0}}
    [found] = compared(rates)
    assert (found.a, found.b, found.repeats) == ("a", "b", (2, 2)) and found.ratio == pytest.approx(2.0)


def test_the_verdicts_hold_for_all_pairs_together() -> None:
    """A difference of one pair alone, with p = 0.03, is none beside two pairs that are as close."""
    a, b = numbered(104.0, 102.6, 105.2, 100.9), numbered(100.0, 100.0, 100.0, 100.0)
    [alone] = compared({"a": a, "b": b})
    first, *others = compared({"a": a, "b": b, "c": numbered(99.1, 101.2, 100.9, 98.9)})
    assert alone.adjusted_p is not None and 0.02 < alone.adjusted_p < 0.05 and alone.verdict == "better"
    assert first.ratio == alone.ratio and first.ci == alone.ci and first.verdict == "no difference"
    assert [found.comparisons for found in (alone, first, *others)] == [1, 3, 3, 3]


def test_one_repeat_claims_only_what_is_plain() -> None:
    [near] = compared({"a": {0: 150.0}, "b": {0: 100.0}})
    [far] = compared({"a": {0: 100.0}, "b": {0: 400.0}})
    assert (near.verdict, far.verdict) == ("no difference", "worse")


effects = st.floats(0.005, 2)
spreads = st.floats(0, 0.5)
levels = st.floats(1e-4, 0.2)


def count(*given):
    found = needed_repeats(*given)
    return MAX_REPEATS + 1 if found is None else found


@settings(max_examples=75)
@given(st.tuples(effects, effects), st.tuples(spreads, spreads), st.tuples(levels, levels))
def test_smaller_effects_larger_spreads_and_stricter_levels_need_no_fewer(effect, spread, level):
    (small, large), (steady, noisy), (strict, loose) = map(sorted, (effect, spread, level))
    assert 2 <= count(large, steady, loose) <= count(small, steady, loose)
    assert count(large, steady, loose) <= count(large, noisy, loose)
    assert count(large, steady, loose) <= count(large, steady, strict)


@given(effects, spreads)
def test_faster_and_slower_by_the_same_factor_need_the_same(effect, spread):
    assert count(effect, spread) == pytest.approx(count(1 / (1 + effect) - 1, spread), abs=1)


@pytest.mark.parametrize(
    ("effect", "spread", "paired"),
    [
        *[(0.1, 0.03, False), (0.1, 0.1, False), (0.05, 0.02, False), (0.5, 0.2, False)],
        *[(0.1, 0.05, True), (0.05, 0.02, True)],
    ],
)
def test_so_many_repeats_find_it_nine_times_in_ten_and_one_fewer_does_not(effect, spread, paired):
    """With pairs the spread is that of the ratio."""
    repeats = needed_repeats(effect, spread, paired=paired)
    rng = np.random.default_rng(7)

    def found(count):
        a = rng.normal(np.log1p(effect), spread, (4000, count))
        if paired:
            return np.mean(stats.ttest_1samp(a, 0, axis=1).pvalue < 0.05)
        b = rng.normal(0, spread, (4000, count))
        return np.mean(stats.ttest_ind(a, b, axis=1).pvalue < 0.05)

    assert found(repeats) > 0.885
    assert repeats == 2 or found(repeats - 1) < 0.905


def test_without_spread_two_repeats_show_everything_and_too_many_are_none():
    assert needed_repeats(0.001, 0.0) == 2
    assert needed_repeats(0.001, 1.0) is None


def test_a_spread_of_few_repeats_is_not_trusted():
    assert upper_spread(0.02, 2) > upper_spread(0.02, 8) > upper_spread(0.02, 100) > 0.02
    assert upper_spread(0.02, 10_000) == pytest.approx(0.02, rel=0.02)
    drawn = np.random.default_rng(8).normal(0, 1, (5000, 5)).std(axis=1, ddof=1)
    assert np.mean([upper_spread(first, 4) > 1 for first in drawn]) == pytest.approx(0.8, abs=0.02)


def test_a_run_is_planned_by_its_spread_and_the_comparisons_made_at_once():
    planned = needed_repeats(0.1, upper_spread(0.03, 2), paired=True)
    assert repeats_to_find(0.1, 0.03, (3, 3), paired=True) == planned
    assert repeats_to_find(0.1, 0.03, (3, 3), 0.05 / 13) > repeats_to_find(0.1, 0.03, (3, 3), 0.05)


p_values = st.lists(st.none() | st.floats(0, 1), max_size=30)


@given(p_values)
def test_holm_keeps_the_order_and_is_between_no_correction_and_bonferroni(given_p):
    adjusted = holm(given_p)
    known = [(p, q) for p, q in zip(given_p, adjusted, strict=True) if p is not None]
    assert [p is None for p in given_p] == [q is None for q in adjusted]
    assert all(p <= q <= min(1, p * len(known)) for p, q in known)
    assert [q for _, q in sorted(known)] == sorted(q for _, q in known)
    if known:
        assert min(q for _, q in known) == min(1, min(known)[0] * len(known))


def test_holm_as_worked_out_by_hand():
    """Holm 1979, section 4: p / weight from small to large, times the weights that are left."""
    for weights in (None, [7.0] * 5):  # equal weights are none
        assert holm([0.01, 0.04, None, 0.03, 0.005], weights) == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert holm([0.01, 0.04, None, 0.004], [0.4, 0.4, 9.0, 0.2]) == pytest.approx([0.02, 0.04, None, 0.02])


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 10)), min_size=1, max_size=12), st.floats(0.001, 0.2)
)
def test_weighted_holm_rejects_as_the_procedure_does_step_by_step(pairs, level):
    """The smallest p / weight is rejected while it is at most the level over the weights that are left."""
    adjusted = holm([p for p, _ in pairs], [weight for _, weight in pairs])
    left, rejected = sorted(range(len(pairs)), key=lambda i: (pairs[i][0] / pairs[i][1], i)), set()
    while left:
        (p, weight), total = pairs[left[0]], sum(pairs[i][1] for i in left)
        if total * p / weight > level * (1 - 1e-9):
            break
        rejected.add(left.pop(0))
    assert rejected <= {i for i, p in enumerate(adjusted) if p <= level}
    assert all(p > level * (1 - 1e-6) for i, p in enumerate(adjusted) if i not in rejected)


@pytest.mark.parametrize("weights", [None, [0.4, 0.4, *[0.2 / 11] * 11]])
def test_without_a_difference_holm_finds_one_in_one_of_twenty_families_at_most(weights):
    families = np.random.default_rng(10).random((3000, 13))
    wrong = np.mean([min(holm(list(family), weights)) <= 0.05 for family in families])
    assert wrong == pytest.approx(0.05, abs=0.012)
