"""Parts while a run lasts, two tables at its end, and what a kill leaves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.records.cell import CellRecords
from harness.records.columns import REQUESTS
from harness.records.parquet import assemble, read_records, write_cell
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS

from .conftest import make_cell


def check(records: CellRecords, *cells: CellRecords) -> None:
    """Assert that records are those of these cells."""
    for name in ("requests", "chunks"):
        joined = pd.concat([getattr(cell, name) for cell in cells], ignore_index=True)
        pd.testing.assert_frame_equal(getattr(records, name).astype(object), joined.astype(object))


def test_times_are_relative_and_what_did_not_happen_is_null(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, make_cell(0))
    assemble(tmp_path, {0})
    requests = pq.read_table(tmp_path / "requests.parquet")
    assert requests.schema.equals(STORED_REQUESTS)
    assert pq.read_table(tmp_path / "chunks.parquet").schema.equals(STORED_CHUNKS)
    rows = requests.to_pylist()
    times = [rows[0][name] for name in ("t_sched", "t_sent", "t_first", "t_end")]
    assert times == [0, 500_000_000, 1_000_000_000, 2_000_000_000]
    assert rows[0]["error"] is None and rows[0]["variant"] is None
    assert rows[2]["error"] == "connect"
    assert rows[2]["t_sent"] is None and rows[2]["status"] is None and rows[2]["completion_tokens"] is None


def test_parts_and_tables_hold_the_same(tmp_path: Path) -> None:
    cells = [make_cell(number) for number in range(3)]
    for number, records in enumerate(cells):
        write_cell(tmp_path, number, records)
    check(read_records(tmp_path), *cells)
    check(assemble(tmp_path, {0, 1, 2}), *cells)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chunks.parquet", "requests.parquet"]
    check(read_records(tmp_path), *cells)
    for name in ("requests", "chunks"):  # in any order, they are read in that of the cells
        frame = getattr(read_records(tmp_path), name)
        frame.iloc[::-1].to_parquet(tmp_path / f"{name}.parquet", index=False)
    check(read_records(tmp_path), *cells)


def test_a_cell_without_a_journal_entry_is_left_out(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, make_cell(0))
    write_cell(tmp_path, 1, make_cell(1, requests=7))
    check(assemble(tmp_path, {0}), make_cell(0))
    check(read_records(tmp_path), make_cell(0))


def test_cells_are_added_to_an_assembled_run_and_replaced(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, make_cell(0))
    write_cell(tmp_path, 1, make_cell(1, requests=9))
    write_cell(tmp_path, 1, make_cell(1, requests=7))
    check(assemble(tmp_path, {0, 1}), make_cell(0), make_cell(1, requests=7))
    write_cell(tmp_path, 1, make_cell(1))
    write_cell(tmp_path, 2, make_cell(2))
    check(read_records(tmp_path), *map(make_cell, range(3)))
    check(assemble(tmp_path, {0, 1, 2}), *map(make_cell, range(3)))


def test_a_kill_while_assembling_loses_nothing(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, make_cell(0))
    table = pa.Table.from_pandas(make_cell(0).requests, schema=REQUESTS, preserve_index=False)
    pq.write_table(table, tmp_path / "requests.parquet")  # the chunks were not reached
    check(read_records(tmp_path), make_cell(0))


def test_no_records_and_damaged_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no records"):
        read_records(tmp_path)
    write_cell(tmp_path, 0, make_cell(0))
    part = next(tmp_path.glob("raw/*.requests.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(UsageError, match=part.name):
        read_records(tmp_path)
