"""Parts while a run lasts, two tables at its end, and what a kill leaves."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from harness.loadgen.load_plan import LoadResult, RawResponse
from harness.records.cell import CellIdentity, CellRecords, Expected, read_cell
from harness.records.columns import REQUESTS
from harness.records.parquet import assemble, read_records, write_cell
from harness.records.stored import STORED_CHUNKS, STORED_REQUESTS
from harness.schema.load import TraceLoad

EVENT = b'data: {"choices":[{"text":"a","token_ids":[1,2],"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def cell(number: int, requests: int = 3) -> CellRecords:
    """A cell in which the last request was refused."""
    responses = [RawResponse(i, 100.0, 100.5, 102.0, [(101.0, HEAD + EVENT)]) for i in range(requests)]
    responses[-1] = RawResponse(requests - 1, 100.0, None, 100.1, [], "connect", "refused")
    identity = CellIdentity(number, "roseinfer", None, "roseinfer", TraceLoad(scale=0.5), 1)
    expected = [Expected(4, 2)] * requests
    return read_cell(LoadResult(100.0, responses), expected, identity, exact_length=True)


def assert_same(left: CellRecords, right: CellRecords) -> None:
    pd.testing.assert_frame_equal(left.requests, right.requests)
    pd.testing.assert_frame_equal(left.chunks, right.chunks)


def joined(*cells: CellRecords) -> CellRecords:
    return CellRecords(
        pd.concat([c.requests for c in cells], ignore_index=True),
        pd.concat([c.chunks for c in cells], ignore_index=True),
    )


def test_times_are_relative_and_what_did_not_happen_is_null(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, cell(0))
    assemble(tmp_path)
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
    for number in (0, 1, 2):
        write_cell(tmp_path, number, cell(number))
    under_way = read_records(tmp_path)
    assemble(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chunks.parquet", "requests.parquet"]
    assert_same(under_way, joined(cell(0), cell(1), cell(2)))
    assert_same(read_records(tmp_path), under_way)


def test_tables_in_any_order_are_read_in_that_of_cells(tmp_path: Path) -> None:
    cells = [cell(0), cell(1)]
    for number, records in enumerate(cells):
        write_cell(tmp_path, number, records)
    assemble(tmp_path)
    for name in ("requests", "chunks"):
        frame = getattr(read_records(tmp_path), name)
        frame.iloc[::-1].to_parquet(tmp_path / f"{name}.parquet", index=False)
    assert_same(read_records(tmp_path), joined(*cells))


def test_a_cell_without_a_journal_entry_is_left_out_and_written_again(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, cell(0))
    write_cell(tmp_path, 1, cell(1, requests=7))
    assert_same(read_records(tmp_path, {0}), cell(0))
    write_cell(tmp_path, 1, cell(1))
    assert_same(read_records(tmp_path), joined(cell(0), cell(1)))


def test_cells_can_be_added_to_an_assembled_run(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, cell(0))
    write_cell(tmp_path, 1, cell(1, requests=9))
    assemble(tmp_path)
    write_cell(tmp_path, 1, cell(1))
    write_cell(tmp_path, 2, cell(2))
    assert_same(read_records(tmp_path), joined(cell(0), cell(1), cell(2)))
    assemble(tmp_path)
    assert_same(read_records(tmp_path), joined(cell(0), cell(1), cell(2)))


def test_a_kill_while_assembling_loses_nothing(tmp_path: Path) -> None:
    write_cell(tmp_path, 0, cell(0))
    table = pa.Table.from_pandas(cell(0).requests, schema=REQUESTS, preserve_index=False)
    pq.write_table(table, tmp_path / "requests.parquet")  # the chunks were not reached
    assert_same(read_records(tmp_path), cell(0))


def test_no_records_and_damaged_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no records"):
        read_records(tmp_path)
    write_cell(tmp_path, 0, cell(0))
    part = next(tmp_path.glob("raw/*.requests.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(UsageError, match=part.name):
        read_records(tmp_path)
