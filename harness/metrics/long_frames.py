"""Frames of requests that are too many to be held: their columns are mapped files.

Functions with the name of one of numpy's do the same, a part at a time where the numbers are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.metrics import on_disk
from harness.metrics.on_disk import OnDisk

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]


def slices(size: int) -> Iterator[slice]:
    """All of so many rows, PART at a time."""
    return (slice(begin, min(begin + on_disk.PART, size)) for begin in range(0, size, on_disk.PART))


def select_rows(frame: pd.DataFrame, rows: Rows) -> pd.DataFrame:
    """The rows of a frame where `rows` is true; no copy where it is everywhere."""
    if rows.all():
        return frame
    if rows.sum() <= on_disk.HELD_REQUESTS:
        return frame[rows]
    index = pd.Index(compress(rows, frame.index.to_numpy()), copy=False)
    return pd.DataFrame(
        {name: _compress(rows, frame[name]) for name in frame.columns}, index=index, copy=False
    )


def concat(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of some frames with the same columns, one after the other."""
    if sum(map(len, frames)) <= on_disk.HELD_REQUESTS:
        return pd.concat(frames)
    index = pd.Index(_concatenate([frame.index.to_numpy() for frame in frames]), copy=False)
    columns = {name: _concat([frame[name].array for frame in frames]) for name in frames[0].columns}
    return pd.DataFrame(columns, index=index, copy=False)


def _concat(columns: Sequence[Any]) -> object:
    if len({column.dtype for column in columns}) > 1 or not isinstance(columns[0], pd.Categorical):
        return _concatenate([np.asarray(column) for column in columns])
    codes = _concatenate([column.codes for column in columns])
    return pd.Categorical.from_codes(codes, dtype=columns[0].dtype, validate=False)


def _concatenate(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays whose lengths are known, in one file from the start."""
    found, end = on_disk.array(sum(map(len, arrays)), np.result_type(*arrays)), 0
    for values in arrays:
        found[end : end + values.size] = values
        end += values.size
    return found


def _compress(rows: Rows, column: pd.Series[Any]) -> object:
    kept = column.array
    if isinstance(kept, pd.Categorical):
        return pd.Categorical.from_codes(compress(rows, kept.codes), dtype=kept.dtype, validate=False)
    return compress(rows, column.to_numpy())


def compress(rows: Rows, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values where `rows` is true; no copy where it is everywhere."""
    if rows.all():
        return values
    found, end = on_disk.array(int(rows.sum()), values.dtype), 0
    for part in slices(len(values)):
        some = values[part][rows[part]]
        found[end : end + some.size] = some
        end += some.size
    return found


def flatnonzero(rows: Rows) -> npt.NDArray[np.int32]:
    """Where `rows` is true."""
    found, end = on_disk.array(int(rows.sum()), np.int32), 0
    for part in slices(len(rows)):
        some = np.flatnonzero(rows[part]) + part.start
        found[end : end + some.size] = some
        end += some.size
    return found


def map_parts(
    function: Callable[..., npt.ArrayLike], *arrays: npt.NDArray[Any], dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[Any]:
    """(n,) what a function of single values makes of each place of some (n,) arrays."""
    found = on_disk.array(arrays[0].size, dtype)
    for part in slices(found.size):
        found[part] = function(*(values[part] for values in arrays))
    return found


def known(column: pd.Series[Any]) -> Floats:
    """(k,) the values of a column that are not null."""
    values = numbers(column)
    return compress(map_parts(np.isfinite, values, dtype=np.bool_), values)


def concatenate(parts: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays one after the other. There is one at least."""
    held: list[npt.NDArray[Any]] = []
    stored: OnDisk | None = None
    for part in parts:
        held.append(part)
        if sum(map(len, held)) > on_disk.HELD_REQUESTS:
            stored = stored or OnDisk(part.dtype)
            stored.append(np.concatenate(held))
            held = []
    if stored is None:
        return np.concatenate(held)
    for part in held:
        stored.append(part)
    return stored.mapped()


def numbers(column: pd.Series[Any]) -> Floats:
    """(n,) a column as it is, or made to float64; NaN where it is null."""
    values = column.to_numpy()
    if values.dtype == np.float64:
        return values
    if values.dtype.kind in "biuf":  # none is null
        return map_parts(lambda part: part, values)
    return map_parts(lambda part: pd.Series(part).to_numpy(np.float64, na_value=np.nan), values)


def arange(begin: int, end: int) -> npt.NDArray[np.int32]:
    """The numbers from `begin` to before `end`."""
    found = on_disk.array(end - begin, np.int32)
    for part in slices(found.size):
        found[part] = np.arange(begin + part.start, begin + part.stop)
    return found


def median(values: npt.NDArray[Any]) -> float:
    """There must be values."""
    ascending = sort(values)
    return float((ascending[(ascending.size - 1) // 2] + ascending[ascending.size // 2]) / 2)


def argsort(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """(n,) the order of a stable sort. Of many values there are none that are NaN."""
    if values.size <= on_disk.HELD_REQUESTS:
        return np.argsort(values, kind="stable").astype(np.int32)
    # np.argsort would take memory. Complex numbers are sorted in place, in the file, by the real part and
    # then by the imaginary one: each is a value and its index, so that equal values keep their order.
    pairs = on_disk.array(values.size, np.complex128)
    for part in slices(values.size):
        pairs[part] = values[part] + 1j * np.arange(part.start, part.stop)
    pairs.sort()
    return map_parts(lambda some: some.imag, pairs, dtype=np.int32)


def sort(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in ascending order."""
    found = on_disk.array(values.size, values.dtype)
    found[:] = values
    found.sort()
    return found
