"""What a calibration file holds, and for which machine it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.calibration.calibrate import load, save, this_machine
from harness.schema.machines import Calibration, ClientCeiling, MachineKey


def calibration(machine: MachineKey, *ceilings: tuple[int, float]) -> Calibration:
    return Calibration(
        machine=machine,
        created="2026-01-01T00:00:00+00:00",
        quick=True,
        ceilings=[
            ClientCeiling(
                processes=processes,
                chunks_per_s=chunks,
                chunks_per_cpu_s=chunks,
                requests_per_s=1e3,
                limit="client",
            )
            for processes, chunks in ceilings
        ],
        errors=[],
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    kept = calibration(this_machine(), (1, 1e5))
    save(kept, tmp_path / "cache" / "calibration.json")
    assert load(tmp_path / "cache" / "calibration.json") == kept


@pytest.mark.parametrize(
    "change", [{"cpu": "x"}, {"cores": 0}, {"kernel": "x"}, {"python": "x"}, {"uvloop": "x"}]
)
def test_another_machine_has_none(tmp_path: Path, change: dict[str, object]) -> None:
    save(calibration(this_machine().model_copy(update=change), (1, 1e5)), tmp_path / "c.json")
    assert load(tmp_path / "c.json") is None


@pytest.mark.parametrize("content", ["", "{", "{}", '{"machine": 1}'])
def test_a_damaged_file_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "c.json").write_text(content)
    assert load(tmp_path / "c.json") is None


def test_no_file_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "c.json") is None


def test_the_ceiling_is_that_of_as_many_processes_or_fewer() -> None:
    kept = calibration(this_machine(), (1, 100.0), (4, 80.0))
    assert [kept.ceiling(n).chunks_per_s for n in (1, 2, 4, 9)] == [100.0, 100.0, 80.0, 80.0]
    assert calibration(this_machine(), (2, 90.0)).ceiling(1).chunks_per_s == 90.0
