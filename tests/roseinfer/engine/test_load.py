"""GPUs that the processes of an engine take."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roseinfer.config import REPLICA, REPLICAS, ConfigError, EngineConfig, option
from roseinfer.engine.load import check_ranks, own_gpu
from roseinfer.models.load import load
from roseinfer.models.shard import Shard
from rosemodels import llama


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
