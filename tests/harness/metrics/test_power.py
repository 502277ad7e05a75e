"""The number of repeats that is advised: monotone, and enough to find the effect."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.metrics.contrast import MAX_REPEATS, holm, needed_repeats, repeats_to_find, upper_spread

effects = st.floats(0.005, 2)
spreads = st.floats(0, 0.5)
levels = st.floats(1e-4, 0.2)


def count(*given):
    found = needed_repeats(*given)
    return MAX_REPEATS + 1 if found is None else found


@settings(max_examples=150)
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
