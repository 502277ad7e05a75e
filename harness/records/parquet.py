"""The raw tables of a run on disk.

While a run lasts, each cell is a pair of parts, `raw/cell-00003.requests.parquet` and
`raw/cell-00003.chunks.parquet`, so that whatever ends the run, every cell in the journal can be read.
`assemble` makes `requests.parquet` and `chunks.parquet` of them, and `server.parquet` where servers report
metrics of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import whole_file
from harness.metrics import on_disk
from harness.metrics.chunk_parts import Chunks, parts_of
from harness.plain_text import one_line
from harness.records.cell import CellRecords, frame_of
from harness.records.columns import CHUNKS, NEEDED, REQUESTS, SERVER, options_of
from harness.records.long_chunks import RunChunks, RunTable, is_sorted, of_some, order_of, rows_of, with_all
from harness.records.long_requests import requests_frame, tables_of
from harness.records.table_check import fault_of, without_hidden

_TABLES = {"requests": REQUESTS, "chunks": CHUNKS}
_SERVER = "server"
_RAW = "raw"


def write_cell(run: Path, cell: int, records: CellRecords) -> None:
    """Keep the records of one cell; a cell written before is replaced."""
    _write_parts(_part(run, cell, "requests"), REQUESTS, tables_of(records.requests))
    parts = parts_of(records.chunks)
    tables = (pa.Table.from_pandas(part, schema=CHUNKS, preserve_index=False) for part in parts)
    _write_parts(_part(run, cell, "chunks"), CHUNKS, tables)


def write_server(run: Path, cell: int, readings: pd.DataFrame) -> None:
    """Keep what the server of one cell reported; no readings, no file."""
    if len(readings):
        table = pa.Table.from_pandas(readings, schema=SERVER, preserve_index=False)
        write_table(_part(run, cell, _SERVER), table)


def read_server(run: Path) -> pd.DataFrame:
    """What the servers of a run reported, in the order of cells; empty where that was not asked for.

    Raises:
        UsageError: A file is damaged.
    """
    table = _read(run, _SERVER, SERVER, cells=None)
    found: pd.DataFrame = (SERVER.empty_table() if table is None else table).to_pandas()
    return found


def no_records() -> CellRecords:
    """Tables without a row."""
    return CellRecords(*(schema.empty_table().to_pandas() for schema in (REQUESTS, CHUNKS)))


def read_records(run: Path, cells: set[int] | None = None) -> CellRecords:
    """Records of a run, finished or not, in the order of cells.

    Args:
        cells: Only these, e.g. those that the journal names. None: all.

    Raises:
        UsageError: There are none, or a file is damaged.
    """
    with ThreadPoolExecutor(2) as threads:
        chunks = threads.submit(_chunks, run, cells)
        return CellRecords(_requests(run, cells), chunks.result())


def assemble(run: Path, cells: set[int] | None = None) -> None:
    """Make the two tables of the run of its parts, then remove the parts."""
    for name, schema in _TABLES.items():
        path, long = run / f"{name}.parquet", _long(run, name, cells)
        if long is None:
            write_table(path, _needed(run, name, cells))
        else:
            _write_parts(path, schema, long[0].tables())
    if (readings := _read(run, _SERVER, SERVER, cells)) is not None:
        write_table(run / f"{_SERVER}.parquet", readings)
    shutil.rmtree(run / _RAW, ignore_errors=True)


def _needed(run: Path, name: str, cells: set[int] | None) -> pa.Table:
    table = _read(run, name, _TABLES[name], cells)
    if table is None:
        raise UsageError(
            f"{run} holds no records: {name}.parquet is missing",
            "name the folder of a run, or restore the file",
        )
    return table


def _read(run: Path, name: str, schema: pa.Schema, cells: set[int] | None) -> pa.Table | None:
    """A table of its parts and of what was assembled before; None where there is neither."""
    whole, newer = _files(run, name)
    paths = [*([whole] if whole else []), *newer.values()]
    if not paths:
        return None
    tables = []
    for path in paths:
        table = _read_table(path, schema)
        tables.append(of_some(table, None, without=newer) if path == whole else table)
    table = of_some(pa.concat_tables(tables), cells)
    order = order_of(schema)
    return table if is_sorted(table, order) else table.sort_by([(column, "ascending") for column in order])


def _files(run: Path, name: str) -> tuple[Path | None, dict[int, Path]]:
    """What was assembled before, if anything was, and the parts that are newer, by cell."""
    whole, parts = run / f"{name}.parquet", sorted((run / _RAW).glob(f"cell-*.{name}.parquet"))
    newer = {int(part.name.removeprefix("cell-").partition(".")[0]): part for part in parts}
    return whole if whole.exists() else None, newer


def _requests(run: Path, cells: set[int] | None) -> pd.DataFrame:
    if (long := _long(run, "requests", cells)) is not None:
        table, rows = long
        return requests_frame(table.tables(), rows)
    found: pd.DataFrame = _needed(run, "requests", cells).to_pandas()
    return found


def _chunks(run: Path, cells: set[int] | None) -> Chunks:
    long = _long(run, "chunks", cells)
    return frame_of(_needed(run, "chunks", cells)) if long is None else RunChunks(**vars(long[0]))


def _long(run: Path, name: str, cells: set[int] | None) -> tuple[RunTable, int] | None:
    """A table of a run and its rows, if they are too many to be held and sound. Others are read at once,
    which brings them into order or says what is wrong with them."""
    whole, newer = _files(run, name)
    most = on_disk.HELD_REQUESTS if name == "requests" else on_disk.HELD
    try:
        if rows_of([*([whole] if whole else []), *newer.values()]) > most:
            found = RunTable(newer, whole, None if cells is None else frozenset(cells), _TABLES[name])
            rows = found.sound_rows()
            return None if rows is None else (found, rows)
    except (pa.ArrowException, OSError, ValueError, UsageError):
        pass
    return None


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, checked. One that is absent and that no figure needs is null in every row."""
    hint = "restore the file, which holds the raw times, or repeat the run"
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a readable parquet file: {one_line(str(error), 200)}", hint
        ) from None
    if names := [name for name in schema.names if name in NEEDED and name not in table.column_names]:
        raise UsageError(f"{path} has no column {', '.join(names)}", hint)
    try:
        table = with_all(table, schema)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{path} has a column of another type: {one_line(str(error), 200)}", hint) from None
    if fault := fault_of(table):
        raise UsageError(f"{path} holds values that no run writes: {fault}", hint)
    return without_hidden(table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as parquet, whole or not at all."""
    with whole_file(path) as partial:
        pq.write_table(table, partial, **options_of(table.schema))


def _write_parts(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a table that is given some rows at a time, whole or not at all."""
    with whole_file(path) as partial, pq.ParquetWriter(partial, schema, **options_of(schema)) as writer:
        for table in tables:
            writer.write_table(table)


def _part(run: Path, cell: int, name: str) -> Path:
    return run / _RAW / f"cell-{cell:05d}.{name}.parquet"
