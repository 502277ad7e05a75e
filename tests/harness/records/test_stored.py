"""The form of tables in files loses nothing, whatever a client's clock is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.columns import CHUNKS, REQUESTS
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS, from_file, to_file

STAMP_S = 2.0**-22


def chunks(times: list[list[float]], cell: int = 0) -> pa.Table:
    """A table of one cell: by request, the seconds at which its chunks came, to the nanosecond."""
    rows = [(cell, request, round(t, 9), 1) for request, came in enumerate(times) for t in sorted(came)]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], [], []]
    return pa.table(columns, schema=CHUNKS)


moments = st.lists(st.lists(st.integers(0, 2**40), min_size=1, max_size=6), max_size=5)


@given(moments)
def test_nanoseconds_come_back(times: list[list[int]]) -> None:
    table = chunks([[ns * 1e-9 for ns in came] for came in times])
    assert from_file(to_file(table)).select(CHUNKS.names).equals(table)


@given(moments, st.floats(0, STAMP_S))
def test_stamps_of_a_coarse_clock_come_back(times: list[list[int]], offset: float) -> None:
    table = chunks([[offset + stamp * STAMP_S for stamp in came] for came in times])
    stored = to_file(table)
    assert from_file(stored).select(CHUNKS.names).equals(table)
    assert stored.schema.equals(STORED_CHUNKS)


def test_gaps_of_a_coarse_clock_are_its_steps() -> None:
    stored = to_file(chunks([[0.3 + stamp * STAMP_S for stamp in (5, 9, 9, 1000)]]))
    assert stored["gap"].to_pylist()[1:] == [4, 0, 991]


def test_each_cell_has_its_own_step() -> None:
    table = pa.concat_tables([chunks([[1e-9, 3e-9]], 0), chunks([[0.0, STAMP_S]], 1)])
    stored = to_file(table)
    assert len(set(stored["step_ns"].to_pylist())) == 2
    assert from_file(stored).select(CHUNKS.names).equals(table)


@pytest.mark.parametrize("late_s", [None, 0.125])
def test_times_of_requests_are_nanoseconds(late_s: float | None) -> None:
    row = dict.fromkeys(REQUESTS.names) | {
        "cell": 0,
        "t_sched": 0.0,
        "t_first": 1.234567891,
        "late_s": late_s,
    }
    table = pa.Table.from_pylist([row], schema=REQUESTS)
    stored = to_file(table)
    assert stored.schema.equals(STORED_REQUESTS)
    assert stored["t_first"].to_pylist() == [1_234_567_891] and stored["t_last"].to_pylist() == [None]
    assert from_file(stored).equals(table)


def test_a_table_in_seconds_is_as_it_was() -> None:
    table = chunks([[0.1, 0.2]])
    assert from_file(table) is table
    assert np.array_equal(from_file(table)["t"].to_numpy(), [0.1, 0.2])
