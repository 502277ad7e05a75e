"""How many threads a server computes on."""

from __future__ import annotations

import pytest
import torch

from roseinfer.config import EngineConfig
from roseinfer.engine.process import leave_a_core

CPU = EngineConfig(model="m", device="cpu")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (48, 47)])
def test_a_server_leaves_a_core(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    assert leave_a_core(CPU, {}).threads == threads


def test_who_says_otherwise_wins():
    given = EngineConfig(model="m", device="cpu", threads=5)
    assert leave_a_core(given, {}) is given
    assert leave_a_core(CPU, {"OMP_NUM_THREADS": "3"}) is CPU


def test_on_a_gpu_threads_stay_pytorchs_choice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = EngineConfig(model="m", device="cuda")
    assert leave_a_core(config, {}) is config
