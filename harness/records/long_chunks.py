"""Tables that are too long to be held: parquet files, read part by part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import UsageError
from harness.metrics import on_disk
from harness.metrics.on_disk import disk_is_full, temporary_file
from harness.records.columns import CHUNKS, NEEDED, options_of
from harness.records.table_check import fault_of, without_hidden

#: Compared at a time: they stay in a processor's cache.
_ROWS = 1 << 16


class Received:
    """Rows as they come: held up to `most`, more are in a temporary file."""

    def __init__(self, schema: pa.Schema, most: int) -> None:
        self._schema, self._most = schema, most
        self._held: list[pa.Table] = [schema.empty_table()]
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """The next rows. Raises BenchError where the disk is full."""
        self._held.append(table)
        self._rows += len(table)
        if self._rows <= self._most:
            return
        try:
            if self._writer is None:
                self._file = temporary_file()
                self._writer = pq.ParquetWriter(self._file, self._schema, **options_of(self._schema))
            for held in self._held:
                self._writer.write_table(held)
        except OSError as error:
            raise disk_is_full(error) from error
        self._held = []

    def all(self) -> pa.Table | LongTable:
        """All rows; no more will come."""
        if self._file is None or self._writer is None:
            return pa.concat_tables(self._held)
        self._writer.close()
        return LongTable(self._file, self._rows)


@dataclass(frozen=True)
class LongTable:
    """A table of `rows` rows in a parquet file."""

    file: IO[bytes]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def parts(self, rows: int) -> Iterator[pa.Table]:
        """All rows, at most so many at a time."""
        with pq.ParquetFile(self.file, pre_buffer=False) as file:
            yield from map(pa.Table.from_batches, ([batch] for batch in file.iter_batches(rows)))


@dataclass(frozen=True)
class CellChunks:
    """The chunks of one cell, in a table without the column `cell`."""

    cell: int
    table: LongTable

    def parts(self, cells: Collection[int] | None = None) -> Iterator[pd.DataFrame]:
        """As of `ChunkParts`."""
        if cells is None or self.cell in cells:
            for batch in self.table.parts(on_disk.PART):
                cell = pa.repeat(pa.scalar(self.cell, pa.int32()), len(batch))
                yield batch.add_column(0, CHUNKS.field("cell"), cell).to_pandas()


@dataclass(frozen=True)
class RunTable:
    """A table of a run.

    Attributes:
        newer: files of one cell each, by cell.
        whole: a file that has all others; None: there is none.
        cells: which are wanted; None: all.
    """

    newer: dict[int, Path]
    whole: Path | None
    cells: frozenset[int] | None
    schema: pa.Schema

    def tables(self, cells: Collection[int] | None = None) -> Iterator[pa.Table]:
        """All rows of these cells, or of all, some at a time, in the order of cells. Raises UsageError where
        a file is not there any more."""
        wanted = self.cells if cells is None else frozenset(cells)
        if wanted is not None and self.cells is not None:
            wanted &= self.cells
        left = sorted((cell, path) for cell, path in self.newer.items() if wanted is None or cell in wanted)
        try:
            old = () if self.whole is None else _batches(self.whole, self.schema, wanted, without=self.newer)
            for table in old:
                cell_of, begin = table["cell"].to_numpy(), 0
                while left and left[0][0] < cell_of[-1]:
                    cell, path = left.pop(0)
                    end = int(np.searchsorted(cell_of, cell))
                    if end > begin:
                        yield table.slice(begin, end - begin)
                    yield from _batches(path, self.schema)
                    begin = end
                yield table.slice(begin)
            for _, path in left:
                yield from _batches(path, self.schema)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(
                f"a file of the run changed while it was read: {error}", "give the command again"
            ) from None

    def sound_rows(self) -> int | None:
        """How many rows there are, if all are in order, and such as a run writes."""
        last, rows = self.schema.empty_table(), 0
        for table in self.tables():
            together = pa.concat_tables([last, table])
            if fault_of(together) or not is_sorted(together, order_of(self.schema)):
                return None
            last, rows = table.slice(len(table) - 1), rows + len(table)
        return rows


class RunChunks(RunTable):
    """The chunks of a run."""

    def parts(self, cells: Collection[int] | None = None) -> Iterator[pd.DataFrame]:
        """As of `ChunkParts`. Raises UsageError where a file is not there any more."""
        for table in self.tables(cells):
            yield table.to_pandas()


def order_of(schema: pa.Schema) -> list[str]:
    """The columns by which the rows of a table ascend."""
    return [name for name in ("cell", "request", "t") if name in schema.names]


def rows_of(paths: Sequence[Path]) -> int:
    """Of files together. Raises ArrowException and OSError."""
    return sum(pq.read_metadata(path).num_rows for path in paths)


def is_sorted(table: pa.Table, columns: Sequence[str]) -> bool:
    """By these columns, the first before the second."""
    values = [table[column].to_numpy() for column in columns]
    return all(
        _ascend([column[at : at + _ROWS + 1] for column in values]) for at in range(0, len(table), _ROWS)
    )


def _ascend(columns: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether rows are in order."""
    equal = np.ones(max(0, len(columns[0]) - 1), dtype=bool)
    for values in columns:
        if np.any(equal & (values[1:] < values[:-1])):
            return False
        equal &= values[1:] == values[:-1]
    return True


def of_some(table: pa.Table, cells: Collection[int] | None, without: Collection[int] = ()) -> pa.Table:
    """The rows of these cells, or of all, without some; no copy where it is all rows."""
    rows = pc.invert(_among(table, without))
    if cells is not None:
        rows = pc.and_(rows, _among(table, cells))
    return table if pc.all(rows).as_py() else table.filter(rows)


def _among(table: pa.Table, cells: Collection[int]) -> pa.ChunkedArray:
    return pc.is_in(table["cell"], value_set=pa.array(sorted(cells), pa.int32()))


def with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of `schema`; those that it has not are null. Raises ArrowException and
    ValueError."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


def _batches(
    source: Path, schema: pa.Schema, cells: Collection[int] | None = None, without: Collection[int] = ()
) -> Iterator[pa.Table]:
    """The rows of these cells, some at a time. Raises ArrowException and OSError."""
    with pq.ParquetFile(source, pre_buffer=False) as file:
        position = file.schema_arrow.get_field_index("cell")
        names = [name for name in file.schema_arrow.names if name in schema.names]
        if lacking := NEEDED.intersection(schema.names).difference(names):
            raise UsageError(f"{source} has no column {', '.join(sorted(lacking))}")
        groups = list(range(file.num_row_groups))
        if cells is not None:
            groups = [g for g in groups if _may_have(file.metadata.row_group(g).column(position), cells)]
        rows = on_disk.PART // (len(names) // 4)  # those of requests have more columns
        for batch in file.iter_batches(rows, row_groups=groups, columns=names):
            table = without_hidden(with_all(pa.Table.from_batches([batch]), schema))
            table = table if cells is None and not without else of_some(table, cells, without)
            if len(table):
                yield table


def _may_have(column: pq.ColumnChunkMetaData, cells: Collection[int]) -> bool:
    found = column.statistics
    if found is None or not found.has_min_max:
        return True
    return any(found.min <= cell <= found.max for cell in cells)
