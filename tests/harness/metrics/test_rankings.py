"""Rankings: who is best by what, and from whom that is more than chance."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from harness.metrics.rankings import PERCENTILES, Ranking, rankings
from harness.schema.base import Verdict
from harness.schema.load import ClosedLoop, Load, TraceLoad
from harness.schema.metrics import LATENCIES
from harness.schema.results import Comparison, Distribution, OnlineSummary

CLOSED, TRACE = ClosedLoop(concurrency=8), TraceLoad(scale=0.4)


def summary(
    label: str, ms: float, *, load: Load = CLOSED, n: int = 1000, valid: bool = True, tpot_ms: float = 5.0
) -> OnlineSummary:
    """All percentiles of each latency alike; the rate falls as they grow."""
    latencies = {name: distribution(ms, n) for name in LATENCIES}
    latencies["tpot_ms"] = distribution(tpot_ms, n)
    return OnlineSummary(
        engine=label, label=label, load=load, num_requests=n, num_success=n, num_error=0, duration_s=10,
        offered_req_per_s=1, req_per_s=1, output_tok_per_s=1000 / ms, total_tok_per_s=2000 / ms,
        prompt_tokens=n, completion_tokens=n, chunks=n, valid=valid, **latencies,
    )  # fmt: skip


def distribution(ms: float, n: int) -> Distribution:
    return Distribution(mean=ms, p50=ms, p90=ms, p95=ms, p99=ms, max=ms, n=n, ci={"p50": (ms - 1, ms + 1)})


def compared(
    a: OnlineSummary,
    b: OnlineSummary,
    metric: str,
    statistics: Iterable[str] = PERCENTILES,
    verdict: Verdict = "no difference",
    ci: tuple[float, float] | None = (0.9, 1.2),
) -> list[Comparison]:
    return [
        Comparison(
            a=a.label, b=b.label, load=a.load, metric=metric, statistic=name, value_a=1, value_b=1,
            ratio=(a.value(metric, name) or 0) / (b.value(metric, name) or 1), ci=ci, verdict=verdict,
            comparisons=63,
        )
        for name in statistics
    ]  # fmt: skip


def headlines(found: list[Ranking]) -> dict[str, Ranking]:
    return {ranking.metric: ranking for ranking in found if ranking.headline}


def test_the_best_comes_first_and_the_others_have_their_ratio_to_it():
    a, b = summary("a", 20), summary("b", 10)
    found = rankings([a, b], compared(a, b, "ttft_ms", verdict="worse", ci=(1.5, 2.5)))
    [best, other] = headlines(found)["ttft_ms"].rows
    assert (best.label, best.value, best.ratio, best.significant) == ("b", 10, None, None)
    assert (other.label, other.ratio, other.ratio_interval, other.significant) == ("a", 2, (1.5, 2.5), True)
    assert headlines(found)["ttft_ms"].winner == "b" and headlines(found)["ttft_ms"].comparisons == 63


def test_a_ratio_of_the_other_way_round_is_turned():
    a, b = summary("a", 10), summary("b", 20)
    found = rankings([a, b], compared(a, b, "ttft_ms", verdict="better", ci=(0.4, 0.8)))
    other = headlines(found)["ttft_ms"].rows[1]
    assert (other.label, other.ratio, other.ratio_interval) == ("b", 2, (1.25, 2.5))


def test_the_highest_rate_is_the_best():
    a, b = summary("a", 10), summary("b", 20)
    rate = "output_tok_per_s"
    found = rankings([a, b], compared(a, b, rate, [rate], "better", (1.5, 2.5)))
    assert [row.label for row in headlines(found)[rate].rows] == ["a", "b"]
    assert headlines(found)[rate].rows[1].ratio == 0.5


def test_a_rate_is_compared_where_engines_set_the_pace():
    for load, metrics in (
        (CLOSED, {"ttft_ms", "tpot_ms", "output_tok_per_s"}),
        (TRACE, {"ttft_ms", "tpot_ms"}),
    ):
        assert headlines(rankings([summary("a", 10, load=load)], [])).keys() == metrics


def test_no_engine_wins_without_a_significant_difference():
    a, b = summary("a", 20), summary("b", 10)
    ranking = headlines(rankings([a, b], compared(a, b, "ttft_ms", ci=(1.5, 2.5))))["ttft_ms"]
    assert ranking.winner is None and ranking.rows[1].significant is False and ranking.rows[1].apart


def test_invalid_engines_come_last_and_are_not_compared():
    a, b, c = summary("a", 5, valid=False), summary("b", 10), summary("c", 20)
    ranking = headlines(rankings([a, b, c], compared(b, c, "ttft_ms", verdict="better")))["ttft_ms"]
    assert [(row.label, row.valid) for row in ranking.rows] == [("b", True), ("c", True), ("a", False)]
    assert ranking.best is ranking.rows[0] and ranking.rows[2].ratio is None


def test_a_metric_of_too_few_requests_has_no_ranking():
    """By a comparison without an interval, or by the sample."""
    a, b = summary("a", 10), summary("b", 20)
    assert "ttft_ms" not in headlines(rankings([a, b], compared(a, b, "ttft_ms", ci=None)))
    few = [summary(name, 10, n=1) for name in "ab"]
    assert headlines(rankings(few, [])).keys() == {"output_tok_per_s"}


def test_the_headline_is_the_highest_percentile_that_is_decided_in_each_differing_latency():
    a, b = summary("a", 10, tpot_ms=5), summary("b", 20, tpot_ms=9)

    def statistics(ttft: list[str], tpot: list[str]) -> tuple[str, str]:
        pairs = []
        for metric, decided in (("ttft_ms", ttft), ("tpot_ms", tpot)):
            level = [name for name in PERCENTILES if name not in decided]
            pairs += compared(a, b, metric, decided, "better", (0.4, 0.6)) + compared(a, b, metric, level)
        found = headlines(rankings([a, b], pairs))
        return found["ttft_ms"].statistic, found["tpot_ms"].statistic

    assert statistics(["p99", "p90", "p50"], ["p90", "p50"]) == ("p90", "p90")
    assert statistics(["p99"], []) == ("p99", "p99")
    assert statistics(["p99"], ["p50"]) == ("p50", "p50")
    assert statistics([], []) == (PERCENTILES[0], PERCENTILES[0])


def test_loads_go_from_light_to_heavy_and_percentiles_ascend():
    pooled = [summary("a", 10, load=ClosedLoop(concurrency=count)) for count in (8, 1)]
    found = rankings(pooled, [])
    assert list(dict.fromkeys(ranking.load for ranking in found)) == [ClosedLoop(concurrency=1), CLOSED]
    of_ttft = [
        ranking.statistic for ranking in found if (ranking.load, ranking.metric) == (CLOSED, "ttft_ms")
    ]
    assert of_ttft == list(reversed(PERCENTILES))


@given(st.lists(st.tuples(st.floats(1, 1e4), st.booleans()), min_size=1, max_size=5))
def test_each_ranking_has_every_engine_once_valid_ones_in_order(engines):
    pooled = [summary(f"e{i}", ms, valid=valid) for i, (ms, valid) in enumerate(engines)]
    for ranking in rankings(pooled, []):
        assert sorted(row.label for row in ranking.rows) == [each.label for each in pooled]
        values = [row.value for row in ranking.valid]
        assert values == sorted(values, reverse=ranking.metric == "output_tok_per_s")
        assert Ranking.model_validate_json(ranking.model_dump_json()) == ranking
