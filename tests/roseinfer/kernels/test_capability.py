"""GPUs that have what kernels need."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from roseinfer.attention import prefill_backends
from roseinfer.kernels.capability import is_hopper, is_large_hopper, shared_memory


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU of a compute capability, with so many bytes of shared memory for a block. Its number is unique:
    facts about a GPU are kept."""
    capability, size = request.param
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    properties = SimpleNamespace(shared_memory_per_block_optin=size)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return torch.device("cuda", 40 + capability[0])


H100, B200, RTX_5090, A100 = ((9, 0), 232_448), ((10, 0), 232_448), ((12, 0), 101_376), ((8, 0), 166_912)


@pytest.mark.parametrize(
    ("gpu", "early", "large"),
    [(H100, True, True), (B200, True, True), (RTX_5090, True, False), (A100, False, False)],
    indirect=["gpu"],
)
def test_ring_buffers_need_the_shared_memory_of_an_h100(gpu: torch.device, early: bool, large: bool) -> None:
    assert (is_hopper(gpu), is_large_hopper(gpu)) == (early, large)
    assert shared_memory(gpu) >= 101_376


@pytest.mark.parametrize(("gpu", "runs"), [(H100, True), (B200, False), (A100, False)], indirect=["gpu"])
def test_flash_attention_3_is_for_compute_capability_9(
    gpu: torch.device, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_backends, "find_spec", lambda name: True)
    monkeypatch.setattr(prefill_backends, "flash3_loads", lambda: True)
    monkeypatch.setattr(prefill_backends, "FlashAttention3", object)
    backend = prefill_backends.choose(None, 128, torch.bfloat16, gpu)
    assert backend.name == ("flash-attn-3" if runs else "triton")
