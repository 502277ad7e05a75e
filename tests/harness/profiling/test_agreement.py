"""Two profilers of one engine compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.profiling.analysis import agreement, sorts
from harness.profiling.reading.nsys_file import read_nsys
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.schema.profile import Agreement

STEP = "roseinfer.model.forward.cuda_graph_replay"


def add_step(trace: Any, at: float, link: int, *kernels: tuple[str, float]) -> None:
    """A forward whose graph runs `kernels`, 10 µs later and one after the other, and a copy."""
    trace.add("user_annotation", STEP, at, 20)
    trace.add("cuda_runtime", "cudaGraphLaunch", at + 1, 5, correlation=link)
    at += 10
    for name, duration in kernels:
        trace.add("kernel", name, at, duration, correlation=link, tid=7)
        at += duration
    trace.add("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", at, 9, correlation=link, tid=7)


def compared(trace: Any, nsys: Any, folder: Path) -> Agreement | None:
    timelines = read_torch_trace(trace.write(folder / "trace.json")), read_nsys(nsys.close())
    return agreement("x", *map(sorts, timelines))


def test_steps_of_the_same_kernels_are_compared(trace: Any, nsys: Any, tmp_path: Path) -> None:
    product, attention = (
        ("nvjet_hsh_64x8", 30),
        ("void (anonymous namespace)::paged_decode_kernel<float>", 12),
    )
    for step in range(4):
        add_step(trace, 100 * step, step, product, attention)
    add_step(trace, 400, 4, product, product)  # of a sort that nsys has not seen
    add_step(trace, 500, 5, product)  # not whole
    for step in range(3):
        nsys.step(100_000 * step, 10 * step, process=77, marked=STEP)
    found = compared(trace, nsys, tmp_path)
    assert found is not None
    assert (found.steps, found.kernels) == (2, 4)  # nsys's last is not whole
    assert found.torch_ms == pytest.approx(2 * 0.042)
    assert found.nsys_ms == pytest.approx(2 * 0.040)


def test_nothing_in_common_is_no_agreement(trace: Any, nsys: Any, tmp_path: Path) -> None:
    for step in range(3):
        add_step(trace, 100 * step, step, ("a", 3))
        nsys.step(100_000 * step, 10 * step, process=77, marked=STEP)
    assert compared(trace, nsys, tmp_path) is None
