"""Contents of an engine's steps, by its device, its model and its switches."""

from __future__ import annotations

import pytest
import torch

from roseinfer.config import EngineConfig
from roseinfer.engine.graphs import LARGE_ROWS, MixedSteps
from roseinfer.engine.resolve import captured_steps, chunk_size, resolve_policies, resolve_settings
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
    resolved = resolve_policies(config, device, weights).composition
    assert resolved is composition or type(resolved) is composition


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
