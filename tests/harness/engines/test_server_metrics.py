"""What a server says of itself over time."""

from __future__ import annotations

import threading
import time

import pandas as pd
import pytest

from harness.engines.prometheus import parse_samples
from harness.engines.registry import ENGINES
from harness.engines.server_metrics import QUANTITIES, ServerMonitor, known_series, values
from harness.loadgen.load_plan import Target

VLLM = ENGINES["vllm"].server_series
PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_count{engine="0"} %(steps)s
vllm:iteration_tokens_total_sum{engine="0"} %(tokens)s
process_cpu_seconds_total 12.5
"""


def page(steps: float, tokens: float) -> str:
    return PAGE % {"steps": steps, "tokens": tokens}


def test_parts_are_added_and_shares_are_averaged() -> None:
    expected = {"running": 7, "waiting": 2, "kv_usage": 0.5, "steps": 2, "step_tokens": 30}
    assert values(parse_samples(page(2, 30)), VLLM) == dict.fromkeys(QUANTITIES) | expected


@pytest.mark.parametrize("number", ["+Inf", "-Inf", "NaN", "-5", "1e300"])
def test_what_the_table_cannot_hold_is_not_known(number: str) -> None:
    odd = page(2, 30).replace(" 3.0\nvllm:num_requests_running", f" {number}\nvllm:num_requests_running")
    assert values(parse_samples(odd), VLLM) == values(parse_samples(page(2, 30)), VLLM) | {"running": None}


@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if engine.server_series])
def test_engines_name_quantities_that_the_table_has(name: str) -> None:
    assert set(ENGINES[name].server_series) <= {*QUANTITIES}


def test_a_running_server_is_known_by_its_page() -> None:
    every = [engine.server_series for engine in ENGINES.values() if engine.server_series]
    assert known_series(parse_samples(page(1, 1)), every) is VLLM
    llamacpp = known_series(parse_samples("llamacpp:requests_processing 1\n"), every)
    assert llamacpp is ENGINES["llamacpp"].server_series
    assert known_series(parse_samples("process_cpu_seconds_total 1\n"), every) == {}


def readings(pages: list[str | None]) -> pd.DataFrame:
    """Of a server that answers with these pages in turn, then no more; None: it does not answer."""
    left, done = iter(pages), threading.Event()

    def read(target: Target) -> str | None:
        found = next(left, "")
        if found == "":
            done.set()
            raise ConnectionRefusedError
        return found

    t0 = time.monotonic()
    with ServerMonitor(Target("127.0.0.1", 9, "/"), VLLM, 0.001, read) as monitor:
        assert done.wait(10)
    return monitor.table(5, t0)


def test_counters_count_from_the_first_reading_and_on_after_a_restart() -> None:
    found = readings([page(100, 4_000), None, page(103, 4_100), page(2, 10)])
    assert found["steps"].tolist() == [0, 3, 5]
    assert found["step_tokens"].tolist() == [0, 100, 110]
    assert found["preemptions"].isna().all() and found["cell"].tolist() == [5, 5, 5]
    assert found["t"].is_monotonic_increasing and (found["took_ms"] >= 0).all()


def test_a_server_without_metrics_is_not_asked() -> None:
    def read(target: Target) -> str | None:
        raise AssertionError

    with ServerMonitor(Target("127.0.0.1", 9, "/"), {}, 0.001, read) as monitor:
        pass
    assert monitor.table(0, 0.0).empty
