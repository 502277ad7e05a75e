"""Decode steps of prepared calls: the same tokens and logprobs as operator by operator, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from roseinfer.attention.cpu_paged import CpuPagedAttention
from roseinfer.config import EngineConfig
from roseinfer.engine.core import Engine
from roseinfer.kernels.cpu.build import has_bf16_products
from roseinfer.models.llama_cpu import MOST_ROWS, CpuLlama, Step
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import LLAMAS, make_llama

needs_bf16_products = pytest.mark.skipif(not has_bf16_products(), reason="needs a processor with AVX-512")


@pytest.fixture(scope="module", params=sorted(LLAMAS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp(request.param), request.param)


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
    prepare = CpuLlama._prepare

    def note(self: CpuLlama, count: int, attention: CpuPagedAttention) -> Step:
        rows.append(count)
        return prepare(self, count, attention)

    monkeypatch.setattr(CpuLlama, "_prepare", note)
    return rows


def engine_of(folder: Path, **settings: Any) -> Engine:
    base: dict[str, Any] = {
        "dtype": "bf16",
        "max_model_len": 300,
        "kv_tokens": 4096,
        "max_batch_size": MOST_ROWS + 4,
    }
    return Engine(EngineConfig(str(folder), device="cpu", warmup=False, **(base | settings)))


def answers(engine: Engine, requests: int) -> list[list[tuple[int, tuple[float, ...]]]]:
    """Of each token of each request, which come four a step: it, and the logprobs of the likeliest two."""
    rng, found = np.random.default_rng(requests), [[] for _ in range(requests)]  # type: ignore[var-annotated]
    added = 0
    while True:
        for _ in range(min(4, requests - added)):
            prompt = rng.integers(0, 5000, rng.integers(1, 40)).astype(np.int32)
            engine.add(added, prompt, SamplingParams(int(rng.integers(2, 30)), ignore_eos=True, logprobs=2))
            added += 1
        step = engine.step()
        if step is None:
            return found
        assert step.logprobs is not None
        for id, token in step.logprobs.by_request().items():
            found[id].append((token.tokens[0], tuple(token.values)))


@needs_bf16_products
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 2, "prefix_cache": True, "chunked_prefill_size": 16},
        {"kv_tokens": 400, "overlap_schedule": True},
        {"batch_invariant": True},
    ],
    ids=["default", "threads", "preempted", "invariant"],
)
def test_prepared_calls_change_no_bit(folder: Path, prepared: list[int], settings: dict[str, Any]) -> None:
    eager = answers(engine_of(folder, prepared_decode=False, **settings), 20)
    assert not prepared
    engine = engine_of(folder, **settings)
    assert answers(engine, 20) == eager and len(prepared) > 5
    assert answers(engine, 20) == eager and len(set(prepared)) == len(prepared), "again, with the same calls"
    assert (engine.preemptions > 0) == ("kv_tokens" in settings)


@needs_bf16_products
def test_steps_of_many_rows_run_operator_by_operator(folder: Path, prepared: list[int]) -> None:
    tokens: list[dict[int, list[int]]] = []
    for engine in (engine_of(folder), engine_of(folder, prepared_decode=False)):
        tokens.append({})
        for id in range(MOST_ROWS + 4):
            prompt = np.arange(1 + id % 9, dtype=np.int32)
            engine.add(id, prompt, SamplingParams(12 + id % 8, ignore_eos=True))
        most = 0
        while (step := engine.step()) is not None:
            most = max(most, len(step.ids))
            for request, token in zip(step.ids.tolist(), step.tokens.tolist(), strict=True):
                tokens[-1].setdefault(request, []).append(token)
        assert most > MOST_ROWS >= max(prepared)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("settings", [{"dtype": "fp32"}, {"cpu_kernels": False}, {"cpu_linear": False}])
def test_without_the_kernels_nothing_is_prepared(
    folder: Path, prepared: list[int], settings: dict[str, Any]
) -> None:
    answers(engine_of(folder, **settings), 4)
    assert not prepared


def test_the_table_of_rotations_has_the_rows_of_the_context(folder: Path) -> None:
    engines: list[Any] = [engine_of(folder, dtype="fp32", max_model_len=length) for length in (300, None)]
    short, whole = (engine._loop.runner._model._turns for engine in engines)
    assert len(short) == 300 and len(whole) == 1024
    assert torch.equal(short, whole[:300])
