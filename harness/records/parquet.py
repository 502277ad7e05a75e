"""The raw tables of a run on disk.

While a run lasts, each cell is a pair of parts, `raw/cell-00003.requests.parquet` and
`raw/cell-00003.chunks.parquet`, so that whatever ends the run, every cell in the journal can be read.
`assemble` makes `requests.parquet` and `chunks.parquet` of them, and `server.parquet` where servers report
metrics of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import whole_file
from harness.plain_text import one_line
from harness.records.cell import CellRecords
from harness.records.columns import CHUNKS, NEEDED, REQUESTS, SERVER
from harness.records.stored import from_file, to_file, write_options
from harness.records.table_check import fault_of, without_hidden

_TABLES = {"requests": REQUESTS, "chunks": CHUNKS}
_SERVER = "server"
_RAW = "raw"

#: Chunks of a run that are held in memory, with what is computed from them: about 150 bytes each.
MAX_CHUNKS = 50_000_000


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
    _check_size(run)
    with ThreadPoolExecutor(2) as threads:
        requests, chunks = threads.map(lambda name: _needed(run, name, cells), _TABLES)
    return CellRecords(requests.to_pandas(), chunks.to_pandas(split_blocks=True, self_destruct=True))


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
    whole, newer = _files(run, name)
    paths = [*([whole] if whole else []), *newer.values()]
    if not paths:
        return None
    tables = []
    for path in paths:
        table = _read_table(path, schema)
        tables.append(_select(table, None, without=newer) if path == whole else table)
    table = _select(pa.concat_tables(tables), cells)
    return _in_order(table)


def _files(run: Path, name: str) -> tuple[Path | None, dict[int, Path]]:
    """What was assembled before, if anything was, and the parts that are newer, by cell."""
    whole, parts = run / f"{name}.parquet", sorted((run / _RAW).glob(f"cell-*.{name}.parquet"))
    newer = {int(part.name.removeprefix("cell-").partition(".")[0]): part for part in parts}
    return whole if whole.exists() else None, newer


def _check_size(run: Path) -> None:
    """Raise UsageError where a run has more chunks than are held in memory."""
    whole, newer = _files(run, "chunks")
    try:
        chunks = sum(
            pq.read_metadata(path).num_rows for path in [*([whole] if whole else []), *newer.values()]
        )
    except (pa.ArrowException, OSError):
        return  # whoever reads the file says what is wrong with it
    if chunks > MAX_CHUNKS:
        raise UsageError(
            f"the run in {run} has {chunks:,} chunks, and at most {MAX_CHUNKS:,} are held in memory",
            "measure its loads in several runs, or with fewer requests, and compare the runs",
        )


def _in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a table, ascending by cell, request and time."""
    order = [name for name in ("cell", "request", "t") if name in table.column_names]
    return table if _is_sorted(table, order) else table.sort_by([(column, "ascending") for column in order])


def _is_sorted(table: pa.Table, columns: list[str]) -> bool:
    """Whether rows ascend by these columns, the first before the second."""
    values = [table[column].to_numpy() for column in columns]
    equal = np.ones(max(0, len(table) - 1), dtype=bool)
    for column in values:
        if np.any(equal & (column[1:] < column[:-1])):
            return False
        equal &= column[1:] == column[:-1]
    return True


def _select(table: pa.Table, cells: Collection[int] | None, without: Collection[int] = ()) -> pa.Table:
    """Return the rows of `cells` (None: of all), but for those of the cells `without`."""
    rows = pc.invert(_is_of(table, without))
    if cells is not None:
        rows = pc.and_(rows, _is_of(table, cells))
    return table if pc.all(rows).as_py() else table.filter(rows)


def _is_of(table: pa.Table, cells: Collection[int]) -> pa.ChunkedArray:
    return pc.is_in(table["cell"], value_set=pa.array(sorted(cells), pa.int32()))


def _with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns of `schema`; those that it lacks are null.

    Raises:
        ArrowException, ValueError: A column has another type.
    """
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, checked. One that is absent and that no figure needs is null in every row."""
    hint = "restore the file, which holds the raw times, or repeat the run"
    try:
        table = from_file(pq.read_table(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(
            f"{path} is not a readable parquet file: {one_line(str(error), 200)}", hint
        ) from None
    if names := [name for name in schema.names if name in NEEDED and name not in table.column_names]:
        raise UsageError(f"{path} has no column {', '.join(names)}", hint)
    try:
        table = _with_all(table, schema)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{path} has a column of another type: {one_line(str(error), 200)}", hint) from None
    if fault := fault_of(table):
        raise UsageError(f"{path} holds values that no run writes: {fault}", hint)
    return without_hidden(table)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as parquet, whole or not at all."""
    with whole_file(path) as partial:
        stored = to_file(_in_order(table))
        pq.write_table(stored, partial, **write_options(stored.schema))


def _part(run: Path, cell: int, name: str) -> Path:
    return run / _RAW / f"cell-{cell:05d}.{name}.parquet"
