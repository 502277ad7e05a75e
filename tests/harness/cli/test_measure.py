"""The machine is looked at before anything is measured."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from harness.cli.measure import look_at_machine
from harness.cli.progress import Display
from harness.cli.terminal import Terminal
from harness.errors import BusyMachineError
from harness.telemetry.machine import Busy

#: Options of a run for which nothing has to be there.
USUAL = ("--base-url", "http://127.0.0.1:9", "--max-model-len", "1024", "--n", "2", "--no-calibrate")


@pytest.mark.parametrize(
    ("looks", "refused", "said"),
    [
        ([0.1], False, False),
        ([0.5], False, True),
        ([1.9, 0.1], False, False),  # a burst that is over
        ([1.9, 1.5], True, False),
    ],
)
def test_beside_other_programs_nothing_is_measured_unasked(looks, refused, said, monkeypatch, capsys):
    readings = iter(looks)
    busy = lambda seconds: Busy(next(readings), 2, MappingProxyType({"xz": 0.24}))  # noqa: E731
    monkeypatch.setattr("harness.cli.measure.busy_programs", busy)
    display = Display(Terminal(stderr=True))
    if refused:
        with pytest.raises(BusyMachineError, match=r"2 cores, other programs use 1\.5 \(xz 24 %\)") as raised:
            look_at_machine(display)
        assert "--anyway" in raised.value.hint
    else:
        look_at_machine(display)
    assert ("xz 24 %" in capsys.readouterr().err) == said
    assert next(readings, None) is None


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BENCH_ANYWAY")
    monkeypatch.setattr(
        "harness.cli.measure.busy_programs", lambda seconds: Busy(1.9, 2, MappingProxyType({"xz": 1.9}))
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("online", "--engines", "nope"), "nope"),
        (("online", "--engines", "nope", "--profile-only"), "nope"),
        (("online", *USUAL, "--trace", "nope.csv"), "nope.csv"),
        (("online", *USUAL, "--out", "/dev/null"), "/dev/null is not a folder"),
        (("online", *USUAL, "--price", "nope.yaml"), "nope.yaml"),
        (("online", *USUAL, "--serve", "99999"), "--serve 99999"),
        (("online", "--resume", "nope"), "nope"),
        (("cancel", *USUAL[:4], "--input-len", "2000"), "tokens exceed the context of 1024"),
    ],
)
def test_a_fault_of_the_command_comes_before_a_busy_machine(
    bench: Any, tmp_path: Path, arguments: tuple[str, ...], fault: str
) -> None:
    done = bench(*arguments)
    assert done.code == 2 and fault in done.err.splitlines()[-2] and not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize("arguments", [("online", *USUAL), ("cancel", *USUAL[:4])])
def test_nothing_begins_on_a_busy_machine(bench: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = bench(*arguments, "--out", "runs")
    assert done.code == BusyMachineError.exit_code and "--anyway" in done.err.splitlines()[-1]
    assert not [*(tmp_path / "runs").iterdir()]


@pytest.mark.usefixtures("busy_machine")
def test_a_busy_machine_calibrates_no_client(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cluster.this_machine.load_calibration", lambda: None)
    done = bench("online", *USUAL[:-1])
    assert done.code == BusyMachineError.exit_code and "calibrating" not in done.err
