"""When the next step is launched, by the durations of those before it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.batch import NO_INTS, Batch
from roseinfer.engine.pace import FEWEST, LEAST, LONGEST, MOST, RECENT, Pace

durations = st.floats(1e-5, 1.0)
rows = st.integers(0, 2000)


def batch(prompt_rows: int, decodes: int) -> Batch:
    tokens = np.zeros(prompt_rows + decodes, dtype=np.int64)
    lengths = np.ones(decodes, dtype=np.int64)
    return Batch(tokens, tokens, tokens, (), lengths, NO_INTS, NO_INTS, np.zeros((1, 1), dtype=np.int64), 16)


def pace_of(launches: list[float]) -> Pace:
    pace = Pace()
    for seconds in launches:
        pace.launched(seconds, late=False)
    return pace


@given(rows, st.integers(0, 300), st.lists(durations, max_size=40), st.lists(durations, max_size=40))
def test_the_wait_leaves_time_for_the_launch(
    prompts: int, decodes: int, steps: list[float], launches: list[float]
) -> None:
    pace = pace_of(launches)
    for seconds in steps:
        pace.ended(batch(prompts, decodes), seconds)
    wait = pace.wait_s(batch(prompts, decodes))
    assert 0 <= wait <= LONGEST
    if len(steps) < FEWEST or len(launches) < FEWEST:
        assert wait == 0
    else:
        left = min(steps[-RECENT:]) - 2 * max(launches[-RECENT:]) - LEAST
        assert wait == pytest.approx(min(max(left, 0), LONGEST))


@given(st.lists(st.tuples(rows, st.integers(0, 300), durations), min_size=3, max_size=30), rows, rows)
def test_more_rows_never_wait_for_less(
    steps: list[tuple[int, int, float]], more_prompts: int, more_decodes: int
) -> None:
    pace = pace_of([1e-4] * FEWEST)
    for prompts, decodes, seconds in steps:
        pace.ended(batch(prompts, decodes), seconds)
    prompts, decodes, _ = steps[0]
    fewer, more = batch(prompts, decodes), batch(prompts + more_prompts, decodes + more_decodes)
    assert pace.wait_s(fewer) <= pace.wait_s(more)


def test_a_device_that_waited_has_its_next_launches_sooner() -> None:
    pace = pace_of([1e-4] * FEWEST)
    for _ in range(FEWEST):
        pace.ended(batch(0, 8), 0.05)
    before = pace.wait_s(batch(0, 8))
    pace.launched(1e-4, late=True)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(before - LEAST)
    for _ in range(20):
        pace.launched(1e-4, late=True)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(0.05 - 2e-4 - MOST)
    for _ in range(1000):
        pace.launched(1e-4, late=False)
    assert pace.wait_s(batch(0, 8)) == pytest.approx(before)


def test_a_kind_that_is_not_seen_any_more_holds_up_no_other() -> None:
    """Requests with long contexts came in few rows; then short ones come in more."""
    pace = pace_of([1e-4] * FEWEST)
    for _ in range(RECENT):
        pace.ended(batch(0, 8), 0.06)
    assert pace.wait_s(batch(0, 12)) > 0.05
    pace.ended(batch(0, 12), 0.005)
    assert pace.wait_s(batch(0, 12)) < 0.005
    pace.ended(batch(0, 8), 0.06)
    assert pace.wait_s(batch(0, 8)) > 0.05
