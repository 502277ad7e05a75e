"""Decode steps of prepared calls: the same tokens and logprobs as operator by operator, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.engine.core import Engine
from roseinfer.models.llama_cpu import MOST_ROWS, CpuLlama, Step
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import Generated, config_of, generate, needs_bf16_products, on_models, runner_of

pytestmark = on_models(["llama", "qwen3"])
#: Requests that an engine answers.
COUNT = 14


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """An engine sets PyTorch's number of threads, which is the process's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows of the steps that were prepared."""
    rows: list[int] = []
    prepare = CpuLlama.prepare

    def note(self: CpuLlama, count: int, attention: CpuPagedAttention) -> Step:
        rows.append(count)
        return prepare(self, count, attention)

    monkeypatch.setattr(CpuLlama, "prepare", note)
    return rows


def engine_of(folder: Path, **settings: Any) -> Engine:
    base = {"dtype": "bf16", "max_model_len": 300, "kv_tokens": 4096, "max_batch_size": MOST_ROWS + 4}
    return Engine(config_of(folder, **(base | settings)))


def answers(engine: Engine, requests: int) -> list[Generated]:
    """Answers to requests that come four a step, with the logprobs of the likeliest two tokens."""
    rng = np.random.default_rng(requests)
    prompts = [rng.integers(0, 5000, rng.integers(1, 40)).tolist() for _ in range(requests)]
    lengths = rng.integers(2, 24, requests).tolist()
    params = [SamplingParams(length, ignore_eos=True, logprobs=2) for length in lengths]
    return generate(engine, list(zip(prompts, params, strict=True)), interval=0.25)


@needs_bf16_products
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 2, "prefix_cache": True, "chunked_prefill_size": 16},
        {"kv_tokens": 320, "overlap_schedule": True},
        {"batch_invariant": True},
    ],
    ids=["default", "threads", "preempted", "invariant"],
)
def test_prepared_calls_change_no_bit(folder: Path, prepared: list[int], settings: dict[str, Any]) -> None:
    eager = answers(engine_of(folder, prepared_decode=False, **settings), COUNT)
    assert not prepared
    engine = engine_of(folder, **settings)
    assert answers(engine, COUNT) == eager and len(prepared) > 5
    assert answers(engine, COUNT) == eager and len(set(prepared)) == len(prepared), (
        "again, with the same calls"
    )
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


@needs_bf16_products
def test_steps_of_many_rows_run_operator_by_operator(folder: Path, prepared: list[int]) -> None:
    requests = [
        ([*range(1 + id % 9)], SamplingParams(12 + id % 8, ignore_eos=True)) for id in range(MOST_ROWS + 4)
    ]
    tokens = [generate(engine_of(folder, **how), requests) for how in ({}, {"prepared_decode": False})]
    assert 0 < max(prepared) <= MOST_ROWS
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("settings", [{"dtype": "fp32"}, {"cpu_kernels": False}, {"cpu_linear": False}])
def test_without_the_kernels_nothing_is_prepared(folder, prepared, settings):
    answers(engine_of(folder, **settings), 4)
    assert not prepared


def test_the_table_of_rotations_has_the_rows_of_the_context(folder: Path) -> None:
    engines = [engine_of(folder, dtype="fp32", max_model_len=length) for length in (300, None)]
    short, whole = (runner_of(engine).model._turns for engine in engines)
    assert len(short) == 300 and len(whole) == 1024
    assert torch.equal(short, whole[:300])
