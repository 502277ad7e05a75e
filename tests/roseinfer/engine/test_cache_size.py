"""Memory of the KV cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from roseinfer.config import ConfigError, EngineConfig
from roseinfer.engine.cache_size import kv_bytes, memory_in_use, resolve_memory_share

GPU, CPU = torch.device("cuda"), torch.device("cpu")


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
