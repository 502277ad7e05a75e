"""Trace formats: this project's, and those that installed packages add.

A package adds one of its own through an entry point of the group `rosebench.traces` that names a `Format`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Literal

from harness.errors import UsageError
from harness.plugins import describe, find_plugins, load_plugin
from harness.schema.load import LATEST_S
from harness.traces.source import Source
from harness.traces.trace import Trace

GROUP = "rosebench.traces"

_PROJECT = "arrival_s,input_tokens,output_tokens"


@dataclass(frozen=True)
class Format:
    """A file format: recognised by the columns of its header or the keys of its first object."""

    name: str
    kind: Literal["csv", "jsonl"]
    fields: tuple[str, ...]
    read: Callable[[Source], Trace]


@cache
def formats() -> tuple[Format, ...]:
    """Return every format, by name.

    Raises:
        UsageError: A package adds something that is no format.
    """
    return tuple(_load(point) for point in find_plugins(GROUP).values())


def _load(point: EntryPoint) -> Format:
    plugin = load_plugin(point)
    if not isinstance(plugin, Format):
        raise UsageError(
            f"{describe(point)} is not a harness.traces.format.Format", "correct or uninstall its package"
        )
    return plugin


def read_trace(source: Source) -> Trace:
    """Return the requests of a file in any format, with the digest of the file.

    Raises:
        UsageError: The file has no such format, or a line of it is malformed.
    """
    trace = detect(source).read(source)
    if len(trace) and trace.arrival_s[-1] > LATEST_S:
        raise UsageError(
            f"{source.path}: the last request arrives {trace.arrival_s[-1]:g} s after the first",
            f"give a trace of at most {LATEST_S:g} s",
        )
    return replace(trace, origin=trace.origin or str(source.path), sha256=source.sha256)


def detect(source: Source) -> Format:
    """Return the format with the most of its fields in the file, all of them present.

    Raises:
        UsageError: There is none.
    """
    present = set(source.fields)
    fitting = [it for it in formats() if it.kind == source.kind and present.issuperset(it.fields)]
    if fitting:
        return max(fitting, key=lambda it: len(it.fields))
    similar = [it for it in formats() if it.kind == source.kind and present.intersection(it.fields)]
    hint = ""
    if similar:
        closest = max(similar, key=lambda it: len(present.intersection(it.fields)) / len(it.fields))
        missing = ", ".join(repr(field) for field in closest.fields if field not in present)
        hint = f"; the closest, {closest.name}, also needs {missing}"
    what = "columns" if source.kind == "csv" else "keys"
    names = textwrap.shorten(", ".join(map(repr, source.fields)), 200)
    raise UsageError(
        f"{source.path}, line {source.first_line}: no trace format has the {what} {names}{hint}",
        f"give a CSV file with the columns {_PROJECT}, or one of the formats "
        f"{', '.join(it.name for it in formats())}",
    )
