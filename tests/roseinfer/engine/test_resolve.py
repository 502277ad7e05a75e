"""What an engine's steps hold, by its device, its model and its switches."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.core import _chunk, _kv_bytes, _memory_in_use, _mixed_steps, _resolved
from roseinfer.engine.graphs import LARGE_ROWS, MixedSteps
from roseinfer.engine.resolve import resolve_memory_share, resolve_policies
from roseinfer.engine.warmup import warm_up
from roseinfer.request.limits import Limits
from roseinfer.request.params import SamplingParams
from roseinfer.scheduler.policies import Alternate, FillUp, TakeAlong, decode_first, prefill_first

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SMALL, LARGE = 10**9, 16 * 10**9


@pytest.mark.parametrize(
    ("config", "device", "weights", "composition"),
    [
        (EngineConfig(), CPU, 0, decode_first),
        (EngineConfig(), GPU, 0, Alternate),
        (EngineConfig(), GPU, SMALL, TakeAlong),
        (EngineConfig(chunked_prefill_size=64), GPU, SMALL, Alternate),
        (EngineConfig(), GPU, LARGE, FillUp),
        (EngineConfig(mixed_steps=False), GPU, LARGE, Alternate),
        (EngineConfig(mixed_steps=True), GPU, LARGE, decode_first),
        (EngineConfig(decode_first=False), GPU, LARGE, prefill_first),
    ],
)
def test_what_shares_a_step(
    config: EngineConfig, device: torch.device, weights: int, composition: object
) -> None:
    found = resolve_policies(config, device, weights).composition
    assert found is composition or type(found) is composition


@pytest.mark.parametrize(
    ("config", "weights", "chunk", "mixed"),
    [
        (EngineConfig(), LARGE, 8192, MixedSteps(LARGE_ROWS, cut=True)),
        (EngineConfig(prefill_max_tokens=4096), LARGE, 4096, MixedSteps(LARGE_ROWS, cut=True)),
        (EngineConfig(chunked_prefill_size=512), LARGE, 512, MixedSteps(512, cut=True)),
        (EngineConfig(), SMALL, None, MixedSteps(1024)),
        (EngineConfig(max_active_requests=64), SMALL, None, MixedSteps()),
        (EngineConfig(chunked_prefill_size=512), SMALL, 512, MixedSteps()),
    ],
)
def test_parts_of_prompts_and_graphs(
    config: EngineConfig, weights: int, chunk: int | None, mixed: MixedSteps
) -> None:
    policies = resolve_policies(config, GPU, weights)
    assert _chunk(config, policies) == chunk
    assert _mixed_steps(policies, config.max_active_requests) == mixed


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
    assert _resolved(config, device, policies, 1024, 64).late_launch is late


def test_memory_of_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 bytes 700 are free once the weights are there."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    assert _kv_bytes(EngineConfig(), GPU) == 560
    assert _kv_bytes(EngineConfig(gpu_memory_utilization=0.9), GPU) == 600
    assert _kv_bytes(EngineConfig(gpu_memory_utilization=0.25), GPU) < 0
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        EngineConfig(gpu_memory_utilization=1.5)


def test_too_little_memory_says_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * gib, 140 * gib))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * gib)
    said = ": of 140.0 GiB of the GPU 2.0 are this model's, 118.0 the CUDA context's and other processes'"
    assert _memory_in_use(GPU) == said
    assert _memory_in_use(torch.device("cpu")) == ""


@pytest.mark.parametrize("most", [1, 2, 4096])
def test_the_largest_steps_are_warmed_up(most: int) -> None:
    class Counts:
        """Takes requests, and ends all of them with the first step."""

        info: Any = SimpleNamespace(
            config=EngineConfig(device="cuda", prefill_max_tokens=most), limits=Limits(100, 66, 6600)
        )
        sizes, waiting = set[int](), 0

        @property
        def has_work(self) -> bool:
            return self.waiting > 0

        def add(self, request_id: int, prompt: NDArray[np.int32], params: SamplingParams) -> None:
            self.waiting += len(prompt)

        def step(self) -> None:
            self.sizes.add(self.waiting)
            self.waiting = 0

        def flush_cache(self) -> None: ...

    engine = Counts()
    warm_up(engine)
    assert {max(1, most // 2), most} <= engine.sizes


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
