"""Figures of profiles made by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.profiling.analysis import agreement, sorts
from harness.profiling.level import measure_level, measure_levels
from harness.profiling.reading.figures import figures
from harness.profiling.reading.nsys_file import read_nsys
from harness.profiling.reading.torch_trace import read_torch_trace
from harness.schema.load import TraceLoad, load_text
from harness.schema.profile import Agreement

from .conftest import totals

VLLM = "execute_context_{}(8)_generation_{}(3)"


def test_cpu_steps_divide_their_time(trace: Any, tmp_path: Path) -> None:
    trace.cpu_step(0, VLLM.format(1, 2), extra=[("aten::argmax", 4)])
    for step in range(1, 5):
        trace.cpu_step(100 * step, VLLM.format(0, 3))
    found = figures(read_torch_trace(trace.write(tmp_path / "trace.json")), "torch", "vLLM")
    assert found.device == "cpu"
    prefill, decode = found.steps["prefill"], found.steps["decode"]
    assert (prefill.n, decode.n) == (1, 3)  # the last step has no end
    assert decode.period_ms == pytest.approx(0.1)
    assert decode.categories_ms["matmul"] == pytest.approx(0.025)
    assert decode.categories_ms["memory copies"] == pytest.approx(0.005)
    assert decode.categories_ms["attention"] == pytest.approx(0.010)
    assert decode.busy_ms == pytest.approx(0.04)
    assert decode.idle_ms == pytest.approx(0.06)
    assert decode.gap_ms == pytest.approx(0.04)
    assert decode.kernels == 3
    assert decode.batch == 3
    assert prefill.categories_ms["sampling"] == pytest.approx(0.004)
    assert found.busy_share == pytest.approx((3 * 40 + 44) / 400)


def test_gpu_kernels_belong_to_the_step_that_launched_them(trace: Any, tmp_path: Path) -> None:
    for step in range(4):
        trace.gpu_step(100 * step, step * 10, "roseinfer.model.forward.cuda_graph_replay")
    found = figures(read_torch_trace(trace.write(tmp_path / "trace.json")), "torch", "roseinfer")
    assert found.device == "cuda"
    decode = found.steps["decode"]
    assert decode.n == 3
    assert decode.kernels == 3
    # 40 to 70, 60 to 80 of which 10 overlap, 85 to 90
    assert decode.categories_ms["matmul"] == pytest.approx(0.030)
    assert decode.categories_ms["attention"] == pytest.approx(0.010)
    assert decode.categories_ms["memory copies"] == pytest.approx(0.005)
    assert decode.busy_ms == pytest.approx(0.045)
    assert decode.kernel_us == pytest.approx((30 + 20 + 5) / 3)
    assert decode.gap_ms == pytest.approx(0.05)


@pytest.mark.parametrize("marked", ["roseinfer.model.forward.cuda_graph_replay", None])
def test_nsys_gives_the_same_figures(nsys: Any, marked: str | None) -> None:
    for step in range(5):
        nsys.step(100_000 * step, 10 * step, process=77, marked=marked)
    nsys.insert("NVTX_EVENTS", 1_000, 3_000, 59, None, nsys.text("roseinfer.tokenize"), 78 << 24)
    found = figures(read_nsys(nsys.close()), "nsys", "roseinfer")
    decode = found.steps["decode"]
    assert decode.n == 4
    assert decode.period_ms == pytest.approx(0.1)
    assert decode.busy_ms == pytest.approx(0.045)
    assert decode.categories_ms["matmul"] == pytest.approx(0.030)
    assert decode.categories_ms["attention"] == pytest.approx(0.010)
    assert decode.kernels == 3
    assert decode.gap_ms == pytest.approx(0.05)
    assert found.steps_by.startswith("launches" if marked is None else "ranges")
    assert found.components["tokenize"].mean_ms == pytest.approx(0.002)


def test_correlations_of_two_processes_are_kept_apart(nsys: Any) -> None:
    for step in range(4):
        nsys.step(100_000 * step, 10 * step, process=77, marked="roseinfer.model.forward.eager")
        nsys.step(100_000 * step + 3_000, 10 * step + 10, process=78, marked=None)
    timeline = read_nsys(nsys.close())
    assert len(set(timeline.device.link.tolist())) == 16


def test_steps_by_gaps_where_nothing_marks_them(trace: Any, tmp_path: Path) -> None:
    for step in range(4):
        for kernel in range(5):
            trace.add("kernel", "gemm", 1000 * step + 12 * kernel, 10, tid=7)
    found = figures(read_torch_trace(trace.write(tmp_path / "trace.json")), "torch", "unmarked")
    assert found.steps_by.startswith("gaps")
    assert found.steps["decode"].n == 2
    assert found.steps["decode"].kernels == 5


def test_packed_traces_and_bare_lists_read_alike(trace: Any, tmp_path: Path) -> None:
    for step in range(3):
        trace.cpu_step(100 * step, VLLM.format(0, 3))
    plain = trace.write(tmp_path / "trace.json")
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bare = tmp_path / "bare.json"
    text = plain.read_text()
    bare.write_text(text[text.index("[") : text.rindex("]") + 1])
    assert totals(read_torch_trace(plain)) == totals(read_torch_trace(packed))
    assert totals(read_torch_trace(plain)) == totals(read_torch_trace(bare))


def test_forwards_of_one_step_are_one_step(trace: Any, tmp_path: Path) -> None:
    for step in range(4):
        at = 200 * step
        trace.add("user_annotation", "roseinfer.mp.step", at - 5, 190)
        if step % 2:
            trace.cpu_step(at, "roseinfer.prefill_batch.model_forward")
        trace.cpu_step(at + 100, "roseinfer.model.forward.eager")
    found = figures(read_torch_trace(trace.write(tmp_path / "trace.json")), "torch", "roseinfer")
    assert found.steps["prefill"].n == 1
    assert found.steps["prefill"].busy_ms == pytest.approx(0.08)
    assert found.steps["decode"].n == 2
    assert found.step_ms == pytest.approx((100 + 300 + 100) / 3 / 1000)


def test_a_host_that_is_ahead_does_not_shorten_a_step(trace: Any, tmp_path: Path) -> None:
    for number, (launched, runs) in enumerate([(0, 10), (20, 110), (40, 210), (500, 510), (600, 610)]):
        trace.add("user_annotation", "roseinfer.model.forward.cuda_graph_replay", launched, 5)
        trace.add("cuda_runtime", "cudaGraphLaunch", launched + 1, 2, correlation=number)
        trace.add("kernel", "nvjet_hsh_64x8", runs, 90, correlation=number, tid=7)
    decode = figures(read_torch_trace(trace.write(tmp_path / "trace.json")), "torch", "x").steps["decode"]
    assert decode.n == 4
    # To 100, 200, 300 and, after 210 of waiting, 600.
    assert decode.period_ms == pytest.approx((100 + 100 + 100 + 300) / 4 / 1e3)
    assert decode.period_p50_ms == pytest.approx(0.1)
    assert decode.busy_ms == pytest.approx(0.09)


# --- The level of a load, counted by hand ----------------------------------------------------------------


def test_level_as_tokens_met_it() -> None:
    """Two requests: one alone from 1 to 2, both from 2 to 4; a third waits from 3 and fails."""
    requests = pd.DataFrame(
        {
            "cell": [0, 0, 0],
            "request": [0, 1, 2],
            "label": "A",
            "load": load_text(TraceLoad(scale=1.0)),
            "error": [None, None, "timeout"],
            "t_sent": [0.0, 1.0, 3.0],
            "t_first": [1.0, 2.0, None],
            "t_last": [4.0, 4.0, None],
            "completion_tokens": [4, 3, 0],
        }
    )
    chunks = pd.DataFrame(
        {"cell": 0, "request": [0, 0, 0, 0, 1, 1], "t": [1.0, 2.0, 3.0, 4.0, 2.0, 4.0],
         "tokens": [1, 1, 1, 1, 1, 2]}
    )  # fmt: skip
    level = measure_level(requests, chunks)
    assert level is not None
    assert level.in_flight == 2
    assert level.running == pytest.approx((1 + 2 + 2 + 2 + 2 + 2 * 2) / 7)
    assert level.step_ms == pytest.approx(1e3 * (3 + 2) / (3 + 2))
    assert measure_levels(requests, chunks) == {("A", TraceLoad(scale=1.0)): level}
    assert measure_level(requests[requests["error"].notna()], chunks) is None


# --- Two profilers of one engine compared ----------------------------------------------------------------

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
