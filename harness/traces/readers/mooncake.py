"""Mooncake traces (Qin et al., FAST 2025): JSON lines, milliseconds, hashes of 512-token blocks."""

from __future__ import annotations

import msgspec

from harness.traces import json_lines
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
BLOCK_SIZE = 512


class Row(msgspec.Struct):
    """One request; the last of its blocks is partly filled."""

    timestamp: json_lines.Moment
    input_length: json_lines.Count
    output_length: json_lines.Count
    hash_ids: tuple[int, ...]


def read(source: Source) -> Trace:
    rows = json_lines.parse(source, Row)
    return Trace.build(
        source.path.stem,
        [row.timestamp / 1000 for row in rows],
        [row.input_length for row in rows],
        [row.output_length for row in rows],
        blocks=tuple(row.hash_ids for row in rows),
        block_size=BLOCK_SIZE,
    )


FORMAT = Format("mooncake", "jsonl", FIELDS, read)
