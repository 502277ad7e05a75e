"""Random schedules on a GPU: who comes, leaves, is preempted or finds a prefix changes no answer.

A stale buffer, a graph that reads what another wrote, or a kernel that starts ahead of its input would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roseinfer.batch import Batch
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.engine.runner import Pending, Runner
from roseinfer.engine.sampler import SamplingBatch
from roseinfer.request.params import SamplingParams

from .conftest import VOCAB, greedy, make_gpt2
from .schedules import MARGINS, Case, check_schedule

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

NEW = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt2(tmp_path_factory.mktemp("wide"), layers=2, width=768, heads=12)


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[Case]:
    """Prompts, some with a common beginning, their greedy answers and the logits of these."""
    rng = np.random.default_rng(5)
    common = rng.integers(0, VOCAB, 70).tolist()
    lengths = [1, 2, 16, 17, 31, 250, 600, *rng.integers(1, 300, 33)]
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
    prompts = [common + prompt if i % 3 == 0 else prompt for i, prompt in enumerate(prompts)]
    return [(prompt, *greedy(folder, prompt, NEW)) for prompt in prompts]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "bf16", "mixed_steps": True, "max_batch_size": 24},
        {"prefix_cache": True, "kv_tokens": 4096},
        {"chunked_prefill_size": 48, "prefill_max_tokens": 96, "overlap_schedule": False},
        {"fused_ops": False, "decode_first": False, "kv_tokens": 4096},
        {"pinned_staging": False, "decode_parts": False},
        {"kv_cache_dtype": "fp8", "prefix_cache": True, "kv_tokens": 4096},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_the_schedule(folder, cases, settings):
    config: dict[str, Any] = {"dtype": "fp16", "max_active_requests": 96} | settings
    engine = Engine(EngineConfig(str(folder), device="cuda", **config))
    fused, parts = settings.get("fused_ops", True), settings.get("decode_parts", True)
    assert engine.info.model.fused_ops == fused and bool(engine.info.runner.decode_parts) == (fused and parts)
    for seed in range(6):
        margin = MARGINS[config.get("kv_cache_dtype", config["dtype"])]
        check_schedule(engine, cases, seed, margin, requests=(5, 120), steps=120)


class NeverWaits(Runner):
    """Launches with PyTorch set to refuse whatever waits for the GPU."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def launch(self, batch: Batch, sampling: SamplingBatch) -> Pending:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self._runner.launch(batch, sampling)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("settings", [{}, {"chunked_prefill_size": 48}, {"cuda_graph": False}], ids=str)
def test_no_launch_waits_for_the_gpu(folder: Path, cases: list[Case], settings: dict[str, Any]) -> None:
    """Random requests with logprobs whose prompts are in the prefix cache."""
    engine = Engine(EngineConfig(str(folder), device="cuda", dtype="fp16", prefix_cache=True, **settings))
    engine.watch(NeverWaits)
    for _ in range(2):
        for index, (prompt, *_) in enumerate(cases):
            drawn = SamplingParams(8, temperature=0.9, top_k=40, top_p=0.9, ignore_eos=True, logprobs=2)
            plain = SamplingParams(8, ignore_eos=True)
            engine.add(index, np.array(prompt, dtype=np.int32), drawn if index % 2 else plain)
        while engine.has_work:
            engine.step()
    engine.check_idle()
    assert engine.cached_tokens > 0
