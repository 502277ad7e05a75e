"""Trace formats that are JSON lines: Mooncake, Qwen-Bailian and RAGPulse.

Mooncake (Qin et al., FAST 2025) has milliseconds and hashes of blocks of 512 tokens, the last partly filled.
Qwen-Bailian (Wang et al., ATC 2025) has seconds, turns of chats, and hashes of blocks of 16 tokens. RAGPulse
(arXiv 2511.12979) has whole seconds as text, sessions, and ids of prompt components, whose lengths are in
other files and differ, so they are not blocks: prompts are distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

Row = TypeVar("Row", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]
Moment = Annotated[float, msgspec.Meta(ge=0)]
MomentText = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,15}(\.[0-9]+)?$")]


class _Row(msgspec.Struct):
    input_length: Count
    output_length: Count


class _MooncakeRow(_Row):
    timestamp: Moment
    hash_ids: tuple[int, ...]


class _QwenRow(_MooncakeRow):
    """One turn of a chat; `parent_chat_id` is the turn before it, -1 for the first."""

    chat_id: int
    parent_chat_id: int


class _RagPulseRow(_Row):
    timestamp: MomentText
    session_id: str


def parse(source: Source, row: type[Row]) -> list[Row]:
    """Parse every line as a `row`; unknown keys are ignored. Raises UsageError for the first bad line."""
    decoder = msgspec.json.Decoder(row)
    rows: list[Row] = []
    for number, line in enumerate(source.body.split(b"\n"), start=source.first_line):
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise source.error(number, str(error)) from None
    return rows


def _trace(source: Source, rows: Sequence[_Row], arrival_s: list[float], **fields: Any) -> Trace:
    inputs, outputs = [row.input_length for row in rows], [row.output_length for row in rows]
    return Trace.build(source.path.stem, arrival_s, inputs, outputs, **fields)


def _shared(rows: Sequence[_MooncakeRow], block_size: int) -> dict[str, Any]:
    """Return the fields of a trace whose prompts share blocks of so many tokens."""
    return {"blocks": tuple(row.hash_ids for row in rows), "block_size": block_size}


def read_mooncake(source: Source) -> Trace:
    """Read a Mooncake trace."""
    rows = parse(source, _MooncakeRow)
    return _trace(source, rows, [row.timestamp / 1000 for row in rows], **_shared(rows, 512))


def read_qwen(source: Source) -> Trace:
    """Read a Qwen-Bailian trace. A turn whose parent is missing, or comes later, starts a chat."""
    rows = parse(source, _QwenRow)
    first: dict[int, int] = {}
    for row in rows:
        first[row.chat_id] = first.get(row.parent_chat_id, row.chat_id)
    chats = [str(first[row.chat_id]) for row in rows]
    return _trace(source, rows, [row.timestamp for row in rows], session=chats, **_shared(rows, 16))


def read_ragpulse(source: Source) -> Trace:
    """Read a RAGPulse trace."""
    rows = parse(source, _RagPulseRow)
    note = "shared prompt components (passages, history) are not reproduced: every prompt is distinct"
    sessions = [row.session_id for row in rows]
    return _trace(source, rows, [float(row.timestamp) for row in rows], session=sessions, note=note)


_LENGTHS = ("timestamp", "input_length", "output_length", "hash_ids")
MOONCAKE = Format("mooncake", "jsonl", _LENGTHS, read_mooncake)
QWEN = Format("qwen", "jsonl", (*_LENGTHS, "chat_id", "parent_chat_id", "type", "turn"), read_qwen)
RAGPULSE = Format("ragpulse", "jsonl", (*_LENGTHS, "session_id"), read_ragpulse)
