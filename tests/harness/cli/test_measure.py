"""The machine is looked at before anything is measured."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from harness.cli.measure import look_at_machine
from harness.cli.progress import Display
from harness.cli.terminal import Terminal
from harness.errors import BusyMachineError
from harness.telemetry.machine import Busy


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
