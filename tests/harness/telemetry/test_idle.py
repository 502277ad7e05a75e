"""What the machine takes before a load."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.telemetry import gpu
from harness.telemetry.gpu import GpuReader, GpuReading, Idle, available, idle

without_gpu = pytest.mark.skipif(available(), reason="the GPUs' counters come before the processors'")


@without_gpu
def test_watts_are_joules_over_the_time_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("1000000")
    now = [50.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        (zone / "energy_uj").write_text("31000000")

    monkeypatch.setattr(gpu, "sleep", sleep)
    monkeypatch.setattr(gpu, "monotonic", lambda: now[0])
    found = idle(2.0, tmp_path)
    assert found.watts == pytest.approx(15.0) and found.gpus_busy == ()


@without_gpu
def test_without_a_counter_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gpu, "sleep")
    assert idle(2.0, tmp_path) == Idle()


def test_a_gpu_that_others_use_is_seen_at_the_end_of_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its beginning it may still be the engine before."""
    shares = iter([1.0, 0.63])
    monkeypatch.setattr(GpuReader, "read", lambda self: (GpuReading(1980, 40, 300, None),))
    monkeypatch.setattr(GpuReader, "busy", lambda self: (next(shares),))
    assert idle(0.0, tmp_path) == Idle(None, (0.63,))
