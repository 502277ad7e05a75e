"""The raw tables of a run on disk.

While a run lasts, each cell is a pair of parts, `raw/cell-00003.requests.parquet` and
`raw/cell-00003.chunks.parquet`, so that whatever ends the run, every cell in the journal can be read.
`assemble` makes `requests.parquet` and `chunks.parquet` of them, and `server.parquet` where servers report
metrics of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import whole_file
from harness.plain_text import one_line
from harness.records.cell import CellRecords, frame_of
from harness.records.columns import CHUNKS, NEEDED, REQUESTS, SERVER
from harness.records.table_check import fault_of, without_hidden

_TABLES = {"requests": REQUESTS, "chunks": CHUNKS}
_SERVER = "server"
_RAW = "raw"


def write_cell(run: Path, cell: int, records: CellRecords) -> None:
    """Keep the records of one cell; a cell written before is replaced."""
    for name, frame in (("requests", records.requests), ("chunks", records.chunks)):
        table = pa.Table.from_pandas(frame, schema=_TABLES[name], preserve_index=False)
        write_table(_part(run, cell, name), table)


def write_server(run: Path, cell: int, readings: pd.DataFrame) -> None:
    """Keep what the server of one cell reported; no readings, no file."""
    if len(readings):
        table = pa.Table.from_pandas(readings, schema=SERVER, preserve_index=False)
        write_table(_part(run, cell, _SERVER), table)


def read_server(run: Path, cells: set[int] | None = None) -> pd.DataFrame:
    """What the servers of a run reported, in the order of cells; empty where that was not asked for.

    Raises:
        UsageError: A file is damaged.
    """
    table = _read(run, _SERVER, SERVER, cells)
    found: pd.DataFrame = (SERVER.empty_table() if table is None else table).to_pandas()
    return found


def read_records(run: Path, cells: set[int] | None = None) -> CellRecords:
    """Records of a run, finished or not, in the order of cells.

    Args:
        cells: Only these, e.g. those that the journal names. None: all.

    Raises:
        UsageError: There are none, or a file is damaged.
    """
    tables = {name: _needed(run, name, cells) for name in _TABLES}
    return CellRecords(tables["requests"].to_pandas(), frame_of(tables.pop("chunks")))


def assemble(run: Path, cells: set[int] | None = None) -> None:
    """Make the two tables of the run of its parts, then remove the parts."""
    for name in _TABLES:
        write_table(run / f"{name}.parquet", _needed(run, name, cells))
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
    parts = sorted((run / _RAW).glob(f"cell-*.{name}.parquet"))
    whole = run / f"{name}.parquet"
    paths = ([whole] if whole.exists() else []) + parts
    if not paths:
        return None
    newer = {int(part.name.removeprefix("cell-").partition(".")[0]) for part in parts}
    tables = []
    for path in paths:
        table = _read_table(path, schema)
        tables.append(_kept(table, pc.invert(_among(table, newer))) if path == whole else table)
    table = pa.concat_tables(tables)
    if cells is not None:
        table = _kept(table, _among(table, cells))
    order = [column for column in ("cell", "request", "t") if column in schema.names]
    return table if _is_sorted(table, order) else table.sort_by([(column, "ascending") for column in order])


def _kept(table: pa.Table, rows: pa.ChunkedArray) -> pa.Table:
    """Those rows; no copy where it is all of them."""
    return table if pc.all(rows).as_py() else table.filter(rows)


def _is_sorted(table: pa.Table, columns: Sequence[str]) -> bool:
    """By these columns, the first before the second."""
    equal = np.ones(max(0, len(table) - 1), dtype=bool)
    for column in columns:
        values = table[column].to_numpy()
        if np.any(equal & (values[1:] < values[:-1])):
            return False
        equal &= values[1:] == values[:-1]
    return True


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, checked. One that is absent and that no figure needs is null in every row."""
    hint = "restore the file, which holds the raw times, or repeat the run"
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a readable parquet file: {one_line(str(error), 200)}", hint
        ) from None
    absent = [field for field in schema if field.name not in table.column_names]
    if names := [field.name for field in absent if field.name in NEEDED]:
        raise UsageError(f"{path} has no column {', '.join(names)}", hint)
    for field in absent:
        table = table.append_column(field, pa.nulls(len(table), field.type))
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{path} has a column of another type: {one_line(str(error), 200)}", hint) from None
    if fault := fault_of(table):
        raise UsageError(f"{path} holds values that no run writes: {fault}", hint)
    return without_hidden(table)


def _among(table: pa.Table, cells: set[int]) -> pa.Array:
    return pc.is_in(table["cell"], value_set=pa.array(sorted(cells), pa.int32()))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as parquet, whole or not at all."""
    with whole_file(path) as partial:
        pq.write_table(table, partial, compression="zstd")


def _part(run: Path, cell: int, name: str) -> Path:
    return run / _RAW / f"cell-{cell:05d}.{name}.parquet"
