"""Steps, graphs, memory and GPUs of an engine, by its device, its model and its switches."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roseinfer.batch import NO_INTS
from roseinfer.config import REPLICA, REPLICAS, ConfigError, EngineConfig, option
from roseinfer.engine.cache_size import kv_bytes, memory_in_use, resolve_memory_share
from roseinfer.engine.graphs import LARGE_ROWS, GraphSizes, MixedSteps
from roseinfer.engine.load import check_ranks, own_gpu
from roseinfer.engine.resolve import captured_steps, chunk_size, resolve_policies, resolve_settings
from roseinfer.models.load import load
from roseinfer.models.shard import Shard
from roseinfer.scheduler.cost import StepCosts
from roseinfer.scheduler.policies import (
    MIXED_PARTS,
    Alternate,
    StepParts,
    TakeAlong,
    decode_first,
    prefill_first,
)
from roseinfer.scheduler.weighed import Weighed
from rosemodels import llama

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SMALL, LARGE = 10**9, 16 * 10**9


@pytest.mark.parametrize(
    ("config", "device", "weights", "composition"),
    [
        (EngineConfig(), CPU, 0, decode_first),
        (EngineConfig(), GPU, 0, Alternate),
        (EngineConfig(), GPU, SMALL, TakeAlong),
        (EngineConfig(chunked_prefill_size=64), GPU, SMALL, Alternate),
        (EngineConfig(), GPU, LARGE, Weighed),
        (EngineConfig(chunked_prefill_size=512), GPU, LARGE, Weighed),
        (EngineConfig(prefer="latency"), CPU, 0, Weighed),
        (EngineConfig(prefer="first-token"), CPU, 0, prefill_first),
        (EngineConfig(prefer="throughput"), CPU, 0, decode_first),
        (EngineConfig(prefer="throughput"), GPU, 0, prefill_first),
        (EngineConfig(prefer="latency"), GPU, SMALL, TakeAlong),
        (EngineConfig(target_tpot_ms=20), GPU, 0, Weighed),
        (EngineConfig(target_ttft_ms=200), CPU, 0, Weighed),
        (EngineConfig(mixed_steps=False), GPU, LARGE, Alternate),
        (EngineConfig(mixed_steps=True), GPU, LARGE, decode_first),
        (EngineConfig(decode_first=False), GPU, LARGE, prefill_first),
    ],
)
def test_what_shares_a_step(config, device, weights, composition):
    """Steps are noted and their cost is fitted only where it composes steps."""
    policies = resolve_policies(config, device, weights)
    assert policies.composition is composition or type(policies.composition) is composition
    assert (policies.costs is not None) == (composition is Weighed)


def test_answers_of_one_client_take_turns_on_a_cpu() -> None:
    limited = EngineConfig(client_batch_size=3)
    limits = [
        resolve_policies(*each).client_batch_size
        for each in [(EngineConfig(), CPU), (EngineConfig(), GPU), (limited, GPU)]
    ]
    assert limits == [16, None, 3]


@pytest.mark.parametrize(
    ("config", "weights", "chunk", "mixed"),
    [
        (EngineConfig(), LARGE, 8192, MixedSteps(LARGE_ROWS, cut=True)),
        (EngineConfig(prefill_max_tokens=1024), LARGE, 1024, MixedSteps(LARGE_ROWS, cut=True)),
        (EngineConfig(chunked_prefill_size=512), LARGE, 512, MixedSteps(512, cut=True)),
        (EngineConfig(), SMALL, None, MixedSteps(1024)),
        (EngineConfig(max_active_requests=64), SMALL, None, MixedSteps()),
        (EngineConfig(chunked_prefill_size=512), SMALL, 512, MixedSteps()),
    ],
)
def test_parts_of_prompts_and_graphs(config, weights, chunk, mixed):
    policies = resolve_policies(config, GPU, weights)
    assert chunk_size(config, policies) == chunk
    assert captured_steps(policies, config.max_active_requests) == mixed


@pytest.mark.parametrize(
    ("config", "device", "late"),
    [
        (EngineConfig(), GPU, True),
        (EngineConfig(), CPU, False),
        (EngineConfig(tensor_parallel_size=2), GPU, False),
        (EngineConfig(tensor_parallel_size=2, late_launch=True), GPU, True),
        (EngineConfig(late_launch=False), GPU, False),
        (EngineConfig(overlap_schedule=False), GPU, False),
        (EngineConfig(overlap_schedule=True), CPU, False),
        (EngineConfig(overlap_schedule=True, late_launch=True), CPU, True),
    ],
)
def test_when_steps_are_launched_late(config: EngineConfig, device: torch.device, late: bool) -> None:
    policies = resolve_policies(config, device, LARGE)
    assert resolve_settings(config, device, policies, 1024, 64).late_launch is late


def test_parts_of_prompts_fill_the_rows_that_those_that_decode_leave() -> None:
    sizes = GraphSizes().mixed(MixedSteps(2048, cut=True), 256, 8192)
    for batch, stride in ((16, 128), (64, 256), (128, 512), (256, 512)):
        rows = [prompts + decoding for prompts, decoding in reversed(sizes) if decoding == batch]
        assert [stride * part for part in range(1, 2048 // stride + 1)][-len(rows) :] == rows
    assert GraphSizes().mixed(MixedSteps(2048, cut=True), 5, 8192)[0] == (2043, 5)
    assert GraphSizes().mixed(MixedSteps(16, cut=True), 64, 8192) == []


def test_whole_prompts_have_the_room_of_their_own_graphs() -> None:
    assert GraphSizes().mixed(MixedSteps(1024), 64, 8192) == [(1024, 64), (768, 64), (512, 64), (256, 64)]
    assert GraphSizes().mixed(MixedSteps(1024), 64, 600) == [(512, 64), (256, 64)]
    assert GraphSizes().mixed(MixedSteps(), 64, 8192) == []


@given(st.integers(1, 2048), st.booleans(), st.integers(1, 600), st.integers(16, 9000))
def test_no_graph_is_larger_than_a_step(tokens: int, cut: bool, max_batch: int, max_tokens: int) -> None:
    sizes = GraphSizes().mixed(MixedSteps(tokens, cut), max_batch, max_tokens)
    assert all(0 < prompts <= max_tokens and 0 < batch <= max_batch for prompts, batch in sizes)
    assert all(prompts + batch * cut <= tokens for prompts, batch in sizes)
    assert len(set(sizes)) == len(sizes)


@given(st.integers(1, max(MIXED_PARTS)))
def test_a_step_of_many_requests_has_a_graph(decoding: int) -> None:
    """Weighed fills it up to that many rows, whatever is the largest batch that holds these requests."""
    parts = StepParts(lambda *_, **__: [], lambda: NO_INTS, 1)
    prompts = Weighed(StepCosts(), rows=LARGE_ROWS).budget(parts, decoding)
    for max_batch in (decoding, 256, 512):
        sizes = GraphSizes().mixed(MixedSteps(LARGE_ROWS, cut=True), max_batch, 8192)
        assert any(tokens >= prompts and batch >= decoding for tokens, batch in sizes)


def test_memory_of_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """700 of 1,000 bytes are free once the weights are there."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    assert kv_bytes(EngineConfig(), GPU) == 560
    assert kv_bytes(EngineConfig(gpu_memory_utilization=0.9), GPU) == 600
    assert kv_bytes(EngineConfig(gpu_memory_utilization=0.25), GPU) < 0
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        EngineConfig(gpu_memory_utilization=1.5)


def test_too_little_memory_says_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * gib, 140 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * gib)
    text = ": of 140.0 GiB of the GPU 2.0 are this model's, 118.0 the CUDA context's and other processes'"
    assert memory_in_use(GPU) == text
    assert memory_in_use(torch.device("cpu")) == ""


def test_a_share_of_memory_beside_a_size(caplog: pytest.LogCaptureFixture) -> None:
    """The size counts, which is said; a CPU takes no share either way."""
    share, alone = EngineConfig(gpu_memory_utilization=0.9), EngineConfig(kv_tokens=60)
    both = replace(share, kv_tokens=60)
    assert [resolve_memory_share(config, GPU) for config in (share, alone)] == [0.9, None]
    assert not caplog.messages
    assert resolve_memory_share(both, GPU) is None
    assert caplog.messages == ["--gpu-memory-utilization has no effect with --kv-tokens"]
    for config in (both, share):
        with pytest.raises(ConfigError, match="needs a GPU"):
            resolve_memory_share(config, CPU)


def test_replicas_and_their_ranks_take_the_gpus_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    environments = [{REPLICAS: "2", REPLICA: str(replica)} for replica in range(2)]
    indices = [own_gpu(rank, 2, environment).index for environment in environments for rank in range(2)]
    assert indices == [0, 1, 2, 3]
    assert [own_gpu(rank, 4, {}).index for rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(
        ConfigError, match=r"--data-parallel-size 3 with --tensor-parallel-size 2 needs 6 GPUs; .* 4"
    ):
        own_gpu(0, 2, {REPLICAS: "3", REPLICA: "0"})


@pytest.mark.parametrize("switch", ["fused_ops", "cuda_graph", "paged_attn"])
def test_on_gpus_ranks_need_the_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, switch: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shape = llama.config(llama.SHAPES["qwen3-0.6b"])
    (tmp_path / "config.json").write_text(json.dumps(shape))
    check_ranks(EngineConfig(str(tmp_path), device="cuda", tensor_parallel_size=2))
    off = EngineConfig(str(tmp_path), device="cuda", **{switch: False})  # type: ignore[arg-type]
    check_ranks(off)
    with pytest.raises(ConfigError, match=f"needs .*{option(switch)}"):
        check_ranks(replace(off, tensor_parallel_size=2))


def test_on_gpus_ranks_need_half_precision_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = EngineConfig("m", device="cuda", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="needs --dtype fp16 or bf16"):
        check_ranks(replace(config, dtype="fp32"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs Triton"):
        check_ranks(config)


def test_gpt2_is_not_divided_among_gpus(gpt2_folder: Path) -> None:
    with pytest.raises(ConfigError, match="works with models of the Llama family"):
        load(str(gpt2_folder), torch.device("cuda"), torch.float16, fused=True, shard=Shard(0, 2))
