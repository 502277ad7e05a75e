"""Invariants of dealing reported tokens over chunks of text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.records.tokens import distribute


@given(total=st.integers(0, 300), text=st.lists(st.integers(0, 40), max_size=60))
def test_spread_adds_up_and_begins_at_the_first_text(total: int, text: list[int]) -> None:
    counts = distribute(total, text)
    holders = [i for i, length in enumerate(text) if length > 0]
    assert len(counts) == len(text)
    assert all(count == 0 for count, length in zip(counts, text, strict=True) if length == 0)
    assert all(count >= 0 for count in counts)
    if holders:
        assert sum(counts) == total
        assert counts[holders[0]] >= min(1, total)
    if total >= len(holders):
        assert all(counts[i] >= 1 for i in holders)
    if total == len(holders):
        assert all(counts[i] == 1 for i in holders)


def test_longer_text_has_more_tokens() -> None:
    assert distribute(12, [4, 8, 0, 20]) == [3, 3, 0, 6]


def test_fewer_tokens_than_chunks_are_spread_evenly() -> None:
    assert distribute(2, [1, 9, 1, 9]) == [1, 0, 1, 0]
