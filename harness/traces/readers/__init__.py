"""The formats that can be read: a module each, and what installed packages add."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint

from harness.errors import UsageError
from harness.plugins import describe, find_plugins, load_plugin
from harness.traces.format import Format
from harness.traces.readers.project import FIELDS
from harness.traces.source import Source
from harness.traces.trace import Trace

GROUP = "rosebench.traces"


@cache
def formats() -> tuple[Format, ...]:
    """Every format by name. Raises UsageError when a package adds something that is no
    format."""
    return tuple(_load(point) for point in find_plugins(GROUP).values())


def _load(point: EntryPoint) -> Format:
    found = load_plugin(point)
    if not isinstance(found, Format):
        raise UsageError(
            f"{describe(point)} is not a harness.traces.format.Format", "correct or uninstall its package"
        )
    return found


def detect(source: Source) -> Format:
    """The format with the most of its fields in the file, all of them present. Raises UsageError for none."""
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
    found = textwrap.shorten(", ".join(map(repr, source.fields)), 200)
    raise UsageError(
        f"{source.path}, line {source.first_line}: no trace format has the {what} {found}{hint}",
        f"give a CSV file with the columns {','.join(FIELDS)}, or one of the formats "
        f"{', '.join(it.name for it in formats())}",
    )


def read(source: Source) -> Trace:
    """The requests of a file in any known format, with the digest of the file. Raises UsageError."""
    trace = detect(source).read(source)
    return replace(trace, origin=trace.origin or str(source.path), sha256=source.sha256)
