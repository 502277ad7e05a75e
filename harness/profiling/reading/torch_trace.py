"""Reads the trace of a torch profiler, event by event: a file of any size in the memory of its columns.

The format is Chrome's: `{…, "traceEvents": [{…}, …], …}`, plain or gzip. Python's own scanner takes one event
at a time from a window of the text.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from harness.profiling.reading.timeline import Column, Timeline, TraceError, numbering

_EVENTS = '"traceEvents"'
_GZIP = b"\x1f\x8b"


def read_torch_trace(path: Path) -> Timeline:
    """The spans of a trace.

    Raises:
        TraceError: not there, empty, not such a file, or it ends in the middle.
    """
    names, threads = numbering(), numbering()
    ops, calls, ranges, device = columns = [Column() for _ in range(4)]
    by_category = {
        "cpu_op": ops,
        "user_annotation": ranges,
        "cuda_runtime": calls,
        "cuda_driver": calls,
        "kernel": device,
        "gpu_memcpy": device,
        "gpu_memset": device,
    }
    try:
        for event in _events(path):
            column = by_category.get(event.get("cat", ""))
            if column is None or event["ph"] != "X":
                continue
            start = float(event["ts"])
            link = event.get("args", {}).get("correlation", -1)
            thread = threads[f"{event.get('pid')}/{event.get('tid')}"]
            column.add(names[event["name"]], start, start + float(event["dur"]), thread, link)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(path, f"an event is not like those of torch: {error!r}", "profile again") from None
    if not len(ops.start) and not len(device.start):
        raise TraceError(path, "it holds neither operators nor kernels", "profile again, under load")
    return Timeline(list(names), *(column.spans() for column in columns))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP
        with (
            gzip.open(path, "rt", encoding="utf-8", errors="replace")
            if packed
            else path.open(encoding="utf-8", errors="replace") as text
        ):
            yield from scan(path, text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, f"it is cut off or damaged: {error}", "profile again") from None
    except OSError as error:
        raise TraceError(path, f"it cannot be read: {error.strerror or error}", "profile again") from None


def scan(path: Path, text: TextIO, size: int = 1 << 22, longest: int = 1 << 25) -> Iterator[dict[str, Any]]:
    """Yield the elements of the list `traceEvents`, or of the list that the whole file is.

    Args:
        size: Characters read at once.
        longest: Characters that one element may have.
    """
    window, at = _find_list(path, text, size)
    decode = json.JSONDecoder(strict=False).raw_decode
    while True:
        while at < len(window) and window[at] in " \t\r\n,":
            at += 1
        if at < len(window) and window[at] == "]":
            return
        try:
            event, at = decode(window, at)
        except json.JSONDecodeError as error:
            more = text.read(size)
            if not more:
                raise TraceError(path, "it ends in the middle of an event", "profile again") from None
            if len(window) - at > longest:
                raise TraceError(path, f"it is not JSON: {error}", "profile again") from None
            window, at = window[at:] + more, 0
            continue
        yield event


def _find_list(path: Path, text: TextIO, size: int) -> tuple[str, int]:
    """A window of the text and where in it the first element of the list may begin."""
    window = text.read(size)
    if not window.strip():
        raise TraceError(path, "it is empty", "profile again")
    if window.lstrip()[0] == "[":
        return window, window.index("[") + 1
    while (key := window.find(_EVENTS)) < 0 or (bracket := window.find("[", key)) < 0:
        more = text.read(size)
        if not more:
            raise TraceError(path, "it has no traceEvents", "name the trace of a torch profiler")
        window = window[max(0, key if key >= 0 else len(window) - len(_EVENTS)) :] + more
    return window, bracket + 1
