"""Figures of profiles made by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from harness.profiling.reading.figures import figures
from harness.profiling.reading.nsys_file import read_nsys
from harness.profiling.reading.torch_trace import read_torch_trace

from .totals import totals

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
