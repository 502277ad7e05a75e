"""Trials over real sockets, and what is read out of them. Nothing here depends on how fast the machine is."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from harness.calibration.accuracy import UNPINNED, Times, measure_accuracy
from harness.calibration.calibrate import try_chunks, try_requests
from harness.calibration.mock_process import ask, mock_server
from harness.errors import BenchError
from harness.loadgen.load_plan import LoadPlan
from harness.loadgen.run_load import run_load

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
    assert times.tpot == pytest.approx([300 / 6])
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
