"""With `batch_invariant`, a token's logits are the same bits in every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roseinfer.config import ConfigError
from roseinfer.engine.core import Engine
from roseinfer.request.params import SamplingParams
from tests.roseinfer.conftest import (
    Generated,
    config_of,
    generate,
    make_gpt2,
    make_llama,
    needs_bf16_products,
)

VOCAB = 5003
Request = tuple[list[int], SamplingParams]


@pytest.fixture(scope="module", params=["gpt2", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    return make_gpt2(path) if request.param == "gpt2" else make_llama(path, request.param)


def load(folder: Path, **settings: Any) -> Engine:
    base = {"dtype": "bf16", "batch_invariant": True, "max_model_len": 400}
    return Engine(config_of(folder, **(base | settings)))


def traffic() -> list[Request]:
    """Prompts with shared beginnings, answered greedily or by a seed, with logprobs."""
    rng = np.random.default_rng(3)
    documents, requests = rng.integers(0, VOCAB - 1, (3, 200)), []
    for index in range(24):
        shared = documents[rng.integers(3)][: rng.choice([16, 33, 100, 160])]
        prompt = [*shared.tolist(), *rng.integers(0, VOCAB - 1, rng.choice([1, 20, 90])).tolist()]
        tokens = int(rng.integers(8, 30))
        params = SamplingParams(tokens, temperature=index % 2, seed=index, ignore_eos=True, logprobs=2)
        requests.append((prompt, params))
    return requests


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Generated]:
    """Answers of an engine that never has two requests, with the logprobs of the likeliest tokens."""
    engine = load(model)
    return [generate(engine, [request])[0] for request in traffic()]


#: With so little cache, requests are interrupted and computed again.
PRESSED = {"kv_tokens": 500, "prefix_cache": True, "chunked_prefill_size": 24, "overlap_schedule": True}


@needs_bf16_products
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": True},
        {"chunked_prefill_size": 24},
        {"max_batch_size": 5, "decode_first": False, "prefill_max_tokens": 2048},
        PRESSED,
    ],
)
def test_together_as_alone(model: Path, alone: list[Generated], settings: dict[str, Any]) -> None:
    engine = load(model, **settings)
    assert generate(engine, traffic()) == alone
    assert settings is not PRESSED or engine.preemptions > 0


@needs_bf16_products
def test_without_it_bits_differ(model: Path) -> None:
    """The test above can fail."""
    engine, requests = load(model, batch_invariant=False), traffic()[:8]
    alone = [generate(engine, [request])[0] for request in requests]
    assert generate(load(model, batch_invariant=False, **PRESSED), requests) != alone


@pytest.mark.parametrize("settings", [{"dtype": "fp32"}, {"cpu_kernels": False}, {"cpu_linear": False}])
def test_what_cannot_be_had_is_refused(gpt2_folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--batch-invariant needs"):
        load(gpt2_folder, **settings)
