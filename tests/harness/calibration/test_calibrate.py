"""The calibration of the client: its ceilings, trials of a rate, and the stored file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.calibration import calibrate
from harness.calibration.calibrate import (
    MOST_LAG_S,
    UNPINNED,
    Times,
    Trial,
    load,
    measure_accuracy,
    search,
    this_machine,
    try_chunks,
    try_requests,
    usual_p99,
)
from harness.calibration.mock_process import ask, mock_server
from harness.engines.placement import physical_cores, split
from harness.errors import BenchError
from harness.files import write_json
from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import run_load
from harness.schema.machines import Calibration, ClientCeiling, MachineKey


class Machine:
    """A client that takes `client` a second and a server that gives `server` a second."""

    def __init__(self, client: float, server: float = 1e9) -> None:
        self.client, self.server = client, server
        self.tried: list[float] = []

    def __call__(self, rate: float) -> Trial:
        self.tried.append(rate)
        reached = min(rate, self.server)
        if reached > self.client:
            return Trial(rate, self.client, 1.0, "client")
        return Trial(rate, reached, reached / self.client, "server" if rate > self.server else None)


@given(client=st.floats(100, 1e6), start=st.floats(100, 1e5))
def test_what_is_found_holds_and_is_near_the_limit(client: float, start: float) -> None:
    machine = Machine(client)
    best, limit = search(machine, start, refinements=4)
    assert limit == "client"
    assert 0.75 * client <= best.reached <= client
    assert len(machine.tried) <= 2 * 16


def test_where_the_server_gives_way_the_client_is_credited_with_what_came() -> None:
    best, limit = search(Machine(client=1e6, server=5e4), 2e4, refinements=3)
    assert (best.reached, limit) == (5e4, "server")


def test_a_ceiling_is_near_the_limit_however_far_the_last_step_went_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that uses little CPU until it sends late: until then the rate grows by the largest step."""

    def client(most: float) -> Callable[..., Trial]:
        def attempt(rate: float, *_: Any) -> Trial:
            return Trial(rate, min(rate, most), 0.1, "client" if rate > most else None)

        return attempt

    monkeypatch.setattr(calibrate, "try_chunks", client(119_000))
    monkeypatch.setattr(calibrate, "try_requests", client(2_990))
    cpus = split(physical_cores())
    found = calibrate.measure_ceiling(processes=1, seconds=0.5, cpus=cpus, start=(40_000, 1_000))
    assert 0.75 * 119_000 < found.chunks_per_s < 119_000
    assert 0.75 * 2_990 < found.requests_per_s < 2_990


def test_more_refinements_come_nearer() -> None:
    found = [search(Machine(1e5), 3e4, refinements)[0].reached for refinements in (0, 2, 6)]
    assert found == sorted(found) and found[-1] > 0.98e5


def test_a_trial_that_something_came_between_is_repeated() -> None:
    machine, spoilt = Machine(1e5), []

    def attempt(rate: float) -> Trial:
        if not spoilt:
            spoilt.append(rate)
            return Trial(rate, 0.0, 0.1, "client")
        return machine(rate)

    assert search(attempt, 4e4, refinements=4)[0].reached > 0.9e5


@given(begin=st.integers(0, 900), length=st.integers(1, 100))
def test_a_pause_of_the_machine_does_not_make_a_client_slow(begin: int, length: int) -> None:
    """While it lasts, each request is the later the sooner it was due."""
    lags = np.zeros(1000)
    lags[begin : begin + length] = 1e-3 * np.arange(length, 0, -1)
    assert usual_p99(lags) <= MOST_LAG_S


@given(rate=st.floats(1.02, 10))
def test_a_client_that_falls_behind_is_slow(rate: float) -> None:
    """It is to send `rate` times as many requests as it can, 1,000 a second."""
    sent, due = np.arange(1000) / 1000, np.arange(1000) / (1000 * rate)
    assert usual_p99(sent - due) > MOST_LAG_S


def test_a_client_that_keeps_up_with_nothing_is_an_error() -> None:
    with pytest.raises(BenchError, match="keeps up with no rate"):
        search(lambda rate: Trial(rate, 0.0, 1.0, "client"), 1e4, refinements=2)


pytestmark = pytest.mark.integration


@pytest.mark.parametrize("trial", [try_chunks, try_requests])
def test_a_trial_says_what_was_reached(trial: object) -> None:
    found = (try_chunks if trial is try_chunks else try_requests)(500.0, 0.1, 2, UNPINNED)
    assert found.offered == 500.0
    assert found.reached > 0
    assert 0 < found.busy < 2


def test_times_are_those_of_the_definitions() -> None:
    times = Times()
    times.add(1.0, [(1.5, 2), (1.7, 4), (1.8, 1)])
    assert times.ttft == pytest.approx([500])
    assert times.e2e == pytest.approx([800])
    assert times.tpot == pytest.approx([300 / 5])
    assert times.itl == pytest.approx([50, 50, 50, 50, 100])


def test_both_sides_of_every_request_are_compared() -> None:
    behaviour = {"ttft_ms": 4.0, "itl_ms": 1.0, "tokens_per_chunk": 3, "empty_first": True}
    found = measure_accuracy(processes=2, concurrency=4, requests=10, tokens=8, behaviour=behaviour)
    for times in (found.measured, found.true):
        assert (len(times.ttft), len(times.e2e), len(times.tpot)) == (10, 10, 10)
        assert min(times.ttft) >= 4.0
    # Chunks that are read at once, as on a busy machine, have one time.
    assert 0 < len(found.itl_error) == len(found.measured.itl) <= len(found.true.itl) == 10 * 5
    error = found.error(2, 4)
    assert (error.processes, error.concurrency, error.requests) == (2, 4, 10)
    assert error.ttft_error_ms.p99 >= error.ttft_error_ms.p50
    assert error.submit_lag_ms.p50 >= 0


def test_a_failed_request_is_an_error() -> None:
    with pytest.raises(BenchError, match="http_503"):
        measure_accuracy(processes=1, concurrency=1, requests=1, tokens=4, behaviour={"status": 503})


def test_gaps_are_kept_however_late_the_server_is() -> None:
    with mock_server("--ttft-ms", "0", "--itl-ms", "2", "--keep-gaps") as mock:
        run_load(LoadPlan(mock.target, [ask(i, 20, {}, None) for i in range(50)], concurrency=50))
        served_requests = mock.served_requests()
    assert len(served_requests) == 50
    for served in served_requests.values():
        stamps = [t for t, _ in served.writes]
        assert min(b - a for a, b in pairwise(stamps)) >= 0.002 - 1e-9


def test_the_mock_server_ends_with_its_parent() -> None:
    command = [sys.executable, "-m", "harness.mock_server", "--with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline().startswith(b"port ")
        process.stdin.close()
        assert process.wait(timeout=60) == 0


def test_a_mock_server_that_does_not_start_is_an_error() -> None:
    with pytest.raises(BenchError, match="ended with code 2"), mock_server("--no-such-option"):
        pass


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


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in an empty cache."""
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "calibration.json"


def test_what_was_saved_is_loaded(file: Path) -> None:
    kept = calibration(this_machine(), (1, 1e5))
    write_json(file, kept)
    assert load() == kept


@pytest.mark.parametrize(
    "change", [{"cpu": "x"}, {"cores": 0}, {"kernel": "x"}, {"python": "x"}, {"uvloop": "x"}]
)
def test_another_machine_has_none(file: Path, change: dict[str, object]) -> None:
    write_json(file, calibration(this_machine().model_copy(update=change), (1, 1e5)))
    assert load() is None


@pytest.mark.parametrize("content", ["", "{", "{}", '{"machine": 1}'])
def test_a_damaged_file_is_none(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    assert load() is None


def test_no_file_is_none(file: Path) -> None:
    assert load() is None


def test_the_ceiling_is_that_of_as_many_processes_or_fewer() -> None:
    kept = calibration(this_machine(), (1, 100.0), (4, 80.0))
    assert [kept.ceiling(n).chunks_per_s for n in (1, 2, 4, 9)] == [100.0, 100.0, 80.0, 80.0]
    assert calibration(this_machine(), (2, 90.0)).ceiling(1).chunks_per_s == 90.0
