"""How many threads a server computes on."""

from __future__ import annotations

import pytest
import torch

from roseinfer.config import REPLICAS, EngineConfig
from roseinfer.engine.process import share_cores

CPU = EngineConfig(model="m", device="cpu")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (48, 47)])
def test_a_server_leaves_a_core(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    assert share_cores(CPU, {}).threads == threads


def test_who_says_otherwise_wins():
    given = EngineConfig(model="m", device="cpu", threads=5)
    assert share_cores(given, {}) == given
    assert share_cores(CPU, {"OMP_NUM_THREADS": "3"}) is CPU


def test_on_a_gpu_threads_stay_pytorchs_choice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = EngineConfig(model="m", device="cuda")
    assert share_cores(config, {}) is config


def test_the_replicas_of_a_server_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    """As they share --threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    several = {REPLICAS: "3"}
    assert share_cores(CPU, several).threads == 2
    assert share_cores(EngineConfig(model="m", device="cpu", threads=5), several).threads == 1
    assert share_cores(EngineConfig(model="m", device="cpu", threads=1), several).threads == 1
