"""CPUs and GPUs of client and engines, and how much every engine runs at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines import placement
from harness.engines.placement import (
    MIN_CORES,
    CpuSplit,
    Parallel,
    check_gpus,
    compute_threads,
    engine_cores,
    only_gpus,
    physical_cores,
    resolve_capacity,
    resolve_cpu_threads,
    shares,
    split,
)
from harness.errors import UsageError
from harness.schema.online_settings import OnlineSettings
from harness.telemetry import gpu

CPUS = (2, 3, 4, 5, 10, 11, 12, 13)
machines = st.tuples(st.integers(1, 128), st.integers(1, 4)).map(
    lambda shape: [tuple(core + shape[0] * thread for thread in range(shape[1])) for core in range(shape[0])]
)


@given(machines)
def test_every_core_goes_whole_to_one_side(cores):
    both = split(cores)
    if len(cores) < MIN_CORES:
        assert both == CpuSplit(None, None)
        return
    client, engine = set(both.client), set(both.engine)
    assert client and not client & engine
    assert client | engine == {cpu for core in cores for cpu in core}
    assert all(client.issuperset(core) or client.isdisjoint(core) for core in cores)
    assert 3 * len(client) <= len(engine)


def test_siblings_are_grouped(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    assert physical_cores(tmp_path) == [(0, 2), (1, 3)]


@pytest.fixture
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 to 5, each with two threads, of which CPU N + 8 is the second."""
    monkeypatch.setattr(placement, "physical_cores", lambda: [(core, core + 8) for core in range(6)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(6), *range(8, 14)})


@pytest.mark.usefixtures("six_cores")
def test_auto_leaves_a_core_and_a_thread_for_each_process():
    assert engine_cores(CPUS) == [2, 3, 4, 5]
    assert engine_cores((3, 11, 12)) == [3, 12]
    assert resolve_cpu_threads("auto", "cpu", CPUS) == compute_threads(CPUS) == 3
    assert resolve_cpu_threads("auto", "cpu", None) == resolve_cpu_threads("auto", "cpu", None, 2) == 5
    assert resolve_cpu_threads("auto", "cuda", CPUS) == "auto"
    assert resolve_cpu_threads(8, "cpu", CPUS) == 8
    assert resolve_cpu_threads("auto", "cpu", (0, 1), 2) == 2
    assert compute_threads((3,)) == 1


@pytest.mark.usefixtures("six_cores")
@pytest.mark.parametrize(
    ("threads", "device", "processes", "fault"),
    [
        (9, "cpu", 1, "engines may use 8 CPUs"), (2, "cuda", 1, "compute on the GPU"),
        (1, "cpu", 2, "less than one for each of 2"), ("auto", "cpu", 9, "are 9 processes.*8 CPUs"),
    ],
)  # fmt: skip
def test_threads_that_cannot_be_are_refused(threads: Any, device: Any, processes: int, fault: str):
    with pytest.raises(UsageError, match=fault):
        resolve_cpu_threads(threads, device, CPUS, processes)


def test_equal_capacity_on_a_gpu_and_the_engines_own_on_a_cpu() -> None:
    def resolved(device: Any, in_flight: float = 0, **settings: Any) -> tuple[object, ...]:
        return tuple(resolve_capacity(OnlineSettings(**settings), device, in_flight).values())

    assert resolved("cuda") == (256, 0.85)
    assert resolved("cuda", 512) == (512, 0.85)
    assert resolved("cuda", 512, max_running_requests=64, gpu_memory_utilization=0.5) == (64, 0.5)
    assert resolved("cuda", max_running_requests="default") == ("default", 0.85)
    assert resolved("cpu", 512) == resolved("cpu", gpu_memory_utilization="default") == ()
    with pytest.raises(UsageError, match=r"utilization 0\.5: the engines compute on the CPU"):
        resolved("cpu", gpu_memory_utilization=0.5)


def test_gpus_are_counted_as_nvml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "count", lambda: 4)
    assert only_gpus(Parallel(2), {}) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert only_gpus(Parallel(1, 2), {"CUDA_VISIBLE_DEVICES": "7,6,5,4"}) == {"CUDA_VISIBLE_DEVICES": "7,6"}
    check_gpus("vLLM", Parallel(2, 2), "cuda")
    check_gpus("vLLM", Parallel(8, 8), "cpu")
    with pytest.raises(UsageError, match=r"would need 6 GPUs .*--data-parallel-size 2.*and 4 can be used"):
        check_gpus("vLLM", Parallel(3, 2), "cuda")


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_are_equal_and_apart(items: list[int], parts: int) -> None:
    split_items = shares(items, parts)
    assert len(split_items) == parts
    assert {len(share) for share in split_items} == {max(1, len(items) // parts)}
    in_order = [item for share in split_items for item in share]
    assert in_order[: len(items)] == items[: len(in_order)]
