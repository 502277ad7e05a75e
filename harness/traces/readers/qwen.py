"""Qwen-Bailian traces (Wang et al., ATC 2025): JSON lines, seconds, turns, hashes of 16-token blocks."""

from __future__ import annotations

import msgspec

from harness.traces import json_lines
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = (
    "chat_id",
    "parent_chat_id",
    "timestamp",
    "input_length",
    "output_length",
    "type",
    "turn",
    "hash_ids",
)
BLOCK_SIZE = 16


class Row(msgspec.Struct):
    """One turn of a chat; `parent_chat_id` is the turn before it, -1 for the first."""

    chat_id: int
    parent_chat_id: int
    timestamp: json_lines.Moment
    input_length: json_lines.Count
    output_length: json_lines.Count
    hash_ids: tuple[int, ...]


def read(source: Source) -> Trace:
    rows = json_lines.parse(source, Row)
    return Trace.build(
        source.path.stem,
        [row.timestamp for row in rows],
        [row.input_length for row in rows],
        [row.output_length for row in rows],
        session=_sessions(rows),
        blocks=tuple(row.hash_ids for row in rows),
        block_size=BLOCK_SIZE,
    )


def _sessions(rows: list[Row]) -> list[str]:
    """The first turn of each row's chat. A parent that is not in the trace, or comes later, starts a chat."""
    first: dict[int, int] = {}
    for row in rows:
        first[row.chat_id] = first.get(row.parent_chat_id, row.chat_id)
    return [str(first[row.chat_id]) for row in rows]


FORMAT = Format("qwen", "jsonl", FIELDS, read)
