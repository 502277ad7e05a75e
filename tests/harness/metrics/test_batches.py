"""Offline batches compared: repeat by repeat, all pairs together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.batches import batch_estimates, compare_batches
from harness.metrics.contrast import contrast
from harness.metrics.primary import RATE
from harness.report.text.batches import mean_rates
from harness.schema.load import Batch
from harness.schema.results import OfflineResult


def of(label: str, rates: dict[int, float]) -> list[OfflineResult]:
    return [
        OfflineResult(
            engine=label, label=label, repeat=repeat, num_prompts=1, prompt_tokens=1, completion_tokens=1,
            total_s=1.0, req_per_s=1.0, output_tok_per_s=rate, total_tok_per_s=rate,
        )
        for repeat, rate in rates.items()
    ]  # fmt: skip


def test_interval_and_p_are_those_of_scipys_paired_t_of_logarithms() -> None:
    """Published rates: the work of the repeats differs by more than the engines do."""
    a, b = (18844.0, 19121.0, 19938.0), (18036.0, 18040.0, 18925.0)
    [found] = compare_batches([*of("a", dict(enumerate(a))), *of("b", dict(enumerate(b)))])
    paired = stats.ttest_rel(np.log(a), np.log(b))
    assert found.adjusted_p == pytest.approx(paired.pvalue)
    assert found.ci == pytest.approx(tuple(np.exp(paired.confidence_interval(0.95))))
    assert found.ratio == pytest.approx(sum(a) / sum(b)) and found.verdict == "better"
    unpaired = stats.ttest_ind(np.log(a), np.log(b), equal_var=False)
    assert unpaired.pvalue > 0.05 > found.adjusted_p


@given(st.lists(st.floats(10, 1e5), min_size=3, max_size=3), st.floats(0.1, 10))
def test_work_that_differs_from_repeat_to_repeat_decides_nothing(work: list[float], scale: float) -> None:
    """A repeat that is heavier for both engines leaves ratio, interval and verdict as they are."""
    ratios = (1.05, 1.06, 1.04)
    plain = compare_batches([*of("a", dict(enumerate(ratios))), *of("b", dict.fromkeys(range(3), 1.0))])[0]
    of_a = {repeat: scale * w * r for repeat, (w, r) in enumerate(zip(work, ratios, strict=True))}
    [found] = compare_batches(
        [*of("a", of_a), *of("b", {repeat: scale * w for repeat, w in enumerate(work)})]
    )
    assert found.ci == pytest.approx(plain.ci) and found.adjusted_p == pytest.approx(plain.adjusted_p)


def test_only_common_repeats_are_compared() -> None:
    results = [*of("a", {0: 100.0, 1: 110.0, 2: 999.0}), *of("b", {0: 50.0, 1: 55.0}), *of("c", {3: 1.0})]
    [found] = compare_batches(results)
    assert (found.a, found.b, found.repeats) == ("a", "b", 2) and found.ratio == pytest.approx(2.0)


def test_the_verdicts_hold_for_all_pairs_together() -> None:
    """A difference of one pair alone, with p = 0.03, is none beside two pairs that are as close."""
    a, b, c = (dict(enumerate(rates)) for rates in (
        (104.0, 102.6, 105.2, 100.9), (100.0, 100.0, 100.0, 100.0), (99.1, 101.2, 100.9, 98.9)))  # fmt: skip
    [alone] = compare_batches([*of("a", a), *of("b", b)])
    first, *others = compare_batches([*of("a", a), *of("b", b), *of("c", c)])
    assert alone.adjusted_p is not None and 0.02 < alone.adjusted_p < 0.05 and alone.verdict == "better"
    assert first.ratio == alone.ratio and first.ci == alone.ci and first.verdict == "no difference"
    assert [found.comparisons for found in (alone, first, *others)] == [1, 3, 3, 3]


def test_one_repeat_claims_only_what_is_plain() -> None:
    [near] = compare_batches([*of("a", {0: 150.0}), *of("b", {0: 100.0})])
    [far] = compare_batches([*of("a", {0: 100.0}), *of("b", {0: 400.0})])
    assert (near.verdict, far.verdict) == ("no difference", "worse")


def test_an_interval_that_holds_one_is_no_difference() -> None:
    """`a` is faster in five of six repeats and slower in their mean, to which one repeat gives most."""
    a = dict(enumerate([9990.0, 10.5, 10.6, 10.5, 10.6, 10.5]))
    [found] = compare_batches([*of("a", a), *of("b", {0: 10_000.0} | dict.fromkeys(range(1, 6), 10.0))])
    assert found.adjusted_p is not None and found.adjusted_p < 0.05
    assert found.ci is not None and found.ratio < 1 < found.ci[1]
    assert found.verdict == "no difference"


def test_two_estimates_of_the_same_work_are_compared_repeat_by_repeat() -> None:
    """In whatever order the repeats are, and only those that both have."""
    key = RATE, RATE
    a = batch_estimates(of("a", {0: 100.0, 1: 130.0, 2: 80.0, 3: 99.0}), "seed 0")
    b = batch_estimates(of("b", {2: 78.0, 0: 97.0, 1: 124.0}), "seed 0")
    [found] = contrast(Batch(prompts=1), b, a, [key])
    paired = stats.ttest_rel(np.log([97.0, 124.0, 78.0]), np.log([100.0, 130.0, 80.0]))
    assert found.paired and found.repeats == (3, 3) and found.primary
    assert found.ratio.p == pytest.approx(paired.pvalue)
    assert found.ratio.ci == pytest.approx(tuple(np.exp(paired.confidence_interval(0.95))))
    assert found.b.value == pytest.approx((100 + 130 + 80) / 3)
    plain = stats.ttest_rel([97.0, 124.0, 78.0], [100.0, 130.0, 80.0])
    assert found.delta.ci == pytest.approx(tuple(plain.confidence_interval(0.95)))
    assert found.spread == pytest.approx(np.std(np.log([97 / 100, 124 / 130, 78 / 80]), ddof=1))


def test_estimates_of_other_work_are_compared_as_samples() -> None:
    a, b = {0: 100.0, 1: 130.0, 2: 80.0}, {0: 97.0, 1: 124.0, 2: 78.0}
    before, after = batch_estimates(of("a", a), "seed 0"), batch_estimates(of("b", b), "seed 1")
    [found] = contrast(Batch(prompts=1), after, before, [(RATE, RATE)])
    welch = stats.ttest_ind(np.log([*b.values()]), np.log([*a.values()]), equal_var=False)
    assert not found.paired and found.ratio.p == pytest.approx(welch.pvalue)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 10**6)), min_size=1, max_size=6))
def test_a_rate_of_several_repeats_is_the_mean_of_theirs(batches: list[tuple[float, int]]) -> None:
    """Also where repeats differ in length: all tokens over all seconds would weigh the slowest most."""
    results = [
        row.model_copy(update={"total_s": seconds, "completion_tokens": tokens})
        for repeat, (seconds, tokens) in enumerate(batches)
        for row in of("a", {repeat: tokens / seconds})
    ]
    mean = pytest.approx(sum(tokens / seconds for seconds, tokens in batches) / len(batches))
    assert batch_estimates(results)[RATE, RATE].value == mean
    assert mean_rates(results) == {"a": mean}
