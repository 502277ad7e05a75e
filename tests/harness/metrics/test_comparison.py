import numpy as np
import pytest

from harness.metrics.contrast import Contrast, judged, repeats_to_find
from harness.metrics.estimates import COMPARED
from harness.metrics.intervals import ASSUMED_OF_LATENCIES, ASSUMED_OF_RATES, LEVEL, Effect, Estimate
from harness.schema.load import ClosedLoop, TraceLoad, load_text

from .conftest import compare


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


def test_the_same_engine_twice_shows_no_difference(tables):
    comparisons = compare(*tables(several("a", (0, 1, 2)) + several("b", (3, 4, 5))))
    assert len(comparisons) == 13
    assert {comparison.verdict for comparison in comparisons} == {"no difference"}
    assert {comparison.comparisons for comparison in comparisons} == {13}


def test_a_slower_engine_is_found_with_its_ratio_in_the_interval(tables):
    rows = several("a", (0, 1, 2, 3), slower=1.3, seed=1) + several("b", (4, 5, 6, 7), seed=1)
    requests, chunks = tables(rows)
    comparisons = compare(requests, chunks)
    for metric in ("ttft_ms", "tpot_ms", "itl_ms"):
        compared = found(comparisons, metric, "p50")
        assert compared.difference and compared.verdict == "worse"
        assert compared.comparisons == 13
        assert compared.ratio == pytest.approx(compared.value_a / compared.value_b, rel=0.02)
        assert compared.ci[0] < 1.3 < compared.ci[1]
    mirrored = several("b", (4, 5, 6, 7)) + several("a", (0, 1, 2, 3), slower=1.3)
    assert found(compare(*tables(mirrored)), "ttft_ms", "p50").verdict == "better"


@pytest.mark.parametrize(("slower", "verdict"), [(3.0, "no difference"), (6.0, "worse")])
def test_of_one_repeat_only_what_is_plain_is_claimed(tables, slower, verdict):
    comparisons = compare(*tables(engine("a", 0, slower=slower) + engine("b", 1)))
    assert found(comparisons, "tpot_ms", "p50").verdict == verdict
    assert all(comparison.spread is None for comparison in comparisons)


def test_a_run_with_repeats_says_how_many_find_a_difference(tables):
    rows = several("a", (0, 1, 2)) + several("b", (3, 4, 5), slower=1.02)
    rows += engine("b", 6, repeat=3, slower=1.1)
    compared = found(compare(*tables(rows)), "tpot_ms", "p50")
    needed = compared.repeats_to_find
    assert needed == {
        name: repeats_to_find(effect, compared.spread, compared.repeats, LEVEL * 0.8 / 2)
        for name, effect in {"5 %": 0.05, "10 %": 0.1}.items()
    }
    assert 4 < needed["10 %"] < needed["5 %"]
    once = found(compare(*tables(engine("a", 0) + engine("b", 1))), "tpot_ms", "p50")
    assert once.repeats_to_find == {"5 %": None, "10 %": None}


def test_repeats_that_differ_hide_what_their_requests_would_show(tables):
    """Tokens 20 % apart, the same from one repeat to the next of each engine, or of neither."""
    apart = several("a", (0, 1), slower=1.2) + several("b", (2, 3))
    mixed = engine("a", 0, slower=1.2) + engine("a", 1, repeat=1)
    mixed += engine("b", 2) + engine("b", 3, repeat=1, slower=1.01)
    assert found(compare(*tables(apart)), "tpot_ms", "p50").ci[0] > 1
    assert not found(compare(*tables(mixed)), "tpot_ms", "p50").difference


def test_equal_samples_of_one_repeat_are_still_uncertain(tables):
    rows = engine("a", 0)
    same = [{**row, "cell": 1, "label": "b", "engine": "b"} for row in rows]
    compared = found(compare(*tables(rows + same)), "ttft_ms", "p50")
    assert compared.ratio == 1
    assert compared.ci[0] < 0.999 and compared.ci[1] > 1.001
    assert compared.difference is False


def test_p99_of_few_requests_has_a_ratio_and_no_verdict(tables):
    compared = found(compare(*tables(engine("a", 0, n=99) + engine("b", 1, n=99))), "ttft_ms", "p99")
    assert compared.ratio > 0
    assert compared.ci is None and compared.difference is None and compared.verdict == "not enough data"


def test_intervals_of_one_repeat_have_the_spread_that_is_assumed_of_each_kind(tables):
    """Of a latency, and beside it how well its requests tell it."""
    comparisons = compare(*tables(engine("a", 0, n=500) + engine("b", 1, n=500)))
    rate = found(comparisons, "output_tok_per_s", "output_tok_per_s")
    assert rate.ci == pytest.approx(
        [rate.ratio * np.exp(sign * 1.96 * ASSUMED_OF_RATES * 2**0.5) for sign in (-1, 1)], rel=1e-3
    )
    for name in ("p50", "p90", "p99"):
        low, high = found(comparisons, "tpot_ms", name).ci
        half = np.log(high / low) / 2
        assert half == pytest.approx(1.96 * ASSUMED_OF_LATENCIES[name] * 2**0.5, rel=0.05), name


def test_the_verdicts_own_metrics_are_primary(tables):
    comparisons = compare(*tables(several("a", (0, 1)) + several("b", (2, 3))))
    assert {(c.metric, c.statistic) for c in comparisons if c.primary} == {
        ("ttft_ms", "p50"), ("tpot_ms", "p50"),
    }  # fmt: skip
    loop = load_text(ClosedLoop(concurrency=4))
    rows = [{**row, "load": loop} for row in several("a", (0, 1)) + several("b", (2, 3))]
    primary = {c.metric for c in compare(*tables(rows)) if c.primary}
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


def test_an_interval_that_holds_one_is_no_difference(tables):
    """Repeat by repeat p99 of `a` is the higher one, of all repeats together that of `b`."""
    rows = []
    for cell in range(10):
        label, slow = ("a", (1.0,)) if cell < 5 else ("b", (0.85, 0.05))
        row = {"cell": cell, "label": label, "repeat": cell % 5}
        for request in range(100):
            ttft = slow[request] if request < len(slow) else 0.01
            first = ttft * (1 + 1e-3 * cell)
            rows.append(row | {"request": request, "chunks": [(first, 1), (first + 0.01, 1)]})
    compared = found(compare(*tables(rows)), "ttft_ms", "p99")
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


def test_pairs_scale_by_scale(tables):
    rows = engine("a", 0, n=20) + engine("b", 1, n=20) + engine("c", 2, n=20)
    rows += engine("a", 3, scale=0.5, n=20) + engine("b", 4, scale=0.5, n=20)
    comparisons = compare(*tables(rows))
    every = {(c.load.value, c.a, c.b) for c in comparisons}
    assert every == {(0.5, "a", "b"), (1.0, "a", "b"), (1.0, "a", "c"), (1.0, "b", "c")}
    judged = [c for c in comparisons if c.adjusted_p is not None]
    assert {c.comparisons for c in judged} == {len(judged)}  # all pairs and loads are corrected together
    assert len(judged) > 13


def test_the_more_is_compared_the_more_a_difference_takes(tables):
    two = several("a", (0, 1, 2)) + several("b", (3, 4, 5), slower=1.05)
    four = two + several("c", (6, 7, 8)) + several("d", (9, 10, 11))
    alone, together = (
        found([c for c in compare(*tables(rows)) if (c.a, c.b) == ("a", "b")], "tpot_ms", "p50")
        for rows in (two, four)
    )
    assert alone.ratio == together.ratio
    assert (alone.comparisons, together.comparisons) == (13, 6 * 13)
    assert alone.adjusted_p < together.adjusted_p


def test_an_engine_without_successes_is_not_compared(tables):
    failed = [{**row, "error": "timeout"} for row in engine("b", 1, n=20)]
    assert not compare(*tables(engine("a", 0, n=20) + failed))
