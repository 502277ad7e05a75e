"""What cells that met limits or did not say of an engine's capacity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.metrics.capacity import Bounds, Knowledge, Trial

BOUNDS = Bounds(1.0, 1000.0)
#: Around a capacity of 100: fewer capacities are possible, and a cell is taken in sooner.
NEAR = Bounds(40.0, 250.0)


def search(known: Knowledge, capacity: float, cells: int = 16) -> Knowledge:
    """Cells that always meet the limits below the capacity, and never above it."""
    for i in range(cells):
        if i % 4 == 0:
            known.start()
        if known.exhausted or known.known_within(0.1):
            break
        load = known.next_load()
        known.add(Trial(load, load < capacity))
    return known


@settings(max_examples=8, deadline=None)
@given(capacity=st.floats(1.5, 700.0), first=st.floats(1.0, 1000.0))
def test_the_interval_holds_a_sharp_capacity(capacity: float, first: float) -> None:
    ends = search(Knowledge(BOUNDS, first), capacity).capacity()
    low, high = ends.low or 0.0, ends.high or np.inf
    assert low <= capacity * 1.01 and high >= capacity / 1.01
    assert low <= ends.value <= high


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 1000.0), st.booleans()), min_size=1, max_size=12))
def test_loads_stay_within_the_bounds_whatever_cells_say(cells: list[tuple[float, bool]]) -> None:
    known = Knowledge(BOUNDS, 10.0)
    for load, met in cells:
        known.add(Trial(load, met))
        assert BOUNDS.lowest <= known.next_load() <= BOUNDS.highest


def test_one_disturbed_cell_does_not_decide() -> None:
    known = search(Knowledge(BOUNDS, 10.0), 100.0, cells=8)
    known.add(Trial(20.0, False))
    for _ in range(4):
        load = known.next_load()
        known.add(Trial(load, load < 100.0))
    assert known.capacity().value == pytest.approx(100, rel=0.25)


@pytest.mark.parametrize(("bounds", "met"), [(Bounds(0.1, 0.9), True), (Bounds(49.0, 90.0), False)])
def test_a_load_that_is_stored_as_its_inverse_is_still_at_its_bound(bounds: Bounds, met: bool) -> None:
    known = Knowledge(bounds, bounds.lowest)
    at = bounds.highest if met else bounds.lowest
    assert 1 / (1 / at) != at
    for _ in range(2):
        known.add(Trial(1 / (1 / at), met))
    assert known.exhausted


def test_a_capacity_beyond_the_bounds_leaves_an_end_open() -> None:
    beyond = search(Knowledge(BOUNDS, 100.0), 5000.0)
    assert beyond.exhausted
    assert beyond.capacity().low == pytest.approx(1000, rel=0.1) and beyond.capacity().high is None
    below = search(Knowledge(BOUNDS, 100.0), 0.5)
    assert below.exhausted
    assert below.capacity().low is None and below.capacity().high == pytest.approx(1, rel=0.1)


def test_whole_numbers_stay_whole() -> None:
    known = search(Knowledge(Bounds(1, 64, whole=True), 3), 9.5, cells=24)
    assert all(trial.load == int(trial.load) for trial in known.trials)
    ends = known.capacity()
    assert ends.low in (8, 9) and ends.value == 9 and ends.high in (9, 10)


def test_ratios_are_the_same_from_both_sides() -> None:
    a, b = search(Knowledge(BOUNDS, 10.0), 200.0), search(Knowledge(BOUNDS, 10.0), 100.0)
    forward, backward = a.times(b), b.times(a)
    assert forward.value == pytest.approx(1 / backward.value, rel=0.03)
    assert forward.low is not None and forward.high is not None and backward.high is not None
    assert forward.low < 2 < forward.high
    assert forward.low == pytest.approx(1 / backward.high, rel=0.03)


def test_a_ratio_to_a_capacity_beyond_the_bounds_is_open() -> None:
    a, b = search(Knowledge(BOUNDS, 100.0), 5000.0), search(Knowledge(BOUNDS, 10.0), 100.0)
    ratio = a.times(b)
    assert ratio.high is None
    assert ratio.low is not None and 7 < ratio.low < 10.5


def test_equal_engines_differ_rarely() -> None:
    """Cells whose answers are chance near the capacity: the ratio's interval holds 1."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(6):
        pair = []
        for _ in range(2):
            known = Knowledge(NEAR, 50.0)
            for i in range(12):
                if i % 4 == 0:
                    known.start()
                load = known.next_load()
                known.add(Trial(load, bool(np.log(100 / load) + 0.05 * rng.standard_normal() > 0)))
            pair.append(known)
        ratio = pair[0].times(pair[1])
        held += (ratio.low or 0) <= 1 <= (ratio.high or np.inf)
    assert held >= 5
