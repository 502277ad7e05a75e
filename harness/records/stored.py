"""The form of the raw tables in files: whole numbers, which compress well, and lose nothing.

A time of a request is a number of nanoseconds. A chunk has the `gap` since the chunk before of its request
(the first one: since the cell's start) in steps of `step_ns`. A client keeps the kernel's stamps as float64
seconds since 1970, which are multiples of 2⁻²² s: where all times of a cell are, that is its step, and a gap
of 25 ms takes 17 bits instead of 25. The time of a chunk is

    t = round(offset_ns + step_ns × (sum of the request's gaps up to this one)) × 1e-9 s
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.metrics.definitions import run_starts
from harness.records.columns import CHUNKS, REQUESTS

NS = 1e9

#: Columns of requests in seconds, which files hold in nanoseconds.
SECONDS = [
    field.name for field in REQUESTS if field.name.startswith(("t_", "session_")) or field.name == "late_s"
]

STORED_REQUESTS = pa.schema(
    [pa.field(field.name, pa.int64()) if field.name in SECONDS else field for field in REQUESTS]
)
STORED_CHUNKS = pa.schema(
    [
        ("cell", pa.int32()),
        ("request", pa.int32()),
        ("gap", pa.int64()),  # steps since the request's chunk before, or since the cell's start
        ("tokens", pa.int32()),
        ("step_ns", pa.float64()),  # the same for a whole cell, as the next one is
        ("offset_ns", pa.float64()),
    ]
)
#: Steps of a client's stamps.
_STAMP_NS = NS / 2**22

#: Columns that are encoded as differences: their neighbours differ little.
_DELTA = {"request", *SECONDS}
#: Columns that are the same for a whole cell.
_OF_CELL = {"step_ns", "offset_ns"}


def to_file(table: pa.Table) -> pa.Table:
    """Return the table as its file has it. Chunks ascend by cell, request and time."""
    if table.schema.names == CHUNKS.names:
        return _chunks_to_file(table)
    for place, field in enumerate(table.schema):
        if field.name in SECONDS:
            ns = pc.round(pc.multiply(table[field.name], NS)).cast(pa.int64())
            table = table.set_column(place, field.name, ns)
    return table


def from_file(table: pa.Table) -> pa.Table:
    """Return the table of a file with its times in seconds; one that has them in seconds is as it was."""
    if {"cell", "request", "gap", "step_ns", "offset_ns"} <= {*table.column_names}:
        return _chunks_from_file(table)
    for place, field in enumerate(table.schema):
        if field.name in SECONDS and pa.types.is_integer(field.type):
            seconds = pc.divide(table[field.name].cast(pa.float64()), NS)
            table = table.set_column(place, field.name, seconds)
    return table


def write_options(stored: pa.Schema) -> dict[str, Any]:
    """Return how pyarrow writes a table as parquet: quickly, and about as small as it can be."""
    encoding = {}
    for field in stored:
        if field.name in _DELTA and pa.types.is_integer(field.type):
            encoding[field.name] = "DELTA_BINARY_PACKED"
        elif field.name == "gap" or (pa.types.is_floating(field.type) and field.name not in _OF_CELL):
            encoding[field.name] = "BYTE_STREAM_SPLIT"
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in stored.names if name not in encoding],
        "column_encoding": encoding or None,
    }


def _chunks_to_file(table: pa.Table) -> pa.Table:
    cell, request = (table[name].to_numpy() for name in ("cell", "request"))
    ns = np.rint(table["t"].to_numpy() * NS)
    steps, step_ns, offset_ns = np.empty(ns.size, np.int64), np.empty(ns.size), np.empty(ns.size)
    edges = [*run_starts(cell), ns.size]
    for rows in map(slice, edges[:-1], edges[1:]):
        steps[rows], step_ns[rows], offset_ns[rows] = _in_steps(ns[rows])
    first = _first_chunks(cell, request)
    gap = np.diff(steps, prepend=0)
    gap[first] = steps[first]
    columns = [cell, request, gap, table["tokens"], step_ns, offset_ns]
    return pa.table(columns, schema=STORED_CHUNKS)


def _chunks_from_file(table: pa.Table) -> pa.Table:
    cell, request = (table[name].to_numpy() for name in ("cell", "request"))
    gap, first = table["gap"].to_numpy(), _first_chunks(cell, request)
    steps = np.cumsum(gap)
    steps -= np.repeat(steps[first] - gap[first], np.diff(first, append=gap.size))
    ns = np.rint(table["offset_ns"].to_numpy() + table["step_ns"].to_numpy() * steps)
    table = table.select([name for name in table.column_names if name in ("cell", "request", "tokens")])
    return table.append_column("t", pa.array(ns / NS))


def _first_chunks(cell: npt.NDArray[np.integer], request: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return the positions of the first chunk of each request."""
    return run_starts((cell.astype(np.int64) << 32) | request)


def _in_steps(ns: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float, float]:
    """Return the times of a cell (n,), in ns, as whole steps, with the step and the offset in ns."""
    steps = np.rint((ns - ns[0]) / _STAMP_NS)
    offsets = ns - steps * _STAMP_NS
    offset = float(offsets.min() + offsets.max()) / 2
    if np.array_equal(np.rint(offset + _STAMP_NS * steps), ns):
        return steps, _STAMP_NS, offset
    return ns, 1.0, 0.0
