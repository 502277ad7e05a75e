"""Adds named ranges of other processes to a trace of torch.profiler."""

from __future__ import annotations

import gzip
import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from roseinfer.ipc.messages import Recorded

log = logging.getLogger(__name__)

#: Bytes that torch writes before the events, at most.
_HEAD = 1 << 20
_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')
_EVENTS = re.compile(rb'"traceEvents": \[')


def add_ranges(trace: Path, out: Path, processes: Sequence[Recorded]) -> None:
    """Write `trace`, JSON of torch.profiler, to `out`, gzip, with the ranges of `processes` added.

    Times in a trace are us since its baseTimeNanoseconds, which counts from the epoch (Kineto's
    output_json.cpp). A trace without it is written unchanged.
    """
    with trace.open("rb") as source, gzip.open(out, "wb", compresslevel=5) as target:
        head = source.read(_HEAD)
        base, events = _BASE.search(head), _EVENTS.search(head)
        if base is None or events is None:
            log.warning("the trace has no base time: the ranges of front ends are left out")
            target.write(head)
        else:
            target.write(head[: events.end()])
            for process in processes:
                for event in _events(process, int(base[1])):
                    target.write(msgspec.json.encode(event) + b",\n")
            target.write(head[events.end() :])
        shutil.copyfileobj(source, target, 1 << 20)


def _events(process: Recorded, base: int) -> Iterator[dict[str, object]]:
    """In Chrome's trace format; ranges are of category `user_annotation`, as torch's own."""
    pid = process.pid
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "front end"}}
    for span in process.spans:
        times = {"ts": (span.start - base) / 1e3, "dur": (span.end - span.start) / 1e3}
        name, thread = span.name, span.thread
        yield {"ph": "X", "cat": "user_annotation", "name": name, "pid": pid, "tid": thread, **times}
