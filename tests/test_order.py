"""The order in which workers take tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from .conftest import in_parts


@dataclass(frozen=True)
class Item:
    number: int
    slow: bool

    def get_closest_marker(self, name: str) -> bool:
        assert name == "slow"
        return self.slow


@given(slow=st.lists(st.booleans(), max_size=30), parts=st.integers(1, 5))
def test_each_part_begins_with_as_many_slow_ones(slow: list[bool], parts: int) -> None:
    items: list[Any] = [Item(*item) for item in enumerate(slow)]
    order: list[Any] = in_parts(items, parts)
    counts = []
    for kind in (True, False):
        assert [item for item in order if item.slow == kind] == [item for item in items if item.slow == kind]
    for left in range(parts, 0, -1):  # as xdist cuts them
        part, order = order[: len(order) // left], order[len(order) // left :]
        assert part == sorted(part, key=lambda item: not item.slow)
        counts.append(sum(item.slow for item in part))
    assert order == [] and max(counts) - min(counts) <= 1
