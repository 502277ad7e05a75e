"""Profiles of an engine: their end, and ranges of front ends in traces as torch writes them."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from roseinfer.engine.profile_trace import add_ranges
from roseinfer.engine.profiler import StepProfiler
from roseinfer.ipc.messages import MAX_PROFILE_STEPS, Record, Recorded
from roseinfer.tracing.spans import SpanRecorder


def test_a_profile_ends_by_itself(tmp_path: Path) -> None:
    """After its time, whatever steps it has left: its events are in memory until then."""
    sent: list[Record] = []
    ranks: list[str | None] = []
    profiles = StepProfiler(1, sent.append, lambda path, **how: ranks.append(path))
    for seconds, ends in ((60.0, False), (0.0, True)):
        profiles.start(str(tmp_path), MAX_PROFILE_STEPS, with_stack=False, seconds=seconds)
        profiles.step()
        assert profiles.writing is ends
        profiles.stop()
        profiles.add_ranges(Recorded(1, ()))
        assert not profiles.writing and profiles.failure is None
    assert sent == [Record(), Record(end=True)] * 2
    (trace,) = tmp_path.iterdir()
    assert ranks == [str(trace), None] * 2  # other processes profile the same steps


def record() -> Recorded:
    """One range of this thread, and one of another."""
    spans = SpanRecorder()
    with spans("before"):
        pass
    spans.record(0)

    def here() -> None:
        with spans("roseinfer.tokenize"):
            pass

    other = threading.Thread(target=here)
    other.start()
    other.join()
    here()
    recorded = Recorded(os.getpid(), spans.take(0))
    assert spans("after") is spans("again") and spans.take(0) == ()
    return recorded


def test_on_the_clock_of_the_trace(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function("first"):
            torch.ones(3)
        torch.randn(500, 500).sum()  # time on either side, which clocks may differ by
        recorded = record()
        torch.randn(500, 500).sum()
        with torch.profiler.record_function("last"):
            torch.ones(3)
    profiler.export_chrome_trace(str(tmp_path / "own.json"))
    add_ranges(tmp_path / "own.json", tmp_path / "all.json.gz", [recorded])
    events = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))["traceEvents"]
    marked = [event for event in events if event.get("cat") == "user_annotation"]
    first, other, here, last = sorted(marked, key=lambda event: event["ts"])
    assert [first["name"], other["name"], here["name"], last["name"]] == [
        "first", "roseinfer.tokenize", "roseinfer.tokenize", "last",
    ]  # fmt: skip
    assert (here["pid"], here["tid"]) == (first["pid"], first["tid"]) and other["tid"] != here["tid"]
    assert len(events) == 3 + len(json.loads((tmp_path / "own.json").read_text())["traceEvents"])


def test_a_trace_without_times_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "own.json").write_text('{"traceEvents": [{}]}')
    add_ranges(tmp_path / "own.json", tmp_path / "all.json.gz", [record()])
    assert gzip.decompress((tmp_path / "all.json.gz").read_bytes()) == b'{"traceEvents": [{}]}'
