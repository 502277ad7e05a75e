"""With `batch_invariant`, a token's logits are the same bits in every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roseinfer.config import ConfigError
from roseinfer.engine.core import Engine
from tests.roseinfer.conftest import Generated, config_of, generate, needs_bf16_products, on_models, traffic


def load(folder: Path, **settings: Any) -> Engine:
    base = {"dtype": "bf16", "batch_invariant": True, "max_model_len": 400}
    return Engine(config_of(folder, **(base | settings)))


#: With logprobs, answered greedily or by a seed.
REQUESTS = traffic(
    1, 14, [16, 33, 100, 160], [1, 20, 90], max_tokens=range(8, 30), temperature=[0.0, 1.0], logprobs=[2]
)


@pytest.fixture(scope="module")
def alone(folder: Path) -> list[Generated]:
    """Answers of an engine that never has two requests, with the logprobs of the likeliest tokens."""
    engine = load(folder)
    return [generate(engine, [request])[0] for request in REQUESTS]


#: With so little cache, requests are interrupted and computed again.
PRESSED = {"kv_tokens": 400, "prefix_cache": True, "chunked_prefill_size": 24, "overlap_schedule": True}


@needs_bf16_products
@on_models(["gpt2", "qwen3"])
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
def test_together_as_alone(folder: Path, alone: list[Generated], settings: dict[str, Any]) -> None:
    engine = load(folder, **settings)
    assert generate(engine, REQUESTS) == alone
    assert settings is not PRESSED or engine.preemptions > 0


@needs_bf16_products
@on_models(["gpt2", "qwen3"])
def test_without_it_bits_differ(folder: Path) -> None:
    """The test above can fail."""
    engine, requests = load(folder, batch_invariant=False), REQUESTS
    alone = [generate(engine, [request])[0] for request in requests]
    assert generate(load(folder, batch_invariant=False, **PRESSED), requests) != alone


@pytest.mark.parametrize("settings", [{"dtype": "fp32"}, {"cpu_kernels": False}, {"cpu_linear": False}])
def test_what_cannot_be_had_is_refused(gpt2_folder: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--batch-invariant needs"):
        load(gpt2_folder, **settings)
