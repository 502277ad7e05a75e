"""What the machine takes before a load."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.telemetry import idle_power
from harness.telemetry.gpu import available

pytestmark = pytest.mark.skipif(available(), reason="the GPUs' counters come before the processors'")


def test_watts_are_joules_over_the_time_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("1000000")
    now = [50.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        (zone / "energy_uj").write_text("31000000")

    monkeypatch.setattr(idle_power, "sleep", sleep)
    monkeypatch.setattr(idle_power, "monotonic", lambda: now[0])
    assert idle_power.idle_watts(2.0, tmp_path) == pytest.approx(15.0)


def test_without_a_counter_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(idle_power, "sleep")
    assert idle_power.idle_watts(2.0, tmp_path) is None
