"""Raw tables that a run cannot have written are refused, before any figure is made of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from harness.plain_text import visible
from harness.records.columns import COUNTED, NEEDED
from harness.schema.load import parse_load

#: Seconds since a cell's start: sends may be stamped this much before it, and no cell lasts three years.
EARLIEST_S, LATEST_S = -1.0, 1e8
#: The columns of a request that has no error are never null.
OF_SUCCESS = ("t_sent", "t_first", "t_last", "t_end", "completion_tokens")
#: Each moment and the one that cannot come after it; of a request that failed, an answer may be too early.
ORDER = (("t_sent", "t_sched"), ("t_first", "t_sent"), ("t_last", "t_first"), ("t_end", "t_last"))
#: A moment may be stamped this much before the one that it follows: clocks of two processes differ.
ORDER_S = 1.0
_NULL_IN_FAILURES = {*OF_SUCCESS, "error"}


def fault_of(table: pa.Table) -> str | None:
    """What is wrong with a table of `records/columns.py`, in one sentence with the row's number from 0.

    None where nothing is.
    """
    return next(_faults(table), None)


def without_hidden(table: pa.Table) -> pa.Table:
    """The table with every text `visible`."""
    for position, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            column = pc.dictionary_encode(table[field.name].combine_chunks())
            texts = column.dictionary.to_pylist()
            cleaned = [visible(text) for text in texts]
            if cleaned != texts:
                kept = pc.take(pa.array(cleaned, field.type), column.indices)
                table = table.set_column(position, field, kept)
    return table


def _faults(table: pa.Table) -> Iterator[str]:
    for field in table.schema:
        column = table[field.name]
        if field.name in NEEDED - _NULL_IN_FAILURES and column.null_count:
            yield f"{field.name} is missing{_row(pc.is_null(column))}"
        if pa.types.is_floating(field.type):
            yield from _outside(field.name, column, *limits(field.name))
        elif pa.types.is_integer(field.type):
            yield from _outside(field.name, column, 1 if field.name == "tokens" else 0, None)
    if "error" in table.column_names:
        yield from _request_faults(table)


def limits(name: str) -> tuple[float, float]:
    """The least and the greatest number that a column may hold."""
    if name in COUNTED:
        return 0.0, sys.float_info.max
    is_moment = name == "t" or name.startswith("t_") or name == "session_start"
    return (EARLIEST_S if is_moment else 0.0, LATEST_S * (1e3 if name.endswith("_ms") else 1))


def _outside(name: str, column: pa.ChunkedArray, low: float, high: float | None) -> Iterator[str]:
    wrong = pc.less(column, low)
    if high is not None:
        wrong = pc.or_(wrong, pc.or_(pc.is_nan(column), pc.greater(column, high)))
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        limits = f"from {low:g}" + ("" if high is None else f" to {high:g}")
        yield f"{name} is {column[row].as_py()}, which is not {limits}, in row {row}"


def _request_faults(table: pa.Table) -> Iterator[str]:
    success = pc.is_null(table["error"])
    for name in OF_SUCCESS:
        wrong = pc.and_(success, pc.is_null(table[name]))
        if name == "t_first":  # an API that gives all tokens at once does not tell when the first one came
            wrong = pc.and_(wrong, pc.greater(table["chunks"], 0))
        if pc.any(wrong).as_py():
            yield f"{name} of a request without an error is missing{_row(wrong)}"
    for after, before in ORDER:
        wrong = pc.and_(success, pc.less(table[after], pc.subtract(table[before], ORDER_S)))
        if pc.any(wrong).as_py():
            yield f"{after} is before {before}{_row(wrong)}"
    keys = table.select(["cell", "request"])
    if keys.group_by(["cell", "request"]).aggregate([]).num_rows < len(keys):
        yield "a request of a cell is there twice"
    for load in pc.unique(table["load"]).to_pylist():
        try:
            parse_load(load)
        except ValidationError:
            yield f"load is {load!r}, which is not a load"


def _row(wrong: Any) -> str:
    return f" in row {pc.index(wrong, True).as_py()}"
