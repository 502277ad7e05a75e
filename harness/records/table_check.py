"""Raw tables that a run cannot have written are refused, before any figure is made of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from harness.plain_text import visible
from harness.records.columns import COUNTED, NEEDED
from harness.schema.load import LATEST_S, parse_load

#: Seconds since a cell's start: sends may be stamped this much before it.
EARLIEST_S = -1.0
#: Characters of a text.
MAX_TEXT = 10_000
#: The columns of a request that has no error are never null.
OF_SUCCESS = ("t_sent", "t_first", "t_last", "t_end", "completion_tokens")
#: Each moment and the one that cannot come after it; of a request that failed, an answer may be too early.
ORDER = (("t_sent", "t_sched"), ("t_first", "t_sent"), ("t_last", "t_first"), ("t_end", "t_last"))
#: A moment may be stamped this much before the one that it follows: clocks of two processes differ.
ORDER_S = 1.0
_NULL_IN_FAILURES = {*OF_SUCCESS, "error"}


def fault_of(table: pa.Table) -> str | None:
    """Return what is wrong with a table of `records/columns.py`, in one sentence with the row's number.

    None where nothing is.
    """
    return next(_faults(table), None)


def without_hidden(table: pa.Table) -> pa.Table:
    """Return the table with every text `visible`."""
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
        if pa.types.is_string(field.type):
            wrong = pc.greater(pc.utf8_length(column), MAX_TEXT)
            yield from _where(wrong, f"{field.name} has over {MAX_TEXT:,} characters")
        if field.name in NEEDED - _NULL_IN_FAILURES:
            yield from _where(pc.is_null(column), f"{field.name} is missing")
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            low, high = limits(field.name) if pa.types.is_floating(field.type) else (0, None)
            low = 1 if field.name == "tokens" else low
            wrong = pc.invert(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high or inf)))
            if pc.any(wrong).as_py():
                value = column[pc.index(wrong, True).as_py()].as_py()
                ends = f"from {low:g}" + ("" if high is None else f" to {high:g}")
                yield from _where(wrong, f"{field.name} is {value}, which is not {ends},")
    if "error" not in table.column_names:
        return
    success = pc.is_null(table["error"])
    for name in OF_SUCCESS:
        wrong = pc.and_(success, pc.is_null(table[name]))
        if name == "t_first":  # an API that gives all tokens at once does not tell when the first one came
            wrong = pc.and_(wrong, pc.greater(table["chunks"], 0))
        yield from _where(wrong, f"{name} of a request without an error is missing")
    for after, before in ORDER:
        wrong = pc.less(table[after], pc.subtract(table[before], ORDER_S))
        yield from _where(pc.and_(success, wrong), f"{after} is before {before}")
    keys = table.select(["cell", "request"])
    if keys.group_by(["cell", "request"]).aggregate([]).num_rows < len(keys):
        yield "a request of a cell is there twice"
    for load in pc.unique(table["load"]).to_pylist():
        try:
            parse_load(load)
        except ValidationError:
            yield f"load is {load!r}, which is not a load"


def limits(name: str) -> tuple[float, float]:
    """Return the least and the greatest number that a column of floats may hold."""
    if name in COUNTED:
        return 0.0, sys.float_info.max
    is_moment = name == "t" or name.startswith("t_") or name == "session_start"
    return (EARLIEST_S if is_moment else 0.0, LATEST_S * (1e3 if name.endswith("_ms") else 1))


def _where(wrong: Any, fault: str) -> Iterator[str]:
    """Yield a fault with its first row, if there is one."""
    if pc.any(wrong).as_py():
        yield f"{fault} in row {pc.index(wrong, True).as_py()}"
