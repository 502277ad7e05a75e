"""When a profile ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from roseinfer.engine import profiler
from roseinfer.engine.profiler import StepProfiler
from roseinfer.ipc.messages import MAX_PROFILE_STEPS, Record, Recorded


def test_a_profile_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, whatever steps it has left: its events are in memory until then."""
    sent: list[Record] = []
    ranks: list[str | None] = []
    profiles = StepProfiler(1, sent.append, lambda path, **how: ranks.append(path))
    for seconds, ends in ((60.0, False), (0.0, True)):
        monkeypatch.setattr(profiler, "MAX_PROFILE_SECONDS", seconds)
        profiles.start(str(tmp_path), MAX_PROFILE_STEPS, with_stack=False)
        profiles.step()
        assert profiles.writing is ends
        profiles.stop()
        profiles.add_ranges(Recorded(1, ()))
        assert not profiles.writing and profiles.failure is None
    assert sent == [Record(), Record(end=True)] * 2
    (trace,) = tmp_path.iterdir()
    assert ranks == [str(trace), None] * 2  # other processes profile the same steps
