"""Raw tables that no run writes are refused with a sentence, wherever they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.records.columns import CHUNKS, REQUESTS
from harness.records.parquet import read_records
from harness.records.table_check import fault_of, without_hidden

from .conftest import make_cell

TIMES = [field.name for field in REQUESTS if pa.types.is_floating(field.type) and field.name.startswith("t_")]


def tables() -> tuple[pa.Table, pa.Table]:
    """Return two requests that succeeded and one that was refused, as they are written."""
    cell = make_cell(0)
    return (
        pa.Table.from_pandas(cell.requests, REQUESTS, preserve_index=False),
        pa.Table.from_pandas(cell.chunks, CHUNKS, preserve_index=False),
    )


def changed(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    """The table with another value in one place."""
    values = table[name].to_pylist()
    values[row] = value
    position = table.schema.get_field_index(name)
    return table.set_column(
        position, table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )


def test_what_a_run_writes_is_without_fault() -> None:
    assert [fault_of(table) for table in tables()] == [None, None]


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("t_first", math.nan, "t_first is nan, which is not from -1 to 1e+08, in row 0"),
        ("t_sent", math.inf, "t_sent is inf"),
        ("t_end", -math.inf, "t_end is -inf"),
        ("t_sched", -5.0, "t_sched is -5.0"),
        ("t_last", 1e300, "t_last is 1e+300"),
        ("t_last", 0.0001, "t_end is before"),
        ("t_first", None, "t_first of a request without an error is missing in row 0"),
        ("label", None, "label is missing in row 0"),
        ("input_tokens", -1, "input_tokens is -1, which is not from 0, in row 0"),
        ("completion_tokens", -2147483648, "completion_tokens is -2147483648"),
        ("queue_wait_ms", math.nan, "queue_wait_ms is nan"),
        ("late_s", -1.0, "late_s is -1.0"),
        ("load", '{"kind":"guess"}', "which is not a load"),
        ("request", 1, "a request of a cell is there twice"),
    ],
)
def test_faults_of_requests(name: str, value: object, fault: str) -> None:
    found = fault_of(changed(tables()[0], name, 0, value))
    if name == "t_last" and value == 0.0001:
        assert found is None  # within the slack of two clocks
    else:
        assert found is not None and fault in found


@given(st.sampled_from(TIMES), st.floats() | st.just(None), st.integers(0, 2))
def test_whatever_time_a_table_holds_it_is_finite_or_refused(name, value, row):
    table = changed(tables()[0], name, row, value)
    if fault_of(table) is None:
        assert value is None or -1 <= value <= 1e8


@pytest.mark.parametrize(("name", "value"), [("t", math.nan), ("t", -9.0), ("tokens", 0), ("request", None)])
def test_faults_of_chunks(name: str, value: object) -> None:
    assert fault_of(changed(tables()[1], name, 0, value)) is not None


def test_text_in_a_table_hides_nothing() -> None:
    table = changed(tables()[0], "error_detail", 2, "\x1b[2J\u202e")
    assert without_hidden(table)["error_detail"].to_pylist() == [None, None, "\\u001b[2J\\u202e"]
    assert without_hidden(tables()[0]).equals(tables()[0])


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def damage_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for i in range(60, min(len(data) - 200, 3000)):
        data[i] ^= 0x5A
    path.write_bytes(data)


def rewrite(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def retyped(kind: pa.DataType, value: object) -> Callable[[Path], None]:
    return rewrite(
        lambda t: t.set_column(
            t.schema.get_field_index("t_first"), "t_first", pa.array([value] * len(t), kind)
        )
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PAR1 no parquet PAR1"),
        damage_end,
        damage_middle,
        rewrite(lambda table: table.drop_columns(["t_first"])),
        retyped(pa.string(), "soon"),
        retyped(pa.list_(pa.int64()), [1]),
        retyped(pa.binary(), b"\xff"),
        rewrite(lambda table: changed(table, "t_end", 0, math.nan)),
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    requests, chunks = tables()
    pq.write_table(requests, tmp_path / "requests.parquet")
    pq.write_table(chunks, tmp_path / "chunks.parquet")
    damage(tmp_path / "requests.parquet")
    with pytest.raises(UsageError) as error:
        read_records(tmp_path)
    assert str(tmp_path / "requests.parquet") in error.value.message and "\n" not in error.value.message


def make_large(requests: pa.Table, what: str) -> pa.Table:
    """Return a table that is small in a file: many equal rows, or one long text in some of them."""
    if what == "rows":
        return requests.take(pa.array([0] * 500_000))
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 500), pa.array(["x" * 1_000_000]))
    rows = requests.take(pa.array([0] * 500))
    if what == "a text":
        return rows.set_column(rows.schema.get_field_index("label"), "label", text)
    return rows.append_column("unread", text)


@pytest.mark.parametrize("what", ["rows", "a text", "a column that nothing reads"])
def test_a_small_file_is_no_large_table(tmp_path: Path, what: str) -> None:
    requests, chunks = tables()
    for name, table in (("requests", make_large(requests, what)), ("chunks", chunks)):
        pq.write_table(table, tmp_path / f"{name}.parquet", compression="zstd")
    assert (tmp_path / "requests.parquet").stat().st_size < 120_000
    fault = "is there twice" if what.startswith("a column") else "MiB of values, which no run writes"
    before = pa.total_allocated_bytes()
    with pytest.raises(UsageError, match=fault):
        read_records(tmp_path)
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_a_long_text_is_refused() -> None:
    requests, _ = tables()
    assert fault_of(changed(requests, "error_detail", 2, "x" * 10_001)) is not None
