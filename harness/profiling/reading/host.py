"""Self time of nested spans."""

from __future__ import annotations

import numpy as np

from harness.profiling.reading.timeline import Floats, Spans


def self_times(spans: Spans) -> Floats:
    """(S,) µs of each span without the spans directly inside it on the same thread.

    Spans are sorted by start, the enclosing one first. This is torch's self CPU time when `spans` holds the
    operators, ranges and runtime calls together.
    """
    own = spans.end - spans.start
    result = own.copy()
    for thread in np.unique(spans.thread):
        where = np.flatnonzero(spans.thread == thread)
        open_spans: list[int] = []
        for position, start in zip(where.tolist(), spans.start[where].tolist(), strict=True):
            while open_spans and spans.end[open_spans[-1]] <= start:
                open_spans.pop()
            if open_spans:
                result[open_spans[-1]] -= own[position]
            open_spans.append(position)
    return result


def exclusive(spans: Spans) -> Floats:
    """(S,) µs that each span adds to the union of all, in order of start: what overlaps counts once."""
    if not len(spans):
        return np.zeros(0)
    before = np.concatenate([[spans.start[0]], np.maximum.accumulate(spans.end)[:-1]])
    added: Floats = np.maximum(0.0, spans.end - np.maximum(spans.start, before))
    return added
