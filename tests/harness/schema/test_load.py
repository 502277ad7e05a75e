"""The order of loads, and the words for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schema.load import LoadLevel, from_light_to_heavy, head_of, heaviest

SCALES = st.builds(LoadLevel, st.floats(1e-3, 1e3))
IN_FLIGHT = st.builds(LoadLevel, concurrency=st.integers(1, 4096))


@given(st.lists(SCALES, min_size=1) | st.lists(IN_FLIGHT, min_size=1))
def test_loads_ascend_by_their_number_and_the_heaviest_ends_them(levels: list[LoadLevel]) -> None:
    ascending, heavier = sorted(set(levels)), from_light_to_heavy(levels)
    assert [one.value for one in ascending] == sorted({one.value for one in levels})
    assert heavier == (ascending if levels[0].concurrency else ascending[::-1])
    assert heaviest(levels) == heavier[-1]


@given(SCALES, IN_FLIGHT)
def test_a_scale_and_requests_in_flight_are_never_the_same(scale: LoadLevel, held: LoadLevel) -> None:
    assert scale != held and sorted([held, scale]) == [scale, held]


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (LoadLevel(0.4), ["scale 0.4", "at scale 0.4", "0.4", "scale", "scale_0.4"]),
        (
            LoadLevel(concurrency=1),
            ["1 in flight", "with 1 request in flight", "1", "in flight", "in_flight_1"],
        ),
        (
            LoadLevel(concurrency=10**6),
            [
                "1000000 in flight",
                "with 1000000 requests in flight",
                "1000000",
                "in flight",
                "in_flight_1000000",
            ],
        ),
    ],
)
def test_words(level: LoadLevel, words: list[Any]) -> None:
    assert [str(level), level.where, level.number, level.head, level.file_name] == words
    assert head_of([level]) == level.head and head_of([]) == "scale"
