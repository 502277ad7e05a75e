"""The Llama family on a GPU against transformers in float32 on the CPU, whatever the schedule."""

from __future__ import annotations

import signal
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from roseinfer.attention import prefill_backends

from .conftest import LLAMAS, VOCAB, greedy, make_llama
from .schedules import Case, check_llama

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

NEW = 12
#: Seconds after which the processes of an engine on several GPUs are stuck.
RANKS_S = 150


@pytest.fixture(scope="module", params=LLAMAS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp(request.param), request.param)


def cases_of(folder: Path) -> list[Case]:
    rng = np.random.default_rng(5)
    lengths = [1, 2, 16, 17, 31, 250, 600, *rng.integers(1, 300, 9)]
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
    return [(prompt, *greedy(folder, prompt, NEW)) for prompt in prompts]


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[Case]:
    return cases_of(folder)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    folder = make_llama(tmp_path_factory.mktemp("mixture"), "mixture")
    return folder, cases_of(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"dtype": "fp16", "LARGE": 0, "chunked_prefill_size": 64}, {"dtype": "fp32"},
        {"dtype": "fp32", "fused_ops": False}, {"LARGE": 0, "prefix_cache": True, "kv_tokens": 4096},
        {"quantization": "fp8"}, {"quantization": "fp8", "LARGE": 0, "chunked_prefill_size": 64},
    ],
    ids=str,
)  # fmt: skip
def test_answers_of_a_mixture(mixture: tuple[Path, list[Case]], settings: dict[str, Any]) -> None:
    check_llama(*mixture, settings)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    folder = make_llama(tmp_path_factory.mktemp("hybrid"), "hybrid")
    return folder, cases_of(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"dtype": "fp32"}, {"dtype": "fp32", "fused_ops": False}, {"kv_cache_dtype": "fp8"},
        {"dtype": "fp16", "chunked_prefill_size": 48, "kv_tokens": 4096}, {"cuda_graph": False},
    ],
    ids=str,
)  # fmt: skip
def test_answers_of_a_hybrid(hybrid: tuple[Path, list[Case]], settings: dict[str, Any]) -> None:
    check_llama(*hybrid, settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "fp16", "mixed_steps": True, "max_batch_size": 24},
        {"dtype": "fp32"},
        {"LARGE": 0, "chunked_prefill_size": 64},
        {"LARGE": 0},
        {"LARGE": 0, "prefer": "latency", "prefix_cache": True, "kv_tokens": 4096},
        {"LARGE": 0, "prefer": "throughput", "prefix_cache": True, "prefill_backend": "triton"},
        {"LARGE": 0, "prefer": "latency", "prefix_cache": True, "prefill_backend": "flash-attn-3"},
        {"LARGE": 0, "prefer": "first-token"},
        {"_MANY": 8, "_ROWS": 512},
        {"chunked_prefill_size": 48, "prefill_max_tokens": 96, "prefix_cache": True, "kv_tokens": 4096},
        {"fused_ops": False},
        {"quantization": "fp8"},
        {"quantization": "fp8", "fused_ops": False, "LARGE": 0, "chunked_prefill_size": 64},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "fp8", "dtype": "fp16", "mixed_steps": True, "max_batch_size": 24},
        {"kv_cache_dtype": "fp8", "chunked_prefill_size": 48, "prefix_cache": True, "kv_tokens": 4096},
        {"kv_cache_dtype": "fp8", "quantization": "fp8"},
        {"kv_cache_dtype": "fp8", "dtype": "fp32", "fused_ops": False},
        {"kv_cache_dtype": "fp8", "paged_attn": False, "cuda_graph": False, "block_size": 8},
        {"kv_cache_dtype": "fp8", "tensor_parallel_size": 2, "prefix_cache": True},
        {"tensor_parallel_size": 2},
        {"tensor_parallel_size": 2, "LARGE": 0, "chunked_prefill_size": 64, "prefix_cache": True},
        {"tensor_parallel_size": 4},
        {"tensor_parallel_size": 2, "quantization": "fp8"},
    ],
    ids=str,
)
def test_answers_do_not_depend_on_the_schedule(folder, cases, settings, monkeypatch):
    ranks = settings.get("tensor_parallel_size", 1)
    if torch.cuda.device_count() < ranks:
        pytest.skip("there are not so many GPUs")
    if settings.get("prefill_backend") == "flash-attn-3" and not prefill_backends.flash3_loads():
        pytest.skip("fa3-fwd is not installed")
    if ranks == 1:
        check_llama(folder, cases, settings)
        return
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    process = get_context("spawn").Process(target=check_llama, args=(folder, cases, settings))
    process.start()  # a process can have one such engine
    process.join(RANKS_S)
    if process.is_alive():  # each says where it waits
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGABRT)
        process.join()
    assert process.exitcode == 0
