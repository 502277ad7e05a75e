import numpy as np
import pytest

from harness.metrics.comparison import compare


def engine(label, cell, *, slower=1.0, repeat=0, scale=1.0, n=150, seed=0):
    rng = np.random.default_rng([seed, cell])
    rows = []
    for i in range(n):
        t = i * 0.1 + 0.05 * slower * rng.lognormal(0, 0.2)
        chunks = [(t, 1)] + [(t := t + 0.01 * slower * rng.lognormal(0, 0.2), 1) for _ in range(4)]
        rows.append({"cell": cell, "engine": label, "label": label, "scale": scale, "repeat": repeat})
        rows[-1] |= {"request": i, "t_sched": i * 0.1, "t_sent": i * 0.1, "chunks": chunks}
    return rows


def found(comparisons, metric, statistic):
    (one,) = [c for c in comparisons if (c.metric, c.statistic) == (metric, statistic)]
    return one


def test_the_same_engine_twice_shows_no_difference(tables):
    comparisons = compare(*tables(engine("a", 0) + engine("b", 1)))
    latencies = [one for one in comparisons if one.metric != "output_tok_per_s"]
    assert len(latencies) == 12
    assert sum(bool(one.difference) for one in latencies) <= 1


def test_a_slower_engine_is_found_with_its_ratio_in_the_interval(tables):
    comparisons = compare(*tables(engine("a", 0, slower=1.3) + engine("b", 1)))
    for metric in ("ttft_ms", "tpot_ms", "itl_ms"):
        one = found(comparisons, metric, "p50")
        assert one.difference
        assert one.ratio == pytest.approx(one.value_a / one.value_b)
        assert one.ci[0] < 1.3 < one.ci[1]


def test_engines_are_resampled_independently(tables):
    """Equal samples: a common stream of random numbers would make every ratio exactly 1."""
    rows = engine("a", 0)
    same = [{**row, "cell": 1, "label": "b", "engine": "b"} for row in rows]
    one = found(compare(*tables(rows + same)), "ttft_ms", "p50")
    assert one.ratio == 1
    assert one.ci[0] < 0.999 and one.ci[1] > 1.001
    assert one.difference is False


def test_p99_of_few_requests_has_a_ratio_and_no_verdict(tables):
    one = found(compare(*tables(engine("a", 0, n=99) + engine("b", 1, n=99))), "ttft_ms", "p99")
    assert one.ratio > 0
    assert one.ci is None and one.difference is None


@pytest.mark.parametrize("repeats", [2, 3])
def test_a_rate_is_judged_from_three_repeats_on(tables, repeats):
    rows = []
    for repeat in range(repeats):
        rows += engine("a", 2 * repeat, repeat=repeat, n=40)
        rows += engine("b", 2 * repeat + 1, repeat=repeat, n=40)
    one = found(compare(*tables(rows)), "output_tok_per_s", "output_tok_per_s")
    assert (one.ci is not None) == (repeats == 3)


def test_pairs_scale_by_scale_and_against_a_baseline(tables):
    rows = engine("a", 0, n=20) + engine("b", 1, n=20) + engine("c", 2, n=20)
    rows += engine("a", 3, scale=0.5, n=20) + engine("b", 4, scale=0.5, n=20)
    every = {(c.scale, c.a, c.b) for c in compare(*tables(rows))}
    assert every == {(0.5, "a", "b"), (1.0, "a", "b"), (1.0, "a", "c"), (1.0, "b", "c")}
    against = {(c.scale, c.a, c.b) for c in compare(*tables(rows), baseline="b")}
    assert against == {(0.5, "a", "b"), (1.0, "a", "b"), (1.0, "c", "b")}


def test_an_engine_without_successes_is_not_compared(tables):
    failed = [{**row, "error": "timeout"} for row in engine("b", 1, n=20)]
    assert not compare(*tables(engine("a", 0, n=20) + failed))


def test_the_seed_decides(tables):
    rows = tables(engine("a", 0, n=30) + engine("b", 1, n=30))
    assert compare(*rows) == compare(*rows) != compare(*rows, seed=1)
