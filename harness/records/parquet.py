"""The raw tables of a run on disk.

While a run lasts, each cell is a pair of parts, `raw/cell-00003.requests.parquet` and
`raw/cell-00003.chunks.parquet`, so that whatever ends the run, every cell in the journal can be read.
`assemble` makes `requests.parquet` and `chunks.parquet` of them, and `server.parquet` where servers report
metrics of their own.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.files import whole_file
from harness.plain_text import one_line
from harness.records.cell import CellRecords
from harness.records.columns import CHUNKS, NEEDED, REQUESTS, SERVER
from harness.records.stored import STORED_CHUNKS, from_file, to_file, write_options
from harness.records.table_check import fault_of, without_hidden

_TABLES = {"requests": REQUESTS, "chunks": CHUNKS, "server": SERVER}
_RAW = "raw"
_TEXT = (
    *("engine", "variant", "label", "load", "token_source", "error", "finish_reason"),
    *("other_models", "unread_fields"),
)

#: Chunks of a run that are held in memory, with what is computed from them: about 150 bytes each.
MAX_CHUNKS = 50_000_000
#: A table whose values take more bytes than both: so much, and so many times its file, is no run's.
_SMALL, _MOST_TIMES = 64 << 20, 100


def write_cell(run: Path, cell: int, records: CellRecords) -> None:
    """Keep the records of one cell; a cell written before is replaced. No readings of a server, no file."""
    for name, frame in vars(records).items():
        if len(frame) or name != "server":
            table = pa.Table.from_pandas(frame, schema=_TABLES[name], preserve_index=False)
            write_table(run / _RAW / f"cell-{cell:05d}.{name}.parquet", table)


def read_records(run: Path) -> CellRecords:
    """Return the records of a run, finished or not, in the order of cells.

    Raises:
        UsageError: There are none, or a file is damaged.
    """
    return _frames(_read_tables(run))


def assemble(run: Path, cells: Collection[int]) -> CellRecords:
    """Make the tables of the run of its parts, remove these, and return the records of `cells`.

    Raises:
        UsageError: There are none, or a file is damaged.
    """
    tables = _read_tables(run, cells)
    for name, table in tables.items():
        if len(table) or name != "server":
            write_table(run / f"{name}.parquet", table)
    shutil.rmtree(run / _RAW, ignore_errors=True)
    return _frames(tables)


def has_parts(run: Path) -> bool:
    """Return whether cells were measured since the tables were made, if they were."""
    return (run / _RAW).is_dir()


def _frames(tables: Mapping[str, pa.Table]) -> CellRecords:
    """Return tables in memory; repeated text is in categories, so that 10⁵ rows stay small."""
    categories = dict.fromkeys(_TEXT, "category")
    return CellRecords(
        tables["requests"].to_pandas().astype(categories),
        tables["chunks"].to_pandas(split_blocks=True, self_destruct=True),
        tables["server"].to_pandas(),
    )


def _read_tables(run: Path, cells: Collection[int] | None = None) -> dict[str, pa.Table]:
    """Return the tables of a run, or of some of its cells, by name. Raises UsageError."""
    _check_size(run)
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(_TABLES, threads.map(lambda name: _read(run, name, cells), _TABLES), strict=True))


def _read(run: Path, name: str, cells: Collection[int] | None) -> pa.Table:
    """Return a table, made of its parts and of what was assembled before. Raises UsageError."""
    schema, (whole, parts) = _TABLES[name], _files(run, name)
    tables = [_read_table(part, schema) for part in parts.values()]
    if whole.exists():
        table = _read_table(whole, schema)
        tables.append(table.filter(pc.invert(_is_of(table, parts))) if parts else table)
    if not tables and name != "server":
        raise UsageError(
            f"{run} holds no records: {name}.parquet is missing",
            "name the folder of a run, or restore the file",
        )
    table = pa.concat_tables(tables or [schema.empty_table()])
    return _in_order(table if cells is None else table.filter(_is_of(table, cells)))


def _files(run: Path, name: str) -> tuple[Path, dict[int, Path]]:
    """Return the path of the assembled table, there or not, and the newer parts by cell."""
    parts = (run / _RAW).glob(f"cell-*.{name}.parquet")
    return run / f"{name}.parquet", {int(part.name[5:].partition(".")[0]): part for part in parts}


def _check_size(run: Path) -> None:
    """Raise UsageError where a run has more chunks than are held in memory."""
    whole, parts = _files(run, "chunks")
    with suppress(pa.ArrowException, OSError):  # whoever reads the file says what is wrong with it
        chunks = sum(pq.read_metadata(path).num_rows for path in (whole, *parts.values()) if path.exists())
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
    """Return True if rows ascend by these columns, the first before the second."""
    values = [table[column].to_numpy() for column in columns]
    equal = np.ones(max(0, len(table) - 1), dtype=bool)
    for column in values:
        if np.any(equal & (column[1:] < column[:-1])):
            return False
        equal &= column[1:] == column[:-1]
    return True


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
        table = from_file(_read_columns(path, schema, hint))
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # the file may be well
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


def _read_columns(path: Path, schema: pa.Schema, hint: str) -> pa.Table:
    """Return a table's columns as a file has them. Raises UsageError where they are too large."""
    there = set(pq.read_schema(path).names)
    texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name in there]
    file = pq.ParquetFile(path, read_dictionary=texts)
    names = [name for name in file.schema_arrow.names if name in {*schema.names, *STORED_CHUNKS.names}]
    most = max(_SMALL, _MOST_TIMES * path.stat().st_size)
    groups = map(file.metadata.row_group, range(file.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    unpacked = sum(it.total_uncompressed_size for it in columns if it.path_in_schema in names)
    size, table = unpacked + 8 * file.metadata.num_rows * len(names), pa.table({})
    if size <= most:
        table = file.read(names)
        texts_read = (chunk for column in table.columns for chunk in column.chunks)
        dictionaries = [chunk for chunk in texts_read if isinstance(chunk, pa.DictionaryArray)]
        lengths = [pc.take(pc.binary_length(chunk.dictionary), chunk.indices) for chunk in dictionaries]
        size += sum(pc.sum(of_chunk).as_py() or 0 for of_chunk in lengths)
    if size > most:
        raise UsageError(f"{path} means {size >> 20} MiB of values, which no run writes", hint)
    return table


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as parquet, whole or not at all."""
    with whole_file(path) as partial:
        stored = to_file(_in_order(table))
        pq.write_table(stored, partial, **write_options(stored.schema))
