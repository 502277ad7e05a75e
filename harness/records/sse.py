"""Server-sent events, each with the stamp of the read that completed it.

https://html.spec.whatwg.org/multipage/server-sent-events.html, with LF or CRLF as the end of a line. A byte
order mark at the beginning is none of the first line.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import accumulate

_BLANK_LINE = re.compile(rb"\n\r?\n")


def read_events(pieces: Sequence[tuple[float, bytes]], *, complete: bool) -> Iterator[tuple[float, bytes]]:
    """Data of each event and when its last byte was read.

    Events are found in the whole body at once, so how the bytes were split into reads changes only stamps.
    Bytes after the last blank line are an event too where the body came to its end; else half of one.
    """
    body = b"".join(data for _, data in pieces)
    ends = list(accumulate(len(data) for _, data in pieces))
    start, piece = len(BOM_UTF8) if body.startswith(BOM_UTF8) else 0, 0
    for blank in _BLANK_LINE.finditer(body):
        end = blank.end()
        while ends[piece] < end:
            piece += 1
        if data := _data(body[start : blank.start()]):
            yield pieces[piece][0], data
        start = end
    if complete and (data := _data(body[start:])):
        yield pieces[-1][0], data


def _data(event: bytes) -> bytes:
    """The event's data lines, joined; empty for comments and other fields."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:].strip()
    lines = (line.rstrip(b"\r") for line in event.split(b"\n"))
    values = (line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    return b"\n".join(values).strip()
