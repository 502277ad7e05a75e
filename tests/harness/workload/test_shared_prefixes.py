"""Prompts of groups: as much is shared as is wanted, by whom it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.schema.results import PREFIX_BLOCK_TOKENS as BLOCK_TOKENS
from harness.schema.setting_types import SharedPrefixes, Uniform
from harness.workload.planned_requests import reusable_tokens
from harness.workload.workload import SharedPrefixContent, draw_groups

VOCAB = 50_000
SHARED = st.builds(
    SharedPrefixes,
    groups=st.integers(1, 12),
    share=st.floats(0, 0.95),
    zipf=st.sampled_from([0.0, 1.0, 2.0]),
    depth=st.integers(1, 4),
)
LENGTHS = st.one_of(st.integers(16, 400), st.just(Uniform(least=40, most=400)))


def prompts(shared: SharedPrefixes, lengths: int | Uniform, n: int, seed: int, first: int = 0) -> list[Any]:
    content = SharedPrefixContent(shared, lengths, 4, VOCAB)
    return [request.prompt for request in content.take(n, seed, seed + 1, first)]


@settings(max_examples=60, deadline=None)
@given(SHARED, LENGTHS, st.integers(2, 80), st.integers(0, 2**32))
def test_the_wanted_share_is_reached_or_refused(shared, lengths, n, seed):
    try:
        sent = prompts(shared, lengths, n, seed)
    except UsageError as error:
        assert "can share" in error.message
        assume(False)
    tokens = sum(map(len, sent))
    assert abs(sum(reusable_tokens(sent)) - shared.share * tokens) <= 2 * BLOCK_TOKENS


@given(st.integers(0, 2**32))
def test_groups_are_drawn_by_zipf(seed):
    groups = draw_groups(SharedPrefixes(groups=4, share=0.5, zipf=1.0), 4000, seed)
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    expected = 4000 * weights / weights.sum()
    assert np.all(np.abs(np.bincount(groups, minlength=4) - expected) < 6 * np.sqrt(expected))


def test_depth_shares_beginnings_between_groups():
    flat, deep = (prompts(SharedPrefixes(groups=4, share=0.6, depth=depth), 256, 40, 3) for depth in (1, 3))
    assert len({bytes(prompt[:BLOCK_TOKENS]) for prompt in deep}) < 4 < len(flat)
    assert len({bytes(prompt[:BLOCK_TOKENS]) for prompt in flat[:1]}) == 1


def test_prompts_of_another_attempt_are_new():
    shared = SharedPrefixes(groups=2, share=0.5)
    before, again = prompts(shared, 128, 20, 7), prompts(shared, 128, 20, 7, first=20)
    apart = [*reusable_tokens(before), *reusable_tokens(again)]
    assert reusable_tokens([*before, *again]) == apart


def test_what_cannot_be_reached_says_what_can():
    with pytest.raises(UsageError, match="can share 0"):
        prompts(SharedPrefixes(groups=8, share=0.9), 128, 8, 0)
