"""Cells whose client processes have more to do than their share, and how many processes would do."""

from __future__ import annotations

import pytest

from harness.metrics.samples import split
from harness.metrics.summary import summarize
from harness.metrics.validity import clients_needed, invalid_reasons
from harness.schema.load import ClosedLoop, Load, TraceLoad, load_text
from harness.schema.machines import Calibration, ClientCeiling, MachineKey
from tests.harness.metrics.conftest import Tables, build

MACHINE = MachineKey(cpu="", cores=8, kernel="", python="", uvloop="")


def calibration(*ceilings: tuple[int, float, float]) -> Calibration:
    """Of processes, with what each can: chunks and requests a second."""
    found = [
        ClientCeiling(
            processes=processes,
            chunks_per_s=chunks,
            chunks_per_cpu_s=chunks,
            requests_per_s=requests,
            limit="client",
        )
        for processes, chunks, requests in ceilings
    ]
    return Calibration(machine=MACHINE, created="now", quick=True, ceilings=found, errors=[])


def sent(load: Load, *requests: int) -> Tables:
    """A second in which each client process sends so many requests of two chunks each."""
    return build(
        [
            {"load": load_text(load), "client": client, "chunks": [(0.5, 1), (0.999, 1)]}
            for client, count in enumerate(requests)
            for _ in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("load", "requests", "ceilings", "needed"),
    [
        (ClosedLoop(concurrency=64), [50, 50], [(1, 1e9, 100)], 0),
        (ClosedLoop(concurrency=64), [122, 122, 123, 123], [(1, 1e9, 200)], 5),
        (ClosedLoop(concurrency=64), [125, 125, 125, 125], [(1, 1e9, 200)], 6),  # 13 of 64 are too many
        (TraceLoad(scale=1), [125, 125, 125, 125], [(1, 1e9, 200)], 5),
        (ClosedLoop(concurrency=4), [130], [(1, 1e9, 200)], 2),
        (ClosedLoop(concurrency=4), [500], [(1, 1e9, 2)], 500),
        (ClosedLoop(concurrency=64), [90, 110], [(1, 1e9, 200)], 3),  # two would do if dealt evenly
        (ClosedLoop(concurrency=64), [50, 50], [(1, 100, 1e9)], 4),
        (ClosedLoop(concurrency=64), [50, 50], [(1, 150, 50)], 4),  # both: the more counts
        (ClosedLoop(concurrency=64), [60], [(1, 1e9, 200), (2, 1e9, 100)], 0),
        (ClosedLoop(concurrency=64), [60, 60], [(1, 1e9, 200), (2, 1e9, 100)], 3),
        (ClosedLoop(concurrency=64), [60, 60], [(1, 1e9, 200), (3, 1e9, 100)], 0),
    ],
)
def test_how_many_processes_would_do(
    load: Load, requests: list[int], ceilings: list[tuple[int, float, float]], needed: int
) -> None:
    """By the ceiling of as many processes as there were."""
    known = calibration(*ceilings)
    [group] = split(*sent(load, *requests))
    assert clients_needed(group.requests, load, known) == needed
    reasons = [reason for reason in invalid_reasons(group, known) if reason.kind == "busy"]
    assert bool(reasons) == bool(needed)
    assert max((reason.values["clients"] for reason in reasons), default=0) == needed
    assert not any(reason.kind == "busy" for reason in invalid_reasons(group))
    assert [s.clients_needed for s in summarize(*sent(load, *requests), calibration=known)] == [
        needed or None
    ] * 2
