"""What a trace format is.

A package adds one of its own through an entry point of the group `rosebench.traces` that names a `Format`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness.traces.source import Source
from harness.traces.trace import Trace


@dataclass(frozen=True)
class Format:
    """A file format: recognised by the columns of its header or the keys of its first object."""

    name: str
    kind: Literal["csv", "jsonl"]
    fields: tuple[str, ...]
    read: Callable[[Source], Trace]
