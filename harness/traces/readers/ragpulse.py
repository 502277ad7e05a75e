"""RAGPulse (arXiv 2511.12979): JSON lines, whole seconds as text, sessions, ids of prompt components.

The components' lengths are in other files and differ, so they are not blocks: prompts are distinct.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from harness.traces import json_lines
from harness.traces.format import Format
from harness.traces.source import Source
from harness.traces.trace import Trace

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids", "session_id")
Seconds = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,15}(\.[0-9]+)?$")]


class Row(msgspec.Struct):
    """One request of a session."""

    timestamp: Seconds
    input_length: json_lines.Count
    output_length: json_lines.Count
    session_id: str


def read(source: Source) -> Trace:
    rows = json_lines.parse(source, Row)
    return Trace.build(
        source.path.stem,
        [float(row.timestamp) for row in rows],
        [row.input_length for row in rows],
        [row.output_length for row in rows],
        session=[row.session_id for row in rows],
        note="shared prompt components (passages, history) are not reproduced: every prompt is distinct",
    )


FORMAT = Format("ragpulse", "jsonl", FIELDS, read)
