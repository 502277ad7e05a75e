"""The formats that can be read. A new one is a module with `FIELDS` and `read`, and a line in `FORMATS`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import UsageError
from harness.traces.readers import azure, burstgpt, lengths, mooncake, project, qwen, ragpulse
from harness.traces.source import Source
from harness.traces.trace import Trace


@dataclass(frozen=True)
class Format:
    """A file format: recognised by the columns of its header or the keys of its first object."""

    name: str
    kind: Literal["csv", "jsonl"]
    fields: tuple[str, ...]
    read: Callable[[Source], Trace]


FORMATS = (
    Format("azure", "csv", azure.FIELDS, azure.read),
    Format("burstgpt", "csv", burstgpt.FIELDS, burstgpt.read),
    Format("lengths", "csv", lengths.FIELDS, lengths.read),
    Format("mooncake", "jsonl", mooncake.FIELDS, mooncake.read),
    Format("qwen", "jsonl", qwen.FIELDS, qwen.read),
    Format("ragpulse", "jsonl", ragpulse.FIELDS, ragpulse.read),
    Format("rosebench", "csv", project.FIELDS, project.read),
)


def detect(source: Source) -> Format:
    """The format with the most of its fields in the file, all of them present. Raises UsageError for none."""
    present = set(source.fields)
    fitting = [it for it in FORMATS if it.kind == source.kind and present.issuperset(it.fields)]
    if fitting:
        return max(fitting, key=lambda it: len(it.fields))
    similar = [it for it in FORMATS if it.kind == source.kind and present.intersection(it.fields)]
    hint = ""
    if similar:
        closest = max(similar, key=lambda it: len(present.intersection(it.fields)) / len(it.fields))
        missing = ", ".join(repr(field) for field in closest.fields if field not in present)
        hint = f"; the closest, {closest.name}, also needs {missing}"
    what = "columns" if source.kind == "csv" else "keys"
    found = textwrap.shorten(", ".join(map(repr, source.fields)), 200)
    raise UsageError(
        f"{source.path}, line {source.first_line}: no trace format has the {what} {found}{hint}",
        f"give one of the formats {', '.join(it.name for it in FORMATS)}",
    )


def read(source: Source) -> Trace:
    """The requests of a file in any known format, with the digest of the file. Raises UsageError."""
    trace = detect(source).read(source)
    return replace(trace, origin=trace.origin or str(source.path), sha256=source.sha256)
