"""Which nodes of a cluster measure their client, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from harness.cluster.ray_cluster import RayMachines
from harness.schema.machines import Calibration
from tests.harness.measured import calibration_of


class Node:
    """Of a machine whose nodes share what is `stored`; measuring gives `rate`."""

    def __init__(self, name: str, machine: str, stored: dict[str, Calibration], rate: float) -> None:
        self.name, self.facts = name, SimpleNamespace(machine=machine)
        self._stored, self._rate, self.measured = stored, rate, 0

    def begin(self, method: str, what: Callable[..., Any], *given: Any) -> None:
        self.measured += 1
        self._stored[self.facts.machine] = calibration_of({1: (self._rate, 1.0)})

    def result(self, reference: None) -> None:
        pass

    def call(self, method: str, what: Callable[..., Any], measure: bool, report: Any) -> Calibration | None:
        assert not measure
        return self._stored.get(self.facts.machine)


@pytest.mark.parametrize(
    ("stored", "asked", "said", "measured", "slowest"),
    [
        ({"x": 5.0, "y": 7.0}, True, [], [0, 0, 0], 5.0),
        ({"x": 5.0}, True, ["ceiling and timing error of the client on c"], [0, 0, 1], 3.0),
        ({}, True, ["ceiling and timing error of the client on a, b, c"], [0, 1, 1], 2.0),
        ({"x": 5.0}, False, [], [0, 0, 0], None),
    ],
)
def test_each_machine_measures_once_what_it_has_not_stored(stored, asked, said, measured, slowest):
    known = {machine: calibration_of({1: (rate, 1.0)}) for machine, rate in stored.items()}
    nodes = [Node(*at, known, rate) for at, rate in ((("a", "x"), 1.0), (("b", "x"), 2.0), (("c", "y"), 3.0))]
    machines = RayMachines.__new__(RayMachines)
    machines._sides, machines.hosts = [(None, nodes[:2]), (None, nodes)], []  # type: ignore[list-item]
    reported: list[str] = []
    settings: Any = SimpleNamespace(calibrate=asked)
    found = machines.calibration(settings, reported.append)
    assert reported == said and [node.measured for node in nodes] == measured
    assert (found and found.ceiling(1).chunks_per_s) == slowest
