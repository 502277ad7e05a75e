"""Tables of requests that are too long to be held: parquet files, read part by part into mapped files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from harness.metrics import on_disk
from harness.metrics.long_frames import slices
from harness.records.columns import REQUESTS


def requests_frame(tables: Iterable[pa.Table], rows: int) -> pd.DataFrame:
    """The `rows` rows of some tables as one frame; text is in categories. Raises BenchError where the disk
    is full."""
    columns = {
        field.name: _Text(rows) if pa.types.is_string(field.type) else _Numbers(rows, field.type)
        for field in REQUESTS
    }
    for table in tables:
        for name, column in columns.items():
            column.add(table[name])
    return pd.DataFrame({name: column.all() for name, column in columns.items()}, copy=False)


def tables_of(frame: pd.DataFrame) -> Iterator[pa.Table]:
    """The rows of a frame, some at a time."""
    for rows in slices(len(frame)):
        part = frame.iloc[rows]
        text = [name for name in part.columns if isinstance(part[name].dtype, pd.CategoricalDtype)]
        part = part.astype(dict.fromkeys(text, object))
        yield pa.Table.from_pandas(part, schema=REQUESTS, preserve_index=False)


class _Column:
    """Rows of a column, as they come."""

    def __init__(self, rows: int, dtype: npt.DTypeLike) -> None:
        self._values, self._rows = on_disk.array(rows, dtype), 0

    def _add(self, values: npt.NDArray[Any]) -> None:
        """The next rows; if they need a wider type, all get it."""
        if not np.can_cast(values.dtype, self._values.dtype):
            wider = on_disk.array(self._values.size, np.result_type(values, self._values))
            for rows in slices(self._rows):
                wider[rows] = self._values[rows]
            self._values = wider
        self._values[self._rows : self._rows + values.size] = values
        self._rows += values.size


class _Numbers(_Column):
    """Numbers; nulls make NaN of them, as in pandas."""

    def __init__(self, rows: int, kind: pa.DataType) -> None:
        super().__init__(rows, kind.to_pandas_dtype())

    def add(self, column: pa.ChunkedArray) -> None:
        """The next rows."""
        self._add(column.cast(pa.float64()).to_numpy() if column.null_count else column.to_numpy())

    def all(self) -> npt.NDArray[Any]:
        """All rows; no more will come."""
        return self._values


class _Text(_Column):
    """Strings, of which there are few that differ."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, np.int8)
        self._places: dict[str, int] = {}

    def add(self, column: pa.ChunkedArray) -> None:
        """The next rows."""
        found = column.combine_chunks().dictionary_encode()
        places = [self._places.setdefault(text, len(self._places)) for text in found.dictionary.to_pylist()]
        place = np.array([*places, -1], np.min_scalar_type(-max(1, len(self._places))))
        self._add(place[found.indices.fill_null(len(places)).to_numpy()])

    def all(self) -> pd.Categorical[str]:
        """All rows; no more will come."""
        return pd.Categorical.from_codes(self._values, pd.Index(list(self._places)), validate=False)
